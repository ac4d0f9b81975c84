"""Writes the parts of the documents that are made from the code and the measured claims.

    python docs/generate.py            write them
    python docs/generate.py --check    say which are not current, and fail

A generated part stands between two comments that name it. What is around it is written by hand.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

DOCS: Final = Path(__file__).parent
# Options of every command that speaks to a server: told once, in "Where the server is".
SHARED: Final = frozenset({"admin", "server", "token_file", "ca_file", "as_json", "help"})
PART: Final = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts() -> Mapping[str, Callable[[], str]]:
    """What can be generated, by the name that the comment says."""
    from millrace.server import logs
    from millrace.server.config import reference

    papers = {f"claims-{paper}": _claims(paper) for paper in ("ets", "eqg", "ups", "nile", "oop")}
    return {
        "cli": cli,
        "configuration": lambda: reference().strip() + "\n",
        "metrics": metrics,
        "logs": logs.reference,
        **papers,
    }


def generated(text: str) -> str:
    """A page with its generated parts as they should be now."""
    made = parts()
    return PART.sub(lambda found: f"{found[1]}\n{made[found['name']]()}\n{found[3]}", text)


def pages() -> Iterator[Path]:
    """The pages that have a generated part."""
    return (page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text(encoding="utf-8")))


# -- the command line --------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every command, from what typer knows of it."""
    from millrace.cli.main import app

    command: Any = typer.main.get_command(app)
    return "\n".join(_commands(command, ("millrace",)))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    if not names:
        yield from _command(command, path)
    for name in names:
        yield from _commands(command.get_command(None, name), (*path, name))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    params = [one for one in command.params if one.name not in SHARED or not _is_shared(command)]
    arguments = [_argument(one) for one in params if one.param_type_name == "argument"]
    told = [one for one in params if one.param_type_name == "option" and one.name != "help"]
    yield f"### {' '.join(path)}"
    yield ""
    yield f"    {' '.join([*path, *arguments, *(['[OPTIONS]'] if told else [])])}"
    yield ""
    yield _paragraphs(command.help or "")
    yield ""
    described = [one for one in params if one.param_type_name == "argument" and (one.help or _choices(one))]
    if described or told:
        yield "| | |"
        yield "|---|---|"
        yield from (f"| `{_cell(_argument(one))}`{_choices(one)} | {_cell(one.help or '')} |" for one in described)
        yield from (f"| {_option(one)} | {_cell(_explained(one))} |" for one in told)
        yield ""


def _is_shared(command: Any) -> bool:
    """`serve` has an `--admin` of its own, which is told with it."""
    return any(one.name == "ca_file" for one in command.params)


def _argument(one: Any) -> str:
    name = (one.metavar or one.name).upper().replace("_", "-")
    return name if one.required else f"[{name}]"


def _choices(one: Any) -> str:
    """What an argument may be, where that is one of a few words."""
    words = _kind(one)
    return f": `{_cell(words)}`" if "|" in words else ""


def _option(one: Any) -> str:
    metavar = "" if one.is_flag else f" {one.metavar or _kind(one)}"
    again = " (any number of times)" if one.multiple else ""
    return ", ".join(f"`{_cell(spelt + metavar)}`" for spelt in (*one.opts, *one.secondary_opts)) + again


def _kind(one: Any) -> str:
    """What to write for a value of the option's type."""
    kind = one.type_descriptor.annotation
    if issubclass(kind, Enum):
        return "|".join(member.value for member in kind)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _explained(one: Any) -> str:
    told = (one.help or "").rstrip()
    default = one.default
    if default not in (None, False, True, [], ()) and not callable(default):
        told += f" Default: `{getattr(default, 'value', default)}`."
    if one.envvar:
        told += f" Variable: `{one.envvar}`."
    return told.strip()


def _paragraphs(text: str) -> str:
    return re.sub(r"[ ]*\n[ ]*", "\n", text).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """What any server exposes: asked of one that was never started."""
    from millrace.server.config import Settings
    from millrace.server.daemon import Daemon
    from millrace.server.metrics import reference

    return reference(Daemon(Settings()).metrics)


# -- the papers --------------------------------------------------------------------------------------------------------


def _claims(paper: str) -> Callable[[], str]:
    return lambda: claims(paper)


def claims(paper: str) -> str:
    """What was claimed of a paper's figures, and what was measured here (figures/claims.csv)."""
    with (DOCS / "figures" / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
    holds = sum(row["holds"] == "yes" for row in rows)
    lines = [
        f"{holds} of {len(rows)} claims hold.",
        "",
        "| figure | claim | expected | measured | holds |",
        "|---|---|---|---|---|",
        *(
            f"| {row['figure']} | {_cell(row['claim'])} | {_cell(row['expected'])} | {_cell(row['measured'])} "
            f"| {row['holds']} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (now := generated(text)) != text:
            stale.append(page)
            if not check:
                page.write_text(now, encoding="utf-8")
    for page in stale:
        said = "not current; run make docs" if check else "written"
        sys.stdout.write(f"{page.relative_to(DOCS.parent)}: {said}\n")
    if check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
