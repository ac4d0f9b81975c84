"""`millrace spark`: queries as a job of Spark Structured Streaming. The flags, checked and handed to the spark room.

Rule: everything that can be known without Spark is checked before it starts, and Spark and pyarrow are imported only
when one of these commands runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli import show
from millrace.cli.backfill import interruptible, parse_pair, reading_statements
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from millrace.spark.records import CommitRecord

# As in millrace.spark.request, which would import the engine for `--help`.
BUCKETS = 64

File = Annotated[str, typer.Argument(metavar="FILE.sql", help="Statements: streams and queries.")]
Folder = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The folder of --checkpoint.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Buckets = Annotated[
    int, typer.Option("--buckets", min=1, max=4096, help="Into how many parts the keys are divided; fixed afterwards.")
]
Functions = Annotated[
    str | None,
    typer.Option("--functions", metavar="MODULE", envvar="MILLRACE_SERVER__FUNCTIONS", help="Functions for SQL."),
]


def explain(path: File, buckets: Buckets = BUCKETS, functions: Functions = None) -> None:
    """Show how each query would run: its key, buckets and state. The exit code is 1 if one cannot run."""
    from millrace.spark.words import explain as words
    from millrace.sql.functions import install_module

    if functions is not None:
        install_module(functions)
    with reading_statements(path) as text:
        explained = words(text, buckets)
    for line in explained.lines:
        show.out(line)
    if not explained.runs:
        raise typer.Exit(1)


def run(
    path: File,
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="STREAM=INPUT", help="What a stream is read from; can be repeated."),
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="DIR", help="The job's folder: states, commits, Spark's logs.")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Where rows go as Parquet. By default `rows` in the checkpoint."),
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="QUERY=SINK",
            help="Where a query's rows go: file:DIR, kafka://HOST:PORT/TOPIC or millrace://HOST:PORT/STREAM.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master. By default Spark runs embedded, on all cores."),
    ] = None,
    trigger: Annotated[
        str, typer.Option("--trigger", metavar="DURATION", help="Epochs start at most this often.")
    ] = "1 second",
    buckets: Buckets = BUCKETS,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Tasks of an epoch; one per core by default.")] = (
        None
    ),
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Read what is there now, emit incomplete windows too, and stop.")
    ] = False,
    functions: Functions = None,
    settings: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; can be repeated.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Serve /metrics for Prometheus at this address."),
    ] = None,
) -> None:
    """Run queries live on Spark. After a kill, the same command continues without losing or repeating a row."""
    from millrace.spark.request import request_of
    from millrace.spark.running import run_job

    conf = dict(parse_pair("--conf", text, "NAME=VALUE") for text in settings or ())
    with reading_statements(path) as text:
        request = request_of(
            text,
            _once("--input", inputs, "STREAM=INPUT"),
            checkpoint,
            _once("--sink", sinks or (), "QUERY=SINK"),
            out=out,
            buckets=buckets,
            functions=() if functions is None else (functions,),
        )
    with interruptible("start it again with the same flags to continue"):
        run_job(
            request,
            _show_epoch,
            master=master,
            settings=conf,
            trigger=trigger,
            tasks=tasks,
            until_end=until_end,
            metrics=metrics,
        )


def _once(flag: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """Pairs whose names differ."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, value = parse_pair(flag, text, form)
        if name in pairs:
            raise typer.BadParameter(f"{name} appears twice", param_hint=flag)
        pairs[name] = value
    return pairs


def _show_epoch(commit: CommitRecord) -> None:
    from millrace.spark.words import epoch_line, failed_lines

    show.out(epoch_line(commit))
    show.flush()
    for line in failed_lines(commit.counts.failed):
        show.tell(f"millrace: {line}")


