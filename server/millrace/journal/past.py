"""A server's past: its state at any moment that its data directory still has, and the steps that followed.

Rule: this only reads. It takes no lock and writes nothing, so it also works while the server runs; what the server
removes meanwhile is reported. A moment is a time of the server's clock: the state at it is that after the last step
that was not later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from millrace.engine.engine import Engine
from millrace.engine.events import Effects
from millrace.journal.checkpoints import Checkpoint, CheckpointError, CheckpointRefused, Checkpoints
from millrace.journal.disk import JOURNAL_FOLDER, RealDisk
from millrace.journal.errors import JournalError, NotRetained
from millrace.journal.layout import segment_lsns
from millrace.journal.reader import JournalReader
from millrace.journal.replay import Untimed
from millrace.journal.steps import Start, Step, StepReader, is_step, time_of
from millrace.protocol import MillraceError
from millrace.protocol.timestamps import format_timestamp
from millrace.values.functions.tape import Tape, played


class PastError(MillraceError):
    """The past cannot be read."""

    code = "past"


class Moment(NamedTuple):
    """A checkpoint: the number of its last step, and the time when it was made."""

    lsn: int
    at_us: int


class Span(NamedTuple):
    """The moments that can be restored, both ends included."""

    from_us: int
    to_us: int

    @property
    def text(self) -> str:
        return f"from {format_timestamp(self.from_us)} to {format_timestamp(self.to_us)}"


class Past:
    """The past that a data directory has."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir
        self._checkpoints = Checkpoints(data_dir)
        self._disk = RealDisk(data_dir / JOURNAL_FOLDER)

    def moments(self) -> list[Moment]:
        """The complete checkpoints whose later steps are all there, oldest first."""
        lsns, complete = segment_lsns(self._disk), self._checkpoints.complete()
        if not lsns or not complete:
            raise PastError(
                f"{self.folder} has no past: name the data directory of a server that this version has started"
            )
        found = []
        for lsn in complete:
            if lsn + 1 >= lsns[0]:
                try:
                    found.append(Moment(lsn, self._checkpoints.control(lsn)["at_us"]))
                except CheckpointRefused:
                    raise
                except CheckpointError:
                    continue  # damaged, or removed since the folder was listed: an older one leads there, too
        if not found:
            raise PastError(f"{self.folder} has no checkpoint that can be read: run `millrace journal check`")
        return found

    def span(self, alive_us: int | None = None) -> Span:
        """From when to when the past reaches. A server that has been running since its last step knows until when
        nothing has happened (`alive_us`)."""
        moments = self.moments()
        return Span(moments[0].at_us, max(moments[-1].at_us, self._newest_us(), alive_us or 0))

    def refuse_outside(self, at_us: int, span: Span) -> None:
        if not span.from_us <= at_us <= span.to_us:
            raise PastError(
                f"{format_timestamp(at_us)} is not in the recorded past of {self.folder}, which reaches {span.text}: "
                "`[journal] keep` decides how far back",
                code="not_retained",
            )

    def open(self, at_us: int) -> Playback:
        """The server's engine at the newest checkpoint that is not later than this moment."""
        moments = [moment for moment in self.moments() if moment.at_us <= at_us]
        if not moments:
            self.refuse_outside(at_us, self.span())
        return Playback(self._read(moments), self._disk)

    def at(self, at_us: int) -> Playback:
        """The server's engine at this moment."""
        playback = self.open(at_us)
        try:
            for _ in playback.steps(at_us):
                pass
        except BaseException:
            playback.close()
            raise
        return playback

    def _read(self, moments: list[Moment]) -> Checkpoint:
        """The newest of these that can be read."""
        for moment in reversed(moments):
            try:
                return self._checkpoints.read(moment.lsn)
            except CheckpointRefused:
                raise
            except CheckpointError:
                if moment is moments[0]:
                    raise
        raise AssertionError("there is a checkpoint")

    def _newest_us(self) -> int:
        """The time of the newest step."""
        reader = JournalReader(self._disk)
        try:
            for first in reversed(segment_lsns(self._disk)):
                newest = b""
                for record in reader.records(first):
                    if is_step(record.payload):
                        newest = record.payload
                if newest:
                    return time_of(newest)
        except NotRetained:  # so much has been written meanwhile that the segment has gone
            return self._newest_us()
        finally:
            reader.close()
        return 0


class Playback:
    """An engine at a moment of the past, and the steps after it.

    engine      as it was; nobody else steps it
    checkpoint  the number of the step that it was restored from, and `control` the control state then
    lsn         the number of the newest record that it has taken, and `at_us` the time of the newest step
    """

    def __init__(self, checkpoint: Checkpoint, disk: RealDisk) -> None:
        self.checkpoint = self.lsn = checkpoint.lsn
        self.control: dict[str, Any] = checkpoint.control
        self.at_us: int = checkpoint.control["at_us"]
        self.engine = restored(checkpoint)
        self._disk = disk
        self._journal = JournalReader(disk, server_id=checkpoint.control["server"])
        self._records = self._journal.read(self.lsn + 1)
        self._steps = StepReader(self.engine)
        # What has been read and not taken: starts of servers, and the step after them with its number.
        self._starts: list[Start] = []
        self._next: tuple[int, Step] | None = None

    def steps(self, until_us: int) -> Iterator[tuple[Step, Effects]]:
        """Take the steps up to this moment, one by one: each with its effects."""
        while (found := self._ahead()) is not None and found[1].now_us <= until_us:
            lsn, step = found
            for start in self._starts:
                for name, limit in start.limits.items():
                    setattr(self.engine, name, limit)
            self._starts.clear()
            self._next = None
            try:
                effects = self.engine.step(step.now_us, step.events, budget=step.budget, results=step.results)
            except Exception as error:
                raise self._failed(lsn, error) from error
            self.lsn, self.at_us = lsn, max(step.now_us, self.at_us)
            yield step, effects

    @property
    def restarts(self) -> bool:
        """Whether the server ended after the newest step taken, and another start follows."""
        self._ahead()
        return bool(self._starts)

    def _ahead(self) -> tuple[int, Step] | None:
        """The next step; None at the end of the journal."""
        while self._next is None:
            try:
                found = next(self._records, None)
                if found is None:
                    return None
                step = self._steps.read(found[1])
            except NotRetained as error:
                raise NotRetained(f"{error.text} by the running server: start again, closer to the present") from None
            except JournalError:
                raise
            except Exception as error:
                raise self._failed(self.lsn + 1 if found is None else found[0], error) from error
            if isinstance(step, Start):
                self._starts.append(step)
            elif isinstance(step, Step):
                self._next = found[0], step
        return self._next

    def _failed(self, lsn: int, error: Exception) -> PastError:
        reason = error.text if isinstance(error, MillraceError) else repr(error)
        return PastError(
            f"record {lsn} of {self._disk.folder} cannot be replayed: {reason}; `millrace journal show --from {lsn} "
            "--limit 1` prints it"
        )

    def close(self) -> None:
        self._journal.close()


def restored(checkpoint: Checkpoint) -> Engine:
    """The engine of a checkpoint."""
    try:
        with played(Tape({})):  # a function that has gone may be needed by recorded steps alone
            return Engine.restore(checkpoint.state, stopwatch=Untimed())
    except Exception as error:
        reason = error.text if isinstance(error, MillraceError) else repr(error)
        raise PastError(
            f"the checkpoint after step {checkpoint.lsn} cannot be restored: {reason}; Millrace "
            f"{checkpoint.control['version']} wrote it: use that version"
        ) from error
