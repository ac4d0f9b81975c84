"""Update queues as the paper defines them: a list of queued keys, a dict of the newest tuples, staleness tick by tick.

Slow; shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

Key = Any


@dataclass
class Pending:
    """The pending updates of a key: the arrival of the first one since the key was served, and the newest one."""

    since: int
    newest: Any


@dataclass
class QueueOracle:
    """The queue of keys under one policy; an update is `(key, event time, value)`."""

    policy: str
    cost: float = 0.0
    line: list[Key] = field(default_factory=list)
    pending: dict[Key, Pending] = field(default_factory=dict)
    newest_time: dict[Key, int] = field(default_factory=dict)
    last_arrival: dict[Key, int] = field(default_factory=dict)
    mean_gap: dict[Key, int] = field(default_factory=dict)
    superseded: int = 0
    cut: int = 0  # a moving mean of the services that went to keys that cut the line, of 2**30

    def enqueue(self, key: Key, time: int, value: Any, now: int) -> None:
        if key in self.newest_time and time < self.newest_time[key]:
            self.superseded += 1
            return
        self.newest_time[key] = time
        residents = len(self.line)
        if key in self.last_arrival:
            gap = max(0, now - self.last_arrival[key])
            known = self.mean_gap.get(key)
            # A moving mean in whole microseconds: an eighth of it is the newest gap.
            self.mean_gap[key] = gap if known is None else (7 * known + gap) // 8
        self.last_arrival[key] = now
        # 2.5 times its rate, 1 / gap, is below 1 / (c * n) less the share of keys that have cut; as measured.
        free = 1.0 - self.cut / 2**30
        cuts = (
            self.policy == "linecutting"
            and self.cost > 0
            and self.mean_gap.get(key, 0) * max(free, 0.0) > 2.5 * self.cost * (residents + 1)
        )
        if key in self.pending:
            self.superseded += 1
            self.pending[key].newest = (key, time, value)
            if self.policy == "fifo":
                self.line.remove(key)
                self.line.append(key)
            elif cuts:
                if self.line[0] != key:
                    self._count_cut()
                self.line.remove(key)
                self.line.insert(0, key)
            return
        self.pending[key] = Pending(now, (key, time, value))
        self.line.insert(0 if cuts else len(self.line), key)
        if cuts:
            self._count_cut()

    def _count_cut(self) -> None:
        self.cut += 2**30 // (64 + len(self.line))

    def dequeue(self) -> Any:
        self.cut -= self.cut // (64 + len(self.line))
        key = self.line.pop(0)
        return self.pending.pop(key).newest


# -- a queue that knows its readers ------------------------------------------------------------------------------------


@dataclass
class DeadlineOracle(QueueOracle):
    """Serves the key whose age is the greatest multiple of the time until its next read, found by looking at all.

    `readers` are (interval, since, keys or None for all).
    """

    readers: list[tuple[int, int, Sequence[Key] | None]] = field(default_factory=list)

    def next_read(self, key: Key, now: int) -> int:
        nearest = now + max(interval for interval, _, _ in self.readers)
        looks = [(interval, since) for interval, since, keys in self.readers if keys is None or key in keys]
        if looks:
            nearest = min(self.first_after(interval, since, now) for interval, since in looks)
        return nearest

    @staticmethod
    def first_after(interval: int, since: int, now: int) -> int:
        at = since
        while at <= now:
            at += interval
        return at

    def serve(self, now: int) -> Any:
        if self.readers:
            done = now + round(self.cost)

            def urgency(key: Key) -> Fraction:
                return Fraction(max(0, now - self.pending[key].since) + 1, self.next_read(key, done) - now)

            most = max(self.line, key=urgency)
            self.line.remove(most)
            self.line.insert(0, most)
        return self.dequeue()


# -- a queue that chooses ----------------------------------------------------------------------------------------------


@dataclass
class LoadOracle:
    """Whether a queue appends or supersedes: everything that has happened is looked through again after each span."""

    span: int = 1_000_000
    enough: int = 1  # services that a span must have had while the queue was never empty
    mode: str = "append"
    # When, "in" or "out" and how many tuples, or "look" and whether anything waits.
    past: list[tuple[int, str, float]] = field(default_factory=list)
    start: int = 0
    started: int = 0  # the length of the past then, and whether anything waited
    waited: bool = False
    capacity: float = 0.0
    calm: int = 0
    modes: list[str] = field(default_factory=list)
    updates_then: int = 0  # when the span started
    superseded_then: int = 0

    def judge(self, now: int, updates: int, superseded: int, waits: bool) -> None:
        """The counts are those since the start."""
        if now - self.start < self.span:
            return
        span, spans = self.past[self.started :], (now - self.start) / self.span
        arrived = sum(count for _, what, count in span if what == "in")
        served = sum(count for _, what, count in span if what == "out")
        never_empty = self.waited and all(left for _, what, left in span if what == "look")
        if never_empty and served:
            if served < self.enough:
                return
            self.capacity = served / spans
        load = arrived / spans / self.capacity if self.capacity else 0.0
        new, hidden = updates - self.updates_then, superseded - self.superseded_then
        if self.mode == "append":
            if never_empty and served and load >= 0.9:
                self.turn()
        elif load <= 0.75 or (new and 64 * hidden <= new):
            self.calm += int(spans)
            if self.calm >= 3:
                self.turn()
        else:
            self.calm = 0
            self.capacity *= 1 + 1 / 64
        self.start, self.started, self.waited = now, len(self.past), waits
        self.updates_then, self.superseded_then = updates, superseded

    def turn(self) -> None:
        self.mode = "update" if self.mode == "append" else "append"
        self.modes.append(self.mode)
        self.calm = 0


@dataclass
class AutoOracle:
    """A queue that appends, or supersedes under overload. Updates are `(key, event time, value)`; times are
    microseconds."""

    load: LoadOracle
    queued: list[Any] = field(default_factory=list)  # while it appends
    newest: QueueOracle = field(default_factory=lambda: QueueOracle("inplace"))
    arrived: int = 0
    superseded_before: int = 0  # in earlier modes

    @property
    def waiting(self) -> int:
        return len(self.queued) if self.load.mode == "append" else len(self.newest.line)

    @property
    def superseded(self) -> int:
        return self.superseded_before + self.newest.superseded

    def enqueue(self, updates: Sequence[Any], now: int) -> None:
        mode = self.load.mode
        self.load.judge(now, self.arrived, self.superseded, self.waiting > 0)
        if self.load.mode != mode:
            self.turn(mode, now)
        for update in updates:
            self.put(update, now)
            self.load.past.append((now, "in", 1))
        self.arrived += len(updates)

    def put(self, update: Any, now: int) -> None:
        if self.load.mode == "append":
            self.queued.append(update)
        else:
            key, time, value = update
            self.newest.enqueue(key, time, value, now)

    def dequeue(self, limit: int, now: int) -> list[Any]:
        taken = []
        for _ in range(min(limit, self.waiting)):
            taken.append(self.queued.pop(0) if self.load.mode == "append" else self.newest.dequeue())
            self.load.past.append((now, "out", 1))
        self.load.past.append((now, "look", self.waiting))
        return taken

    def turn(self, before: str, now: int) -> None:
        left = self.queued if before == "append" else [self.newest.pending[key].newest for key in self.newest.line]
        self.superseded_before += self.newest.superseded
        self.queued, self.newest = [], QueueOracle("inplace")
        for update in left:
            self.put(update, now)
        self.load.superseded_then = self.superseded


# -- staleness, tick by tick -------------------------------------------------------------------------------------------


@dataclass
class QueueRun:
    """The result of a run of one server over a queue: order of service, staleness per key summed over the ticks."""

    served: list[tuple[int, Any]]
    queue: dict[Key, float]
    application: dict[Key, float]


def simulate(policy: str, arrivals: Sequence[tuple[int, Key]], cost: int, horizon: int) -> QueueRun:
    """One server that takes `cost` ticks per update. An update that arrives at the instant of a choice counts.

    A tick contributes its middle: staleness grows linearly between the instants of events.
    """
    queue = QueueOracle(policy, cost)
    keys = sorted({key for _, key in arrivals})
    left = list(arrivals)
    unseen: dict[Key, list[int]] = {key: [] for key in keys}  # arrivals whose result is not out
    waiting: dict[Key, list[int]] = {key: [] for key in keys}  # arrivals not served
    run = QueueRun([], dict.fromkeys(keys, 0.0), dict.fromkeys(keys, 0.0))
    serving: tuple[int, Key, list[int]] | None = None
    for tick in range(horizon):
        while left and left[0][0] <= tick:
            at, key = left.pop(0)
            queue.enqueue(key, at, len(left), at)
            unseen[key].append(at)
            waiting[key].append(at)
        if serving is not None and serving[0] == tick:
            _, key, shown = serving
            for at in shown:
                unseen[key].remove(at)
            serving = None
        if serving is None and queue.line:
            update = queue.dequeue()
            key = update[0]
            serving = (tick + cost, key, waiting[key])
            waiting[key] = []
            run.served.append((tick, update))
        for key in keys:
            if waiting[key]:
                run.queue[key] += tick + 0.5 - min(waiting[key])
            if unseen[key]:
                run.application[key] += tick + 0.5 - min(unseen[key])
    return run


# -- the best that any order of service could do -----------------------------------------------------------------------

# For each key, how long it has been pending; None if it is not. Only this distinguishes keys with equal update rates.
Ages = tuple[int | None, ...]


def least_expected_staleness(keys: int, cost: int, horizon: int, *, free: bool) -> Fraction:
    """The expected total queue staleness when each tick brings an update of any key, all equally likely (section 5.2).

    With `free` choice the least staleness over all ways to choose the next key, with full knowledge of the past.
    Without it the key that has been pending longest is served.
    """

    def later(ages: Ages, ticks: int) -> Iterator[tuple[Fraction, Ages, Fraction]]:
        """Every course of this many ticks: its probability, the pending keys at its end, the staleness that it adds."""
        if not ticks:
            yield Fraction(1), ages, Fraction(0)
            return
        for key in range(keys):
            met = tuple(0 if at == key and age is None else age for at, age in enumerate(ages))
            grown = sum(Fraction(2 * age + 1, 2) for age in met if age is not None)
            following = tuple(None if age is None else age + 1 for age in met)
            for chance, then, more in later(following, ticks - 1):
                yield chance / keys, then, grown + more

    @cache
    def value(ages: Ages, left: int) -> Fraction:
        if left <= 0:
            return Fraction(0)
        pending = [at for at, age in enumerate(ages) if age is not None]
        if not pending:
            return mean(ages, 1, left)
        oldest = max(pending, key=lambda at: ages[at] or 0)
        choices = pending if free else [oldest]
        return min(mean(served(ages, at), min(cost, left), left) for at in choices)

    def served(ages: Ages, key: int) -> Ages:
        return tuple(None if at == key else age for at, age in enumerate(ages))

    def mean(ages: Ages, ticks: int, left: int) -> Fraction:
        return sum(
            (chance * (grown + value(alike(then), left - ticks)) for chance, then, grown in later(ages, ticks)),
            start=Fraction(0),
        )

    def alike(ages: Ages) -> Ages:
        """The identity of keys does not matter."""
        return tuple(sorted(ages, key=lambda age: -1 if age is None else age))

    return value((None,) * keys, horizon)


# -- windows -----------------------------------------------------------------------------------------------------------


@dataclass
class CommittedWindow:
    """A window that was committed to: the tick of the commit, the processed tuples, and the tick of its result."""

    key: Key
    start: int
    commit: int
    tuples: list[int] = field(default_factory=list)
    output: int | None = None


@dataclass
class WindowsRun:
    """The result of a run over windows. `stale` is the application's staleness per tick, summed over the keys."""

    processed: list[CommittedWindow]
    superseded: int
    waiting: dict[Key, int]
    stale: list[int]