def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show how far a job is: its last commits, marks, totals, skew, and the parts that lag."""
    from millrace.spark.status import is_behind
    from millrace.spark.status import status as look

    found = look(folder)
    if as_json:
        show.as_json(found)
        return
    for name, words in _status_words(found).items():
        show.out(f"{name}: {words}")
    if commits := found.get("commits"):
        show.out("")
        show.table(list(commits[0]), [list(commit.values()) for commit in commits if commit])
    if found["changes"]:
        show.out("")
        show.table(
            ["change", "what", "by", "at", "in effect"],
            [
                [one["number"], one["change"], one["by"], _time(one["at_us"]), "yes" if one["in_effect"] else "not yet"]
                for one in found["changes"]
            ],
        )
    if behind := [part for part in found.get("parts", ()) if is_behind(part)]:
        show.out("")
        show.table(
            ["stream", "part behind", "rows", "reached", "behind"],
            [
                [part["stream"], part["part"], part["rows"], _time(part["reached_us"]), _lag(part["behind_us"])]
                for part in behind
            ],
        )


def _status_words(found: Mapping[str, Any]) -> dict[str, str]:
    """The lines of a status."""
    words = {"job": found["job"], "queries": ", ".join(found["queries"])}
    if found["epoch"] is None:
        return words | {"epoch": "none is committed yet"}
    totals = found["totals"]
    ended = ", the job has ended" if found["ended"] else ""
    words["epoch"] = f"{found['epoch']}, committed {found['commit_age_s']} s ago{ended}"
    words["mark"] = "none yet"
    if found["mark_us"] is not None:
        words["mark"] = f"{_time(found['mark_us'])}, {_lag(found['behind_us'])} behind the epoch's time"
    if found["skew"] is not None:
        words["skew"] = f"slowest bucket {found['slowest_bucket']}, {found['skew']} x mean"
    for name, heading in (("input", "rows read"), ("rows", "rows emitted"), ("late", "late")):
        words[heading] = ", ".join(f"{key} {count}" for key, count in totals[name].items()) or "0"
    for operator, (count, reason) in totals["failed"].items():
        words[f"failed at {operator}"] = f"{counted(count, 'row')}: {reason}"
    words["sinks"] = ", ".join(f"{query} to {sink}" for query, sink in found["sinks"].items())
    return words


def _time(us: int | None) -> str:
    from millrace.protocol import format_timestamp

    return "-" if us is None else format_timestamp(us)


def _lag(us: int | None) -> str:
    return "-" if us is None else f"{us / 1e6:.1f} s"


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Check that commits follow each other, that their files exist, and that the counts agree."""
    from millrace.spark.status import verify as check

    counts, problems = check(folder)
    if as_json:
        show.as_json({**counts, "problems": problems})
    else:
        for problem in problems:
            show.out(problem)
        words = ", ".join(counted(count, word.removesuffix("s")) for word, count in counts.items())
        show.out(f"{words}: {counted(len(problems), 'problem') if problems else 'whole'}")
    if problems:
        raise typer.Exit(1)


Query = Annotated[str, typer.Argument(metavar="QUERY", help="A query of the job.")]


def sql(folder: Folder, statement: Annotated[str, typer.Argument(help="Statements, or - for standard input.")]) -> None:
    """Change the queries of a job: CREATE, CREATE OR REPLACE, DROP. It takes effect after the present epoch."""
    _ask(folder, reading_text(statement))


def strategy(
    folder: Folder, query: Query, strategy: Annotated[str, typer.Argument(help="Such as dfs, bfs(100) or chain.")]
) -> None:
    """Run the operators of a query by another strategy, without a restart."""
    _ask(folder, decision=("strategy", query, strategy))


def pause(folder: Folder, query: Query) -> None:
    """Pause a query of a job: it takes no rows until it is resumed."""
    _ask(folder, decision=("pause", query))


def resume(folder: Folder, query: Query) -> None:
    """Resume a paused query of a job: it takes later rows."""
    _ask(folder, decision=("resume", query))


def _ask(folder: str, sql: str = "", decision: tuple[str, ...] = ()) -> None:
    from millrace.spark.asking import ask

    change, number = ask(folder, sql, decision)
    show.out(f"change {number} is stored: {change.words}")
    show.out("it takes effect after the present epoch, or when the job starts again")


def reading_text(statement: str) -> str:
    return sys.stdin.read() if statement == "-" else statement


def why(folder: Folder, query: Query) -> None:
    """Say why a query emits no rows: which bucket waits, until which time, and which part holds its stream."""
    from millrace.spark.asking import why as reason

    show.out(reason(folder, query))
