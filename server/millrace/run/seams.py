"""Queries that start with their history: the work before they are live, and the switch.

`begin` creates the query, closed, with its sinks, and lets a child process compute over the archives of its streams.
When the child has nearly reached the present, the query starts to hold the tuples of its streams. All earlier tuples
are written into files, the child computes over these too, and the engine adopts the child's state
(`engine/seam.py` explains why no row is missing or doubled then). Rows below the seam belong to history: the
program that computes them reports its progress with `tell`, and then the query is caught up.

Rule: a query that is not live yet is not in the catalog's file. If the server ends first, the request is void; a query
that started again without its past would have an unseen gap. The seam of a live query and the progress of its history
are saved next to the catalog, because the program that computes that part may outlive the server. They are noted in the
journal, too, from which a standby learns them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from millrace.engine import lowered
from millrace.engine.events import AdoptBootstrap, HoldQuery
from millrace.engine.plan import QueryPlan
from millrace.engine.seam import Bootstrap, check
from millrace.formats.durable import write_whole
from millrace.history.files import HistoryError, words
from millrace.protocol import MillraceError, Refuse
from millrace.protocol.admin.changes import CancelReply
from millrace.protocol.admin.queries import BackfillView
from millrace.run.processes import start_python
from millrace.run.runner import NOTHING
from millrace.sql import CreateQuery, CreateSink, Planned
from millrace.values.eventtime import FIRST_US

if TYPE_CHECKING:
    from millrace.run.daemon import Daemon

log = structlog.get_logger()

# If the child lags by fewer rows, the query holds its tuples during the rest: half a second of work.
NEAR_ROWS: Final = 250_000
# Rounds after which the switch happens anyway: the child would never catch up with a stream that is faster.
MOST_ROUNDS: Final = 8
# How long the query may hold tuples before the attempt ends.
HOLD_SECONDS: Final = 120.0
# A line that the child says: short ones.
LINE_BYTES: Final = 2**16
# The file about live queries, and the saved fields of each.
FILE: Final = "seams.json"
KEPT: Final = ("rows", "of", "seam_us", "given", "kept", "done", "told_us", "out")


@dataclass(slots=True, eq=False)
class _Job:
    """A query on its way to live. Its sinks `made` are removed if it fails; `out` is the place of history's part."""

    plan: QueryPlan
    made: tuple[str, ...]
    out: str | None = None
    phase: str = "replaying"
    reason: str | None = None
    rows: int = 0
    of: int = 0
    seam_us: int | None = None
    given: int = 0
    kept: int = 0
    done: bool = False
    told_us: int | None = None
    held: bool = False
    task: asyncio.Task[None] | None = None
    below: dict[str, int] = field(default_factory=dict)


