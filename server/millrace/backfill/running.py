"""One backfill from start to end: look, plan, reserve the destination, run the unfinished tasks, record the end."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from millrace.backfill.flow import Flow
from millrace.backfill.frames import read_spark_table
from millrace.backfill.inputs import Input, Times, base_streams, notes_of, refuse_bad_rows, times_of
from millrace.backfill.job import (
    choose_split,
    default_tasks,
    job_of,
    packages,
    read_times,
    write_frame,
    write_task,
)
from millrace.backfill.keys import keys_of
from millrace.backfill.margins import margins_of
from millrace.backfill.outputs import PLAN, Destination, check_destination
from millrace.backfill.session import check_spark, opened_session, ship
from millrace.backfill.splitting import ALWAYS, Extent, Mode, Slice, Split, how_words, plan_split, span_words
from millrace.protocol import Refuse
from millrace.protocol.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2
# The code of an error in an input's row.
BAD_ROW: Final = "bad_row"
# The code of an error that stops Spark or a task.
TASK_FAILED: Final = "task_failed"
# How Spark and a task report a row of an input that does not fit.
_BAD_ROW: Final = re.compile(r"\w*CAST_INVALID\w*\b|: row \d+, field |, line \d+[:,] |\bRowError: ")

# How many of how many of Spark's tasks are done.
Advanced = Callable[[int, int], None]
Said = Callable[[str], None]


@dataclass(frozen=True)
class BackfillRequest:
    """A request for a backfill.

    whole    whether the inputs are known to have all rows that the span needs, as for a server's seam
    goes_on  whether a server still receives rows: windows of rows that are not full yet are not emitted
    """

    flow: Flow
    inputs: Mapping[str, Input]
    out: str
    span: Slice = ALWAYS
    mode: Mode = "auto"
    tasks: int | None = None
    master: str | None = None
    functions: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    whole: bool = False
    goes_on: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """How it is to be split."""
        return {"mode": self.mode, "tasks": self.tasks}

    def identity(self) -> dict[str, Any]:
        """The identity of a backfill: equal if an interrupted one can be resumed."""
        flow = self.flow
        sql = [stream.sql or repr(stream) for stream in flow.catalog.streams.values()]
        sql += [query.sql or repr(query) for query in flow.catalog.queries.values()]
        return {
            "query": flow.name,
            "sql": sql,
            "equality": flow.equality,
            "update_key": None if flow.query.update_key is None else list(flow.query.update_key),
            "from_us": self.span.from_us,
            "to_us": self.span.to_us,
            "inputs": [one.identity() for one in self.inputs.values()],
        }


def start(wanted: BackfillRequest, say: Said, advanced: Advanced) -> dict[str, Any]:
    """Run a backfill, or the rest of one; its manifest. A failed one can be resumed, or leaves no files."""
    place = Destination(wanted.out)
    there = place.path.exists() and place.plan() is None
    try:
        return compute(wanted, say, advanced)
    except Refuse as error:
        if error.code == BAD_ROW:
            # Its input will be another one when it is mended.
            place.abandon(keep_folder=there)
        elif error.code == TASK_FAILED and place.plan() is not None:
            text = f"{error.text}. Finished tasks stay in {wanted.out}: start again with the same flags to continue"
            raise Refuse(text, code=error.code) from None
        raise


def compute(wanted: BackfillRequest, say: Said, advanced: Advanced) -> dict[str, Any]:
    """The same, without cleaning up after a failure."""
    place = Destination(wanted.out)
    wanted = as_it_began(wanted, place.plan(), say)
    check_beforehand(wanted)
    manifest = place.manifest()
    if manifest is not None:
        say(f"{wanted.out}: this backfill is already done, {counted(manifest['rows'], 'row')}")
        return manifest
    if all(one.known for one in wanted.inputs.values()) and [*wanted.flow.streams] == base_streams(wanted.flow):
        _refuse_nothing(times_of(wanted.inputs.values()), wanted)
    try:
        with in_plain_words(), opened_session(wanted.master, dict(wanted.settings)) as session:
            return _run(wanted, session, place, say, advanced)
    except Refuse as error:
        if error.code == BAD_ROW:
            say("a row of the input does not match the stream; searching for its position")
            raise _located(error, wanted) from None
        raise


def check_beforehand(wanted: BackfillRequest) -> None:
    """Refuse errors that are known before Spark or anything else starts."""
    check_spark()
    check_destination(wanted.out, [one.path for one in wanted.inputs.values() if one.format != "table"])
    begun = Destination(wanted.out).begun(wanted.identity())
    if begun is None:
        # Whether the requested split is possible does not depend on the rows.
        plan_split(wanted.flow, Extent(0, 2), mode=wanted.mode, tasks=2)
    else:
        check_asked(begun, wanted)


def _located(error: Refuse, wanted: BackfillRequest) -> Refuse:
    """The error in a row, with its file and line, if the reader of `millrace run` refuses it too."""
    try:
        refuse_bad_rows(wanted.inputs.values(), wanted.flow)
    except Refuse as found:
        return Refuse(found.text, code=BAD_ROW)
    paths = ", ".join(one.path for one in wanted.inputs.values())
    return Refuse(f"{paths}: {error.text}", code=BAD_ROW)


def as_it_began(wanted: BackfillRequest, plan: Mapping[str, Any] | None, say: Said) -> BackfillRequest:
    """A resumed backfill reads the files that it started with: an archive may have more by now."""
    if plan is None:
        return wanted
    kept = {one["stream"]: one["files"] for one in plan["identity"]["inputs"]}
    inputs = {}
    for name, one in wanted.inputs.items():
        files = {tuple(file) for file in kept.get(name, ())}
        parts = tuple(part for part in one.parts if (part.path, part.size, part.changed_ns) in files)
        if len(parts) == len(files) < len(one.parts):
            newer = counted(len(one.parts) - len(parts), "newer file")
            say(f"note: {name}: ignoring {newer}: this backfill started without")
            one = replace(one, parts=parts)
        inputs[name] = one
    return replace(wanted, inputs=inputs)


def _refuse_nothing(times: Times, wanted: BackfillRequest) -> None:
    """Refuse a span on which no row bears, with the span of those that there are."""
    if times.extent(*wanted.span.reads(margins_of(wanted.flow).widest)) is None:
        whole = times.extent(ALWAYS.from_us, ALWAYS.to_us)
        there = (
            "the inputs have no rows" if whole is None else f"the inputs have rows {_span(whole.from_us, whole.to_us)}"
        )
        raise Refuse(f"no rows {span_words(wanted.span)}; {there}", code="no_rows")


def _span(from_us: int, to_us: int) -> str:
    return span_words(Slice(from_us, to_us))


def _run(
    wanted: BackfillRequest,
    session: SparkSession,
    place: Destination,
    say: Said,
    advanced: Advanced,
) -> dict[str, Any]:
    ship(session)
    flow = wanted.flow
    inputs = {
        name: read_spark_table(session, one, flow.catalog.stream(name)) if one.format == "table" else one
        for name, one in wanted.inputs.items()
    }
    tasks = wanted.tasks or default_tasks(session)
    found = place.plan()
    if found is None:
        times = read_times(session, inputs, flow)
        _refuse_nothing(times, wanted)
        split = choose_split(flow, times, wanted.span, wanted.mode, tasks)
        place.begin(wanted.identity(), split.to_data(), wanted.asked)
    else:
        split = kept_split(flow, found["split"], wanted)
    for line in plan_words(wanted, split):
        say(line)
    done = sorted(place.done())
    if done:
        say(f"continuing: {len(done)} of {split.tasks} tasks are done")
    job = job_of(flow, split, wanted.functions, goes_on=wanted.goes_on)
    if len(done) < split.tasks:
        packed = packages(job, session, inputs, done)
        watched(session, lambda: write_frame(job, packed, wanted.out, done).collect(), advanced)
    for number in sorted(set(range(split.tasks)) - place.done().keys()):
        # Spark starts no task for no rows.
        write_task(job, number, (), wanted.out)
    return place.finish(flow.schema)


def check_asked(begun: Mapping[str, Any], wanted: BackfillRequest) -> None:
    """Refuse to resume with tasks that differ from the requested ones."""
    split, asked = begun["split"], {"mode": "auto", "tasks": None, **begun.get("asked", {})}
    if wanted.mode not in ("auto", asked["mode"], split["how"]):
        _refuse_other(wanted, "--mode", f"is split {how_words(split['how'])}")
    if wanted.tasks not in (None, asked["tasks"], split["tasks"]):
        _refuse_other(wanted, "--tasks", f"has {counted(split['tasks'], 'task')}")


def _refuse_other(wanted: BackfillRequest, flag: str, told: str) -> NoReturn:
    value = wanted.asked[flag.removeprefix("--")]
    raise Refuse(
        f"{flag} {value}: the backfill in {wanted.out} {told}; omit {flag} to continue it",
        code="destination",
    )


def kept_split(flow: Flow, kept: Mapping[str, Any], wanted: BackfillRequest) -> Split:
    """The split of a backfill that has started, so that its tasks stay the same."""
    slices = kept["slices"] or [[wanted.span.from_us, wanted.span.to_us]] * kept["tasks"]
    keys = dict(keys_of(flow).streams) if kept["how"] == "key" else {}
    return Split(kept["how"], tuple(Slice(*one) for one in slices), margins_of(flow), kept["reason"], keys, wanted.span)


def plan_words(wanted: BackfillRequest, split: Split) -> list[str]:
    """The plan as people read it."""
    flow = wanted.flow
    notes = [f"note: {note}" for note in notes_of(flow, wanted.inputs, wanted.span.to_us, whole=wanted.whole)]
    head = f"backfill of {flow.name} {span_words(wanted.span)}, equality {flow.equality}"
    inputs = [f"input: {one.stream} from {one.path} ({_files(one)})" for one in wanted.inputs.values()]
    return [head, *inputs, *split.words(), *notes]


def _files(one: Input) -> str:
    if one.format == "table":
        return "a table"
    count = counted(len(one.parts), "file")
    if not one.known:
        return count
    return f"{count}, {counted(sum(rows for part in one.parts for _, _, rows in part.spans or ()), 'row')}"


# -- watching Spark ----------------------------------------------------------------------------------------------------


def watched(session: SparkSession, action: Callable[[], Any], advanced: Advanced) -> None:
    """Run an action of Spark, and report its progress; stopping this stops the action."""
    from pyspark import InheritableThread

    context = session.sparkContext
    group = f"millrace-{uuid.uuid4().hex}"
    failures: list[BaseException] = []

    def act() -> None:
        context.setJobGroup(group, "millrace backfill", interruptOnCancel=True)
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread: threading.Thread = InheritableThread(target=act, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            advanced(*_progress(context.statusTracker(), group))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    if failures:
        raise failures[0]


def _progress(tracker: Any, group: str) -> tuple[int, int]:
    """Tasks done and tasks in all of a group's stages."""
    done = total = 0
    for number in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(number)
        for stage in () if job is None else job.stageIds:
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
    return done, total


