"""`millrace run` in the test's process, over data instead of files where that is shorter."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from millrace.engine.engine import Engine
from millrace.offline.run import Options, Run
from millrace.offline.script import plan_script


@dataclass(frozen=True)
class Result:
    """The output of a run: rows by query, late tuples, the trace and the report."""

    rows: Mapping[str, list[dict[str, Any]]]
    late: Mapping[str, list[dict[str, Any]]]
    trace: list[dict[str, Any]]
    report: dict[str, Any]
    stdout: bytes
    engine: Engine
    late_tuples: Mapping[str, int]  # of streams whose late tuples go nowhere


def run_events(sql: str, events: Sequence[Any], folder: Path, **flags: Any) -> Result:
    """Run a script over events."""
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events), "utf-8")
    return run_script(sql, folder, events=str(path), **flags)


def run_script(
    sql: str,
    folder: Path,
    *,
    order: str | None = None,
    trace: bool = False,
    cost: str | None = None,
    late_files: bool = True,
    **flags: Any,
) -> Result:
    """Run a script with all queries' rows, all late tuples and a report; times are integers."""
    script = plan_script(sql, order)
    late = [(name, str(folder / f"late-{name}.jsonl")) for name in script.streams] if late_files else []
    outputs = [(name, str(folder / f"out-{name}.jsonl")) for name in script.queries]
    flags.setdefault("iso", False)
    flags.setdefault("report", str(folder / "report.json"))
    options = Options(
        outputs=outputs,
        late=late,
        trace=str(folder / "trace.jsonl") if trace else None,
        cost=None if cost is None else Fraction(cost),
        **flags,
    )
    stdout = io.BytesIO()
    run = Run(script, options, stdout)
    run.run()
    return Result(
        {name: lines(path) for name, path in outputs},
        {name: lines(path) for name, path in late},
        lines(options.trace) if options.trace else [],
        json.loads(Path(options.report).read_bytes()) if options.report else {},
        stdout.getvalue(),
        run.engine,
        run.late_tuples,
    )


def lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
