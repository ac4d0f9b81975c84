"""Writes the parts of the documents that are made from the code and the measured claims.

The commands of changes, which the command line imports, are made from the table of changes as well.

    python docs/generate.py            write them
    python docs/generate.py --check    say which are not current, and fail

A generated part is between two comments that name it. The rest of the page is written by hand.
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
VERBS: Final = DOCS.parent / "server" / "millrace" / "cli" / "change_verbs.py"
# Options of every command that uses a server: documented once, in "Where the server is".
SHARED: Final = frozenset({"admin", "server", "token_file", "ca_file", "cert_file", "as_json", "help"})
PART: Final = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def parts() -> Mapping[str, Callable[[], str]]:
    """The generators, by the name in the comment."""
    from millrace.http import reference as changes
    from millrace.observe import logs
    from millrace.run.config import reference

    papers = {f"claims-{paper}": _claims(paper) for paper in ("ets", "eqg", "ups", "nile", "oop")}
    return {
        "cli": cli,
        "changes": changes.labels,
        "cli-changes": changes.commands,
        "http-changes": changes.routes,
        "configuration": lambda: reference().strip() + "\n",
        "metrics": metrics,
        "logs": logs.reference,
        "rules": rules,
        **papers,
    }


def generated(text: str) -> str:
    """A page with its generated parts as they should be now."""
    writers = parts()
    return PART.sub(lambda match: f"{match[1]}\n{writers[match['name']]()}\n{match[3]}", text)


def pages() -> Iterator[Path]:
    """The pages that have a generated part."""
    return (page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text(encoding="utf-8")))


# -- the command line --------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every command, from its definition in typer."""
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
    params = [param for param in command.params if param.name not in SHARED or not _is_shared(command)]
    arguments = [_argument(param) for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option" and param.name != "help"]
    yield f"### {' '.join(path)}"
    yield ""
    yield f"    {' '.join([*path, *arguments, *(['[OPTIONS]'] if options else [])])}"
    yield ""
    yield _paragraphs(command.help or "")
    yield ""
    described = [param for param in params if param.param_type_name == "argument" and (param.help or _choices(param))]
    if described or options:
        yield "| | |"
        yield "|---|---|"
        yield from (
            f"| `{_cell(_argument(param))}`{_choices(param)} | {_cell(param.help or '')} |" for param in described
        )
        yield from (f"| {_option(param)} | {_cell(_explained(param))} |" for param in options)
        yield ""


def _is_shared(command: Any) -> bool:
    """Whether a command's `--admin` is the shared one; `serve` has another, which is documented with `serve`."""
    return any(param.name == "ca_file" for param in command.params)


def _argument(param: Any) -> str:
    name = (param.metavar or param.name).upper().replace("_", "-")
    return name if param.required else f"[{name}]"


def _choices(param: Any) -> str:
    """The values of an argument that accepts a few words only."""
    words = _kind(param)
    return f": `{_cell(words)}`" if "|" in words else ""


def _option(param: Any) -> str:
    metavar = "" if param.is_flag else f" {param.metavar or _kind(param)}"
    again = " (any number of times)" if param.multiple else ""
    return ", ".join(f"`{_cell(spelt + metavar)}`" for spelt in (*param.opts, *param.secondary_opts)) + again


def _kind(param: Any) -> str:
    """The placeholder for a value of the option's type."""
    kind = param.type_descriptor.annotation
    if issubclass(kind, Enum):
        return "|".join(member.value for member in kind)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _explained(param: Any) -> str:
    text = (param.help or "").rstrip()
    default = param.default
    if default not in (None, False, True, [], ()) and not callable(default):
        text += f" Default: `{getattr(default, 'value', default)}`."
    if param.envvar:
        text += f" Variable: `{param.envvar}`."
    return text.strip()


def _paragraphs(text: str) -> str:
    return re.sub(r"[ ]*\n[ ]*", "\n", text).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """The metrics of every server, from one that was never started."""
    from millrace.observe.metrics import reference
    from millrace.run.config import Settings
    from millrace.run.daemon import Daemon

    return reference(Daemon(Settings()).metrics)


# -- the rule library --------------------------------------------------------------------------------------------------


def rules() -> str:
    """The moves of each role under each strategy."""
    from millrace.engine.scheduler.rules import RULES
    from millrace.engine.scheduler.table import Role

    lines = [f"| role | {' | '.join(f'`{kind.value}`' for kind in RULES)} |", "|---" * (len(RULES) + 1) + "|"]
    for role in Role:
        cells = [", ".join(move.__name__ for move in by_role[role]) or "-" for by_role in RULES.values()]
        lines.append(f"| {role.value} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# -- the papers --------------------------------------------------------------------------------------------------------


def _claims(paper: str) -> Callable[[], str]:
    return lambda: claims(paper)


def claims(paper: str) -> str:
    """The claims of a paper's figures and their measurements (figures/claims.csv)."""
    with (DOCS / "figures" / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
    holds = sum(row["holds"] == "yes" for row in rows)
    lines = [
        f"{holds} of {len(rows)} claims hold.",
        "",
        "| figure | claim | expected | measured | holds | seeds |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['figure']} | {_cell(row['claim'])} | {_cell(row['expected'])} | {_cell(row['measured'])} "
            f"| {row['holds']} | {row['seeds']} |"
            for row in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    from millrace.http.reference import verbs

    check = "--check" in sys.argv[1:]
    stale = []
    # The commands first: the pages describe them.
    for page, made in ((VERBS, lambda _: verbs()), *((page, generated) for page in pages())):
        text = page.read_text(encoding="utf-8")
        if (now := made(text)) != text:
            stale.append(page)
            if not check:
                page.write_text(now, encoding="utf-8")
    for page in stale:
        state = "not current; run make docs" if check else "written"
        sys.stdout.write(f"{page.relative_to(DOCS.parent)}: {state}\n")
    if check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
