"""`millrace version`."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import show
from millrace.cli.release import number


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if as_json:
        show.as_json({"version": number()})
    else:
        show.out(f"millrace {number()}")