@contextmanager
def in_plain_words() -> Iterator[None]:
    """An error of Spark as one line."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JNetworkError, ConnectionError):
        raise Refuse(
            "the Java process of Spark has ended; was it killed, perhaps for its memory?", code=TASK_FAILED
        ) from None
    except (PySparkException, Py4JError) as error:
        raise _told(error) from None


def _told(error: Exception) -> Refuse:
    """The error of a task, without Java's frames."""
    text = str(error)
    for line in reversed(text.splitlines()):
        match = re.match(r"\s*(?:\w+\.)*(?:Refuse|RowError|FunctionsError|AssertionError): (.+)", line)
        if match is not None:
            return Refuse(match[1].strip(), code=_code(line))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Of a chain of causes the last is the reason; Spark's own have a name in brackets.
    causes = [line.partition(": ")[2] for line in lines if line.startswith("Caused by: ")]
    causes += [line for line in lines if re.match(r"\[[A-Z_.0-9]+\]", line)]
    reason = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return Refuse(f"Spark failed: {reason[:400]}", code=_code(reason))


def _code(text: str) -> str:
    return BAD_ROW if _BAD_ROW.search(text) else TASK_FAILED


def status(out: str) -> dict[str, Any]:
    """The progress of a backfill."""
    place = Destination(out)
    plan = place.plan()
    if plan is None:
        raise Refuse(f"{out} is not a backfill (no {PLAN}); expected the directory of --out", code="bad_path")
    manifest = place.manifest()
    done = place.done()
    return {
        "query": plan["identity"]["query"],
        "split": plan["split"]["how"],
        "tasks": plan["split"]["tasks"],
        "tasks_done": len(done),
        "rows": sum(told["rows"] for told in done.values()),
        "finished": None if manifest is None else manifest["finished"],
        "began": plan["began"],
    }
