"""`millrace console`: a browser that is logged in."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

import typer

from millrace.cli import show
from millrace.cli.link import Link
from millrace.protocol.admin.data import from_data, to_data
from millrace.protocol.admin.server import LinkView


def console(
    link: Link,
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the link.")] = False,
) -> None:
    """Print a link that logs a browser in, once, within five minutes, and open it.

    The login has the roles of the command's token and lasts for twelve hours, or until the token is revoked.
    """
    found = from_data(LinkView, link.post("console/link"))
    if link.as_json:
        show.as_json(to_data(found))
        return
    show.out(found.url)
    if not no_open and _has_browser() and webbrowser.open(found.url):
        show.tell(f"opened the console of {urlsplit(found.url).netloc} in a browser")
    else:
        show.tell("open this link in a browser: it works once, within five minutes")


def _has_browser() -> bool:
    """Whether a person looks at a desktop: elsewhere a browser would start in the terminal, or on another machine."""
    desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return desktop and sys.stdout.isatty()