class Seams:
    """The queries of one server that start with their history."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._jobs: dict[str, _Job] = {}

    # -- asked -------------------------------------------------------------------------------------

    async def begin(self, sql: str, margin_us: int | None, out: str | None = None) -> BackfillView:
        """Create the query, and compute its past: all of it, or the last part as long as the margin."""
        daemon = self._daemon
        plan, sinks = _wanted(await daemon.catalog.plan_alone(sql))
        check(plan)
        archives = daemon.archive.views()
        missing = [name for name in plan.reads_streams if name not in archives]
        if missing:
            raise Refuse(
                f"stream {missing[0]} has no history: ALTER STREAM {missing[0]} SET (history = 'true')",
                code="no_history",
            )
        Bootstrap(
            [daemon.catalog.known.streams[name] for name in plan.reads_streams], plan
        )  # refuses rows without time
        daemon.catalog.catching.add(plan.name)
        try:
            await daemon.catalog.execute(sql)
        except BaseException:
            daemon.catalog.catching.discard(plan.name)
            raise
        job = self._jobs[plan.name] = _Job(plan, sinks, out)
        job.task = asyncio.create_task(self._run(job, margin_us), name=f"history of {plan.name}")
        return self._view(job)

    def view(self, query: str) -> BackfillView | None:
        """The progress of a query that started with its history; None for the others."""
        job = self._jobs.get(query)
        return None if job is None else self._view(job)

    def look(self, query: str) -> BackfillView:
        return self._view(self._find(query))

    def _find(self, query: str) -> _Job:
        job = self._jobs.get(query)
        if job is None:
            raise Refuse(f"query {query} was not created with its history", code="unknown_backfill")
        return job

    def _view(self, job: _Job) -> BackfillView:
        return BackfillView(
            query=job.plan.name,
            state=self._state(job),
            phase=job.phase,
            reason=job.reason,
            rows=job.rows,
            of=job.of,
            seam_us=job.seam_us,
            given=job.given,
            kept=job.kept,
            history_us=job.told_us,
            history_done=job.done,
            out=job.out,
        )

    @staticmethod
    def _state(job: _Job) -> str:
        if job.phase == "failed":
            return "failed"
        return "caught up" if job.phase == "live" and job.done else "catching up"

    def sentence(self, query: str) -> str | None:
        """The addition to `why`."""
        job = self._jobs.get(query)
        if job is None or self._state(job) == "caught up":
            return None
        if job.phase == "failed":
            return f"It could not process its history: {job.reason}."
        if job.phase == "live":
            return "It is live; rows before its seam are still being computed from history."
        return f"{job.rows:,} of {job.of:,} archived rows are processed."

    async def tell(self, query: str, until_us: int | None, done: bool, out: str | None = None) -> BackfillView:
        """Record the progress of the program that computes the rows below the seam, and where these rows go."""
        job = self._find(query)
        if done and job.phase != "live":
            raise Refuse(f"query {query} is not live yet, so it has no seam", code="not_live")
        if out is not None and job.out not in (None, out):
            raise Refuse(
                f"the rows of query {query} before its seam go to {job.out}, not to {out}: continue with the "
                "first folder. If it no longer exists, drop the query and start again",
                code="history_elsewhere",
            )
        job.out = out if out is not None else job.out
        job.told_us = until_us if until_us is not None else job.told_us
        job.done = job.done or done
        self._keep()
        await self._daemon.catalog.note_undecided()
        return self._view(job)

    async def cancel(self, query: str) -> CancelReply:
        """End the attempt: remove the query and the sinks created with it. A live query continues like any other."""
        job = self._find(query)
        if job.task is not None and not job.task.done() and job.phase != "live":
            job.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job.task
            await self._give_up(job, "it was cancelled")
        del self._jobs[query]
        self._keep()
        await self._daemon.catalog.note_undecided()
        return CancelReply(query=query, cancelled=job.phase != "live")

    def dropped(self, query: str) -> None:
        """The query is gone. Of one that failed, why it did can still be looked up."""
        self._daemon.catalog.catching.discard(query)
        job = self._jobs.get(query)
        if job is not None and job.phase == "live":
            del self._jobs[query]
            self._keep()

    def renamed(self, query: str, to: str) -> None:
        """A live query has another name."""
        job = self._jobs.pop(query, None)
        if job is not None:
            job.plan = replace(job.plan, name=to)
            self._jobs[to] = job
            self._keep()

    async def close(self) -> None:
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- kept --------------------------------------------------------------------------------------

    def load(self) -> None:
        """Restore the saved state of existing queries."""
        path = self._path
        if path is None or not path.exists():
            return
        try:
            self._adopt(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise HistoryError(f"{path}: expected a file written by a server, got {words(error)}") from None
        self._keep()  # without dropped queries: another may get the name

    def take(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """In a replay: what the journal says of the seams of live queries."""
        if kept != self.kept():
            self._jobs.clear()
            self._adopt(kept)
            self._keep()

    def _adopt(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        for name, of in kept.items():
            plan = self._daemon.catalog.known.queries.get(name)
            if plan is not None:
                self._jobs[name] = _Job(plan, (), phase="live", **{key: of[key] for key in KEPT})

    def kept(self) -> dict[str, dict[str, Any]]:
        """The seams of the live queries, as plain data."""
        return {
            name: {key: getattr(job, key) for key in KEPT} for name, job in self._jobs.items() if job.phase == "live"
        }

    def _keep(self) -> None:
        """Write down where the seams of the live queries are."""
        path = self._path
        if path is None:
            return
        live = self.kept()
        try:
            if live or path.exists():
                write_whole(path, json.dumps(live, indent=1).encode() + b"\n")
        except OSError as error:
            log.error("the seams of queries cannot be written", path=str(path), reason=words(error))

    @property
    def _path(self) -> Path | None:
        folder = self._daemon.settings.server.data_dir
        return None if folder is None else folder / FILE

    # -- working -----------------------------------------------------------------------------------

    async def _run(self, job: _Job, margin_us: int | None) -> None:
        try:
            await self._daemon.runner.at_rest()
            with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
                async with _Child(self._first_line(job, margin_us, Path(folder) / "state")) as child:
                    await self._replay(job, child)
                    async with asyncio.timeout(HOLD_SECONDS):
                        await self._hand_over(job, child, Path(folder) / "state", margin_us)
        except TimeoutError:
            await self._give_up(job, f"its last history rows took more than {HOLD_SECONDS:g} seconds")
        except (MillraceError, OSError) as error:
            await self._give_up(job, error.text if isinstance(error, MillraceError) else str(error))

    def _first_line(self, job: _Job, margin_us: int | None, state: Path) -> dict[str, Any]:
        daemon = self._daemon
        streams = [daemon.catalog.known.streams[name] for name in job.plan.reads_streams]
        marks = [daemon.engine.source(stream.name).mark for stream in streams]
        from_us = None if margin_us is None or min(marks) < FIRST_US else min(marks) - margin_us
        return {
            "history": str(daemon.archive.limits.folder),
            "statements": [stream.sql for stream in streams],
            "plan": lowered.write(job.plan),
            "functions": daemon.settings.server.functions,
            "from_us": from_us,
            "state": str(state),
        }

    async def _replay(self, job: _Job, child: _Child) -> None:
        """Rounds over the archives, until little is left."""
        for _ in range(MOST_ROUNDS):
            until = await self._now(job)
            await self._written(job)
            await child.round(job, until, last=False)
            behind = sum(self._daemon.archive.next_seq(name) - below for name, (below, _) in until.items())
            if behind < NEAR_ROWS:
                return

    async def _now(self, job: _Job) -> dict[str, tuple[int, int]]:
        """The number of the next tuple, and the least time of all later ones."""
        daemon = self._daemon
        await daemon.runner.command(NOTHING)
        await daemon.runner.at_rest()
        return {name: (daemon.archive.next_seq(name), daemon.mark_of(name)) for name in job.plan.reads_streams}

    async def _written(self, job: _Job) -> None:
        for name in job.plan.reads_streams:
            await self._daemon.archive.flush(name)

    async def _hand_over(self, job: _Job, child: _Child, state: Path, margin_us: int | None) -> None:
        daemon, name = self._daemon, job.plan.name
        job.phase = "handing over"
        streams = job.plan.reads_streams

        def cut() -> None:
            """In the engine's step: rows archived earlier are the past, later ones are held."""
            job.below = {stream: daemon.archive.next_seq(stream) for stream in streams}

        job.held = True
        held = await daemon.runner.command(HoldQuery(name), cut)
        await self._written(job)
        until = {stream: (job.below[stream], held["marks"][stream]) for stream in streams}
        answer = await child.round(job, until, last=True)
        data = await asyncio.to_thread(state.read_bytes)
        await daemon.runner.command(AdoptBootstrap(name, data), took=daemon.metrics.paused)
        job.held = False
        job.phase, job.given, job.kept = "live", answer["given"], answer["kept"]
        job.seam_us = answer["seam_us"] if answer["seam_us"] >= FIRST_US else None
        # With a margin only the rows after it were counted: there may be earlier ones.
        job.done = job.seam_us is None or (margin_us is None and job.given == 0)
        self._keep()
        daemon.runner.outlets[name].since_us = None
        daemon.catalog.catching.discard(name)
        await daemon.catalog.note_undecided()
        await daemon.catalog.keeper.keep()
        log.info("a query continues live after its history", query=name, seam_us=job.seam_us, rows_before=job.given)

    async def _give_up(self, job: _Job, reason: str) -> None:
        """Remove everything that was created, unless it is live or has readers."""
        if job.phase == "live":
            log.error("a query is live, but switching from history had an error", query=job.plan.name, reason=reason)
            return
        job.phase, job.reason = "failed", reason
        name, daemon = job.plan.name, self._daemon
        log.error("a query could not process its history", query=name, reason=reason)
        drops = [f'DROP SINK "{sink}"' for sink in job.made if sink in daemon.catalog.known.sinks]
        try:
            if name in daemon.catalog.known.queries:
                await daemon.catalog.execute(";".join([*drops, f'DROP QUERY "{name}"']))
        except MillraceError as refused:
            log.warning("a query could not be dropped and emits no rows", query=name, reason=refused.text)
            if job.held:
                await daemon.runner.command(HoldQuery(name, keep=False))


