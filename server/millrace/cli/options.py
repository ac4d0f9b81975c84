"""Options that many commands share, written once.

`linked` adds the options of a Link to a command that takes one; typer reads them from its signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli.link import DEFAULT_ADMIN, Link

# Printed after a command's own options.
PANEL: Final = "Connection"

_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "admin": (
        Annotated[
            str,
            typer.Option(
                envvar="MILLRACE_ADMIN",
                metavar="HOST:PORT",
                help="The server's HTTP port; with a standby both, with a comma: the one that leads is used.",
                rich_help_panel=PANEL,
            ),
        ],
        DEFAULT_ADMIN,
    ),
    "server": (
        Annotated[
            str | None,
            typer.Option(
                envvar="MILLRACE_SERVER",
                metavar="HOST:PORT",
                help="The server's TCP port, or several with commas. The HTTP API reports it by default.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "token_file": (
        Annotated[
            Path | None,
            typer.Option(
                envvar="MILLRACE_TOKEN_FILE",
                metavar="FILE",
                help="A file with the server's token (or set MILLRACE_TOKEN).",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "ca_file": (
        Annotated[
            Path | None,
            typer.Option(
                envvar="MILLRACE_CA_FILE",
                metavar="FILE",
                help="A certificate authority to trust; the client then uses TLS.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "cert_file": (
        Annotated[
            Path | None,
            typer.Option(
                envvar="MILLRACE_CERT_FILE",
                metavar="FILE",
                help="A PEM file with the client's certificate and its key, in place of a token.",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON.")], False),
}
# Further options of the commands that connect to the TCP port.
_STREAMING: Final[dict[str, tuple[Any, Any]]] = {
    "feed_token_file": (
        Annotated[
            Path | None,
            typer.Option(
                envvar="MILLRACE_FEED_TOKEN_FILE",
                metavar="FILE",
                help="A file with the TCP port's token, if it differs from the HTTP port's (or set "
                "MILLRACE_FEED_TOKEN).",
                rich_help_panel=PANEL,
            ),
        ],
        None,
    ),
}


def linked(command: Callable[..., None], path: str, *, streaming: bool = False) -> Callable[..., None]:
    """The command of this path, with the options of a Link in place of its first parameter."""
    options = {**_STREAMING, **_OPTIONS} if streaming else _OPTIONS

    @functools.wraps(command)
    def with_link(**values: Any) -> None:
        link = Link(**{name: values.pop(name) for name in options}, command=path)
        command(link, **values)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    with_link.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_link.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return with_link
