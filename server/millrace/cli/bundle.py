"""`millrace support-bundle`: the diagnostics of a server in one file, for remote support.

Rule: no rows, no secrets. The server removes the secrets from the configuration, and the keys of the worst rows from
sinks. This command also removes its own token from everything that it writes.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli import show
from millrace.cli.admin import table_lines
from millrace.cli.doctor import look
from millrace.cli.link import Link, ServerError, segment
from millrace.observe.advice import advise
from millrace.protocol.admin.data import to_data
from millrace.protocol.admin.operators import ComponentView, TableView
from millrace.protocol.admin.queries import AnalyzedView, QueryView, Why
from millrace.protocol.admin.server import CatalogView
from millrace.protocol.errors import MillraceError

LISTS: Final = ("streams", "queries", "sinks", "components", "operators")
HIDDEN: Final = "(left out)"

CONTAINS: Final[Mapping[str, str]] = {
    "server.json": "version, addresses, clock, process, limits of the system, versions of libraries",
    "configuration.json": "the current configuration, without its secrets",
    "catalog.sql": "the statements and commands that created the streams, queries and sinks",
    "streams.json": "streams with their feeds, marks (watermarks) and counters",
    "queries.json": "queries with their state",
    "sinks.json": "sinks with their written and queued rows",
    "components.json": "components with their operators and queues",
    "operators.json": "operators with their counters, queues and state",
    "tables.txt": "the state table of each component's scheduler",
    "plans.txt": "the plan of each query, with measurements of its operators",
    "why.json": "what each query waits for",
    "advice.json": "what millrace doctor advises",
    "metrics.txt": "one scrape of /metrics",
    "log.jsonl": "the newest log lines of the server",
}
NOT_THERE: Final = (
    "rows and tuples of any stream, query or file",
    "values of keys, such as the keys of a sink's worst rows",
    "tokens, passwords, private keys, certificates, and the names of the files that hold them",
    "variables of the environment",
)
STATEMENTS: Final = (
    "Statements are included as written, with names and constants such as WHERE customer = 'Ada'. Feeds and the log "
    "contain the names of clients. Operators contain the errors that your functions raised. Check the file before "
    "you send it."
)


def support_bundle(
    link: Link,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.tar.gz", help="Where to write; must not exist yet.")
    ] = None,
) -> None:
    """Put what explains a server's state into one file, without rows and without secrets."""
    path = Path(time.strftime("millrace-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime())) if output is None else output
    link.get("server")  # without a server this fails before anything is written
    parts, missing = collect(link)
    written = pack(parts, missing, link.token)
    try:
        with path.open("xb") as file:
            path.chmod(0o600)
            file.write(written)
    except FileExistsError:
        raise MillraceError(f"{path} exists: name another file with -o") from None
    except OSError as error:
        raise MillraceError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if link.as_json:
        show.as_json({"file": str(path), "contains": list(parts), "missing": missing, "left_out": list(NOT_THERE)})
        return
    show.tell(f"{path} contains")
    for name in parts:
        show.tell(f"  {name.ljust(19)} {CONTAINS[name]}")
    for name, reason in missing.items():
        show.tell(f"  {name.ljust(19)} is missing: {reason}")
    show.tell("left out are")
    for what in NOT_THERE:
        show.tell(f"  {what}")
    show.tell(STATEMENTS)


def collect(link: Link) -> tuple[dict[str, str], dict[str, str]]:
    """The parts by file name, and why others could not be had: half a story is better than none."""
    parts, missing = {}, {}
    for name, get in _parts(link).items():
        try:
            parts[name] = get()
        except MillraceError as error:
            missing[name] = error.text
    return parts, missing


def pack(parts: Mapping[str, str], missing: Mapping[str, str], token: str | None) -> bytes:
    """The tar file; its first page describes it."""
    lines = [
        f"Made by millrace support-bundle at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC.",
        "",
        "Contains:",
        *(f"  {name.ljust(19)} {CONTAINS[name]}" for name in parts),
        *(f"  {name.ljust(19)} is missing: {reason}" for name, reason in missing.items()),
        "",
        "Left out:",
        *(f"  {what}" for what in NOT_THERE),
        "",
        STATEMENTS,
        "",
    ]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in {"README.txt": "\n".join(lines), **parts}.items():
            content = (text.replace(token, HIDDEN) if token else text).encode()
            entry = tarfile.TarInfo(f"millrace-support/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _parts(link: Link) -> dict[str, Callable[[], str]]:
    def api(path: str) -> Callable[[], str]:
        return lambda: _json(link.get(path))

    parts: dict[str, Callable[[], str]] = {
        "server.json": lambda: _json({**link.get("server"), "asked_by": _asker()}),
        "configuration.json": api("configuration"),
        "catalog.sql": lambda: link.view(CatalogView, "catalog").sql,
        **{f"{name}.json": api(name) for name in LISTS},
        "tables.txt": lambda: "\n".join(_tables(link)),
        "plans.txt": lambda: "\n".join(_plans(link)),
        "why.json": lambda: _json({name: to_data(without_sinks(why)) for name, why in look(link).whys.items()}),
        "advice.json": lambda: _json([to_data(advice) for advice in advise(look(link))]),
        "metrics.txt": lambda: link.text("/metrics"),
        "log.jsonl": lambda: "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in link.get("log")),
    }
    parts["sinks.json"] = lambda: _json([without_keys(sink) for sink in link.get("sinks")])
    return parts


def without_keys(sink: Mapping[str, Any]) -> dict[str, Any]:
    """A sink without the keys of its worst rows, and of those that wait: they are data."""
    freshness = sink["freshness"]
    hidden = {"worst": HIDDEN, "waiting_worst": HIDDEN}
    return {**sink, "freshness": None if freshness is None else {**freshness, **hidden}}


def without_sinks(why: Why) -> Why:
    """The answer without the sentences about sinks, which name the keys of old rows."""
    return replace(why, text=why.text.partition(" The sink ")[0])


def _tables(link: Link) -> Iterator[str]:
    for component in link.views(ComponentView, "components"):
        table = link.view(TableView, f"components/{segment(component.name)}/table")
        yield f"component {component.name}, strategy {component.strategy}"
        yield from show.aligned(("state", "pred", "succ", "transition"), table_lines(table.rows))
        yield ""


def _plans(link: Link) -> Iterator[str]:
    for query in link.views(QueryView, "queries"):
        try:
            yield link.view(AnalyzedView, f"queries/{segment(query.name)}/explain?analyze=true").text
        except ServerError as error:
            yield f"query {query.name}: {error.text}"
        yield ""


def _asker() -> dict[str, str]:
    import platform

    return {"python": sys.version, "platform": platform.platform()}


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