class _Child:
    """The process that works through the past."""

    def __init__(self, first_line: Mapping[str, Any]) -> None:
        self._first_line = first_line
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> _Child:
        self._process = await start_python("millrace.history.replay", limit=LINE_BYTES)
        await self._say(self._first_line)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def round(self, job: _Job, until: Mapping[str, tuple[int, int]], *, last: bool) -> dict[str, Any]:
        """Run a round up to these limits; the child's last line."""
        await self._say({"until": {name: list(so_far) for name, so_far in until.items()}, "last": last})
        while True:
            told = await self._hear()
            if "error" in told:
                raise Refuse(told["error"], code=told["code"])
            if "rows" not in told:
                return told
            job.rows, job.of = told["rows"], told["of"]

    async def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # its last output explains more
            await self._process.stdin.drain()

    async def _hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise HistoryError(f"the process that reads history ended with exit code {code}; see the server's log")
        told: dict[str, Any] = json.loads(line)
        return told


def _wanted(planned: Sequence[Planned]) -> tuple[QueryPlan, tuple[str, ...]]:
    """The query that starts with its history, and its sinks."""
    queries = [step.plan for step in planned if isinstance(step, CreateQuery) and not step.replaces]
    sinks = [step.sink for step in planned if isinstance(step, CreateSink)]
    fits = len(queries) == 1 and len(planned) == 1 + len(sinks)
    if not fits or any(sink.query != queries[0].name for sink in sinks):
        raise Refuse(
            "expected one CREATE QUERY with a new name, and sinks for it: a query reads its history only when it is "
            "created",
            code="sql",
        )
    return queries[0], tuple(sink.name for sink in sinks)
