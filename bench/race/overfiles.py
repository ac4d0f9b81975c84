"""`millrace run` over files: the first workload from Parquet, Arrow and JSON lines, against the parts that it needs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import nexmark
from bench.race.inmemory import check
from bench.race.inprocess import InEngine
from bench.race.lines import DUCKDB, MILLRACE, Contender, Line, Metric, Scale, cpu_seconds
from bench.race.workloads import FORMATS, WORKLOADS, InDuckDB, Workload, digest, files
from millrace.offline.run import Options, Run
from millrace.offline.script import plan_script

SPEED: Final = {"speed": Metric("M tuples per CPU second", more=True)}
PARTS: Final = "engine + pyarrow's reader"
REPORT: Final = f"{MILLRACE} with a report"


def contenders(format: str, scale: Scale) -> Iterator[Contender]:  # noqa: A002 - as in `files`
    workload = WORKLOADS["w1"]
    streams = workload.streams(scale.tuples)
    count = sum(map(len, streams.values()))
    expected = digest(InDuckDB(workload, streams).run())
    paths = files(workload, scale.folder, format, scale.tuples)
    engine = InEngine(workload, streams)

    def speed(seconds: float) -> Mapping[str, float]:
        return {"speed": count / seconds / 1e6}

    def run(report: Path | None) -> Mapping[str, float]:
        output = scale.folder / "rows.parquet"
        options = Options(
            inputs=[(name, str(path)) for name, path in paths.items()],
            outputs=[("q", str(output))],
            report=None if report is None else str(report),
        )
        program = Run(plan_script(workload.sql), options, io.BytesIO())
        seconds = cpu_seconds(program.run)
        check(MILLRACE, digest(_rows(workload, output)), expected)
        return speed(seconds)

    def parts() -> Mapping[str, float]:
        engine.prepare()
        return speed(cpu_seconds(lambda: [read(path, format) for path in paths.values()]) + cpu_seconds(engine.run))

    def duckdb() -> Mapping[str, float]:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET threads = 1")
        reader = {"parquet": "read_parquet", "jsonl": "read_json"}[format]
        for name, path in paths.items():
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {reader}('{path}')")
        rows: list[Any] = []
        seconds = cpu_seconds(lambda: rows.extend(connection.execute(workload.duckdb_sql).fetchnumpy().values()))
        check(DUCKDB, digest(rows), expected)
        return speed(seconds)

    yield Contender(MILLRACE, partial(run, None))
    yield Contender(REPORT, partial(run, scale.folder / "report.json"))
    yield Contender(PARTS, parts)
    if format != "arrow":  # DuckDB reads Arrow's files with an extension alone
        yield Contender(DUCKDB, duckdb)


def read(path: Path, format: str) -> Any:  # noqa: A002 - as in `files`
    """A file as pyarrow reads it."""
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet

    if format == "parquet":
        return pyarrow.parquet.read_table(path)
    if format == "jsonl":
        return pyarrow.json.read_json(path)
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _rows(workload: Workload, path: Path) -> list[Any]:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    return [table[name].cast("int64").to_numpy() for name in workload.columns]


def _line(name: str) -> Line:
    return Line(
        f"files-{name}",
        f"`millrace run` over {name}: W1",
        SPEED,
        partial(contenders, name),
        goal="at least 1.5 M/s" if name == "jsonl" else "at most 1.5 times the time of the engine and pyarrow's reader",
        unfair="Millrace checks every value, and pyarrow's reader builds columns alone: in favour of the parts.",
    )


# -- events out of order -----------------------------------------------------------------------------------------------

NEXMARK: Final = {"time": Metric("us per event", more=False)}


def disordered(name: str, scale: Scale) -> Iterator[Contender]:
    """A query of Nexmark over a file of events, in order and with a disorder of ten seconds."""
    count = max(scale.tuples // 50, 1_000)
    rows: dict[int, list[str]] = {}

    def run(delay_us: int) -> Mapping[str, float]:
        path = scale.folder / f"nexmark-{count}-{delay_us}.jsonl"
        if not path.exists():
            nexmark.write(nexmark.events(count), path, delay_us)
        seconds, found = nexmark.spent(nexmark.QUERIES[name], path, delay_us)
        rows[delay_us] = sorted(found)
        # Running totals (q4, q9) emit rows as often as they change.
        assert name in ("q4", "q9") or rows[delay_us] == rows.setdefault(0, rows[delay_us])
        return {"time": seconds / count * 1e6}

    yield Contender(f"{MILLRACE}, in order", partial(run, 0))
    yield Contender(MILLRACE, partial(run, nexmark.DISORDER_US))


LINES: Final = [
    *(_line(name) for name in FORMATS),
    *(
        Line(
            f"nexmark-{name}",
            f"`millrace run --events` out of order: Nexmark {name}",
            NEXMARK,
            partial(disordered, name),
            "at most 1.5 times the time in order",
        )
        for name in nexmark.QUERIES
    ),
]
