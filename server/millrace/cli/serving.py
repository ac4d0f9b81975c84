"""`millrace serve` and `millrace config check`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.cli import show

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="MILLRACE_CONFIG", metavar="FILE", help="A TOML file; see docs/configuration.md."),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="The directory for definitions and history. In memory only by default."
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="The TCP port for feeds and readers. [127.0.0.1:7420]"),
]
AdminOption = Annotated[
    str | None, typer.Option("--admin", metavar="HOST:PORT", help="The HTTP port. [127.0.0.1:7421]")
]
FunctionsOption = Annotated[
    str | None, typer.Option("--functions", metavar="MODULE", help="A Python module with functions for SQL.")
]
NoTokenOption = Annotated[
    bool, typer.Option("--no-token", help="Require no token, also with a new data directory; on loopback alone.")
]
FollowOption = Annotated[
    str | None,
    typer.Option("--follow", metavar="HOST[:PORT]", help="The HTTP port of a server to follow, as its standby."),
]


def serve(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    admin: AdminOption = None,
    functions: FunctionsOption = None,
    follow: FollowOption = None,
    no_token: NoTokenOption = False,
) -> None:
    """Run the server until SIGTERM or Ctrl-C."""
    # Imports make tens of thousands of objects and no garbage. `main` enables the collector again.
    gc.disable()
    from millrace.run.config import load
    from millrace.run.daemon import main

    main(load(config, _flags(data_dir, listen, admin, functions, follow, no_token=no_token)))


def check(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    admin: AdminOption = None,
    functions: FunctionsOption = None,
    follow: FollowOption = None,
    no_token: NoTokenOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective configuration, or one line per problem (exit code 78)."""
    from millrace.access.access import check_tokens
    from millrace.access.certificates import check_certificates
    from millrace.run.config import load, to_toml
    from millrace.run.daemon import load_functions

    settings = load(config, _flags(data_dir, listen, admin, functions, follow, no_token=no_token))
    check_certificates(settings.server)
    check_tokens(settings.server)
    load_functions(settings)
    if as_json:
        show.as_json(settings.model_dump(mode="json"))
    else:
        show.out(to_toml(settings).rstrip())


def _flags(
    data_dir: Path | None,
    listen: str | None,
    admin: str | None,
    functions: str | None,
    follow: str | None,
    *,
    no_token: bool,
) -> Mapping[str, Mapping[str, Any]]:
    auth = "off" if no_token else None
    server = {"data_dir": data_dir, "listen": listen, "admin": admin, "functions": functions, "auth": auth}
    return {"server": server, "standby": {"follow": follow}}
