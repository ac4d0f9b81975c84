"""The policy of an edge as plain data: all tuples or the newest ones; and the queue of a policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from millrace.operators.frame.inlet import picked
from millrace.operators.frame.windows import TimeWindow
from millrace.operators.queues.appending import AppendQueue, SheddingQueue
from millrace.operators.queues.auto import AutoQueue
from millrace.operators.queues.queue import Queue
from millrace.operators.queues.update import UpdateQueue
from millrace.operators.queues.windows import Commit, WindowQueue
from millrace.protocol import Refuse, Schema
from millrace.values.definitions import Definition
from millrace.values.eventtime import MIN_TIME

QueueKind = Literal["append", "auto", "fifo", "inplace", "linecutting", "deadline"]


@dataclass(frozen=True, slots=True)
class EdgeSpec(Definition):
    """One input of an operator.

    kind     `append` keeps everything; the others keep the newest per update key and choose the next key to serve,
             `auto` only under overload
    key      positions of the update key in the input's rows; none means one key for all tuples
    window   updates are windows of this kind (UPS, section 6), committed to LAZY or EAGER as `commit` says
    shed     of an appending edge: the greatest number of tuples, a random choice beyond that
    queued   an appending edge with a separate queue, because it was an update queue before, or the operator in front
             of it was removed; it keeps everything like any other
    keyed    it was an update queue before, and can return to its key
    columns  positions of the fields that the input reads, if its arc has got more since; else it reads all
    names    the names under which it reads them, if its arc has renamed one since
    """

    kind: QueueKind = "append"
    key: tuple[int, ...] = ()
    window: TimeWindow | None = None
    commit: Commit | None = None
    shed: int | None = None
    queued: bool = field(default=False, compare=False)
    keyed: bool = field(default=False, compare=False)
    columns: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None

    @property
    def plain(self) -> bool:
        """Whether the arc's head pointer suffices."""
        return self is APPEND or (self.unnarrowed == APPEND and not self.queued)

    @property
    def unnarrowed(self) -> EdgeSpec:
        """The same edge to a reader of all fields."""
        return replace(self, columns=None, names=None)

    def reads(self, schema: Schema) -> Schema:
        """The fields that it reads."""
        return picked(schema, self.columns, self.names)

    def within(self, before: Schema, after: Schema) -> EdgeSpec:
        """The same fields, under the same names, of a wider schema, or of one with other names."""
        renamed = len(before) == len(after)
        places = [at if renamed else after.names.index(name) for at, name in enumerate(before.names)]
        columns = tuple(places if self.columns is None else [places[at] for at in self.columns])
        names: tuple[str, ...] | None = tuple(self.reads(before).names)
        if names == tuple(after.names[at] for at in columns):
            names = None
        whole = names is None and columns == tuple(range(len(after)))
        return replace(self, columns=None if whole else columns, names=names)

    @property
    def updates(self) -> bool:
        """Whether newer tuples supersede older ones here, always or at times."""
        return self.kind != "append"

    def check(self, schema: Schema, where: str) -> None:
        """Refuse an invalid policy."""
        if any(not 0 <= at < len(schema) for at in self.key):
            raise Refuse(f"{where}: the update key has position {max(self.key)}, the input has {len(schema)} columns")
        if (self.window is None) != (self.commit is None):
            raise Refuse(f"{where}: an update queue of windows has both a window and LAZY or EAGER, got one of them")
        if self.window is not None and self.kind == "append":
            raise Refuse(
                f"{where}: its updates are windows, LAZY or EAGER, so its kind is auto, fifo, inplace, linecutting or "
                "deadline, got append"
            )
        if self.commit == "eager" and self.kind == "auto":
            raise Refuse(
                f"{where}: auto processes whole windows one after the other while there is no overload, but EAGER "
                "starts windows before they are complete: expected LAZY with auto, or another kind"
            )
        if self.shed is not None and self.updates:
            raise Refuse(f"{where}: SHED is for edges that append; an update queue of kind {self.kind} sheds nothing")
        if self.shed is not None and not 0 < self.shed < 2**31 - 1:
            raise Refuse(f"{where}: SHED RANDOM takes a number of tuples from 1 to 2147483646, got {self.shed}")


APPEND = EdgeSpec()


def build_queue(edge: EdgeSpec, schema: Schema, *, begin_us: int | None, seed: int = 0) -> Queue:
    """The queue of an edge."""
    if edge.shed is not None:
        return SheddingQueue(schema, edge.shed, seed=seed)
    if edge.kind == "append":
        return AppendQueue()
    if edge.window is not None:
        assert edge.commit is not None
        begin = MIN_TIME if begin_us is None else begin_us
        return WindowQueue(schema, edge.key, edge.window, edge.commit, edge.kind, begin_us=begin)
    if edge.kind == "auto":
        return AutoQueue(schema, edge.key)
    return UpdateQueue(schema, edge.key, edge.kind)