class WindowsOracle:
    """Windows by enumeration: every tuple stays in memory, and every window is examined again at every tick."""

    def __init__(self, commit: str, policy: str, size: int, slide: int, begin: int) -> None:
        self.commit, self.policy, self.size, self.slide, self.begin = commit, policy, size, slide, begin
        self.times: dict[Key, list[int]] = {}
        self.updates: dict[Key, list[tuple[int, int]]] = {}  # windows that are updates, and the tick of the change
        self.closings: dict[Key, list[tuple[int, int]]] = {}
        self.line: list[Key] = []
        self.pending: dict[Key, int] = {}
        self.ready: list[CommittedWindow] = []
        self.idle: list[CommittedWindow] = []

    def windows(self, key: Key) -> list[int]:
        """The starts of all windows with a tuple."""
        starts = {
            start
            for time in self.times[key]
            for start in range(time - self.size + 1, time + 1)
            if start % self.slide == 0 and start >= self.begin
        }
        return sorted(starts)

    def arrived(self, key: Key, start: int) -> bool:
        return max(self.times[key]) >= start + self.size - 1

    def arrive(self, tick: int, key: Key) -> None:
        self.times.setdefault(key, []).append(tick)
        known = [start for start, _ in self.updates.setdefault(key, [])]
        closed = [start for start, _ in self.closings.setdefault(key, [])]
        closing = [start for start in self.windows(key) if self.arrived(key, start) and start not in closed]
        self.closings[key] += [(start, tick) for start in closing]
        new = closing if self.commit == "lazy" else [start for start in self.windows(key) if start not in known]
        if new:
            self.updates[key] += [(start, tick) for start in new]
            self.wait(key, new)
        for window in list(self.idle):
            if window.key == key and (self.left(window) or self.arrived(key, window.start)):
                self.idle.remove(window)
                self.ready.append(window)

    def wait(self, key: Key, new: Sequence[int]) -> None:
        """New windows of a key are updates."""
        if key not in self.pending:
            self.line.append(key)
        elif self.policy == "fifo":
            self.line.remove(key)
            self.line.append(key)
        self.pending[key] = max(new)

    def take(self, key: Key) -> int:
        """Take a key out of line; the window that is committed to."""
        self.line.remove(key)
        return self.pending.pop(key)

    def left(self, window: CommittedWindow) -> list[int]:
        """The tuples of a window that have arrived and are not processed."""
        inside = [time for time in self.times[window.key] if window.start <= time < window.start + self.size]
        return inside[len(window.tuples) :]

    def next_tuple(self, tick: int) -> tuple[list[CommittedWindow], CommittedWindow | None, list[CommittedWindow]]:
        """Serve one tuple; return the windows that were over before it, its window, and the commits for it."""
        over: list[CommittedWindow] = []
        committed: list[CommittedWindow] = []
        while True:
            if not self.ready:
                busy = {window.key for window in self.idle}
                key = next((key for key in self.line if key not in busy), None)
                if key is None:
                    return over, None, committed
                committed.append(CommittedWindow(key, self.take(key), tick))
                self.ready.append(committed[-1])
            window = self.ready[0]
            if self.left(window):
                window.tuples.append(self.left(window)[0])
                return over, window, committed
            self.ready.pop(0)
            (over if self.arrived(window.key, window.start) else self.idle).append(window)

    def settle(self) -> list[CommittedWindow]:
        """Examine the first window in processing again: it may be over, or have no tuple to process at present."""
        over: list[CommittedWindow] = []
        while self.ready and not self.left(self.ready[0]):
            window = self.ready.pop(0)
            (over if self.arrived(window.key, window.start) else self.idle).append(window)
        return over


