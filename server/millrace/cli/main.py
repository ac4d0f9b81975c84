"""The `millrace` command: where its verbs are registered, and where errors become one line and an exit code.

Rule: starting must be fast, so a command imports what it needs when it runs. Exit codes: 0 done, 1 failed, 2 wrong
usage, 78 wrong configuration.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from millrace.cli import admin, backfill, serving, show
from millrace.cli.bundle import support_bundle
from millrace.cli.doctor import doctor
from millrace.cli.options import linked
from millrace.cli.streaming import feed, tail
from millrace.protocol.errors import MillraceError

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 78  # sysexits' EX_CONFIG

# Commands whose modules are imported only when they are asked for: (module, function).
LAZY: Final = {"run": ("millrace.cli.run", "run"), "top": ("millrace.cli.top", "top")}


class Commands(TyperGroup):
    """The commands, with those of LAZY loaded at need."""

    # The contexts and commands are click's or typer's own, by version: neither is ours to name.

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *LAZY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LAZY:
            return super().get_command(ctx, cmd_name)
        module, function = LAZY[cmd_name]
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    name="millrace",
    help="Millrace, a stream server: continuous SQL queries over timestamped tuples.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serving.serve)
app.command("apply")(linked(admin.apply))
app.command("sql")(linked(admin.sql))
app.command("export")(linked(admin.export))
app.command("feed")(linked(feed, streaming=True))
app.command("tail")(linked(tail, streaming=True))
app.command("explain")(linked(admin.explain))
app.command("why")(linked(admin.why))
app.command("doctor")(linked(doctor))
app.command("support-bundle")(linked(support_bundle))
for _name, _group in admin.groups().items():
    app.add_typer(_group, name=_name)
app.add_typer(serving.config, name="config")
app.add_typer(backfill.app, name="backfill")


@app.command("version")
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    import importlib.metadata

    try:
        number = importlib.metadata.version("millrace")
    except importlib.metadata.PackageNotFoundError:
        number = "unknown"
    if as_json:
        show.as_json({"version": number})
    else:
        show.out(f"millrace {number}")


def main() -> None:
    """The entry point: every error a person can meet is one clear line."""
    try:
        app()
    except MillraceError as error:
        _complain(error)


def _complain(error: MillraceError) -> Any:
    for line in getattr(error, "problems", None) or [error.text]:
        show.tell(f"millrace: {line}")
    sys.exit(EXIT_CONFIGURATION if error.code == "configuration" else EXIT_FAILED)


if __name__ == "__main__":
    main()