class AutoWindowsOracle(WindowsOracle):
    """LAZY: a key's windows wait for each other, or only the newest counts, by the load of past spans of some ticks."""

    def __init__(self, span: int, enough: int, size: int, slide: int, begin: int) -> None:
        super().__init__("lazy", "inplace", size, slide, begin)
        self.load = LoadOracle(span, enough)
        self.behind: dict[Key, list[int]] = {}

    @property
    def superseded(self) -> int:
        waiting = len(self.pending) + sum(map(len, self.behind.values()))
        return sum(map(len, self.updates.values())) - self.commits - waiting

    commits = 0

    def judge(self, tick: int) -> None:
        """Tuples arrive: a span may be over."""
        mode = self.load.mode
        self.load.judge(tick, sum(map(len, self.updates.values())), self.superseded, self.servable)
        if mode == "append" and self.load.mode == "update":
            self.pending |= {key: behind[-1] for key, behind in self.behind.items() if behind}
            self.behind.clear()
            self.load.superseded_then = self.superseded

    def arrive(self, tick: int, key: Key) -> None:
        self.load.past.append((tick, "in", self.size / self.slide))
        super().arrive(tick, key)

    def wait(self, key: Key, new: Sequence[int]) -> None:
        if self.load.mode == "update":
            super().wait(key, new)
            return
        behind = self.behind.setdefault(key, [])
        behind += new
        self.next_of(key)

    def next_of(self, key: Key) -> None:
        if key not in self.pending and self.behind.get(key):
            self.pending[key] = self.behind[key].pop(0)
            self.line.append(key)

    def take(self, key: Key) -> int:
        self.commits += 1
        start = super().take(key)
        self.next_of(key)
        return start

    @property
    def servable(self) -> bool:
        busy = {window.key for window in self.ready if self.left(window)}
        return bool(busy) or any(key not in busy for key in self.line)

    def next_tuple(self, tick: int) -> tuple[list[CommittedWindow], CommittedWindow | None, list[CommittedWindow]]:
        over, serving, committed = super().next_tuple(tick)
        if serving is not None:
            self.load.past.append((tick, "out", 1))
        self.load.past.append((tick, "look", self.servable))
        return over, serving, committed


def simulate_windows(
    commit: str,
    policy: str,
    size: int,
    slide: int,
    arrivals: Sequence[tuple[int, Key]],
    cost: int,
    horizon: int,
    *,
    begin: int = 0,
    auto: AutoWindowsOracle | None = None,
) -> WindowsRun:
    """One server that takes `cost` ticks per tuple. A tuple at the instant of a choice counts (section 6)."""
    oracle = auto or WindowsOracle(commit, policy, size, slide, begin)
    run = WindowsRun([], 0, {}, [])
    shown: dict[Key, int] = {}
    leaving: list[CommittedWindow] = []
    free = 0
    left = list(arrivals)
    for tick in range(horizon):
        if auto is not None and left and left[0][0] == tick:
            auto.judge(tick)
        while left and left[0][0] == tick:
            oracle.arrive(*left.pop(0))
        if free <= tick:
            for window in leaving:
                window.output, shown[window.key] = tick, window.start
            leaving = []
            over, serving, committed = oracle.next_tuple(tick)
            run.processed += committed
            for window in over:
                # It ended without another tuple: its result needed no processing.
                window.output, shown[window.key] = tick, window.start
            if serving is not None:
                free = tick + cost
                leaving = oracle.settle()
        pending = {
            key: [at for start, at in closings if start > shown.get(key, -(2**63))]
            for key, closings in oracle.closings.items()
        }
        run.stale.append(sum(tick - min(ages) for ages in pending.values() if ages))
    total = sum(len(updates) for updates in oracle.updates.values())
    run.superseded = total - len(run.processed) - len(oracle.pending) if auto is None else auto.superseded
    run.waiting = dict(oracle.pending)
    return run
