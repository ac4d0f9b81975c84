"""The view of `millrace top` and the effect of keys, without a terminal.

Rule: rows are made from two looks at the API, the state of the view from key presses; drawing is another file's. A
value that cannot be known yet is None, and None sorts last whichever way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from millrace.protocol.admin.operators import ComponentView, InputView, OperatorView, QueueView
from millrace.protocol.admin.server import MemoryView, OverloadView, ServerView
from millrace.protocol.words import counted, readable_bytes

Row = dict[str, Any]
Level = Literal["components", "operators", "operator"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look: the server's clock, the API's lists, a line about its standbys or the server that it follows, and its
    memory and load."""

    at_us: int
    components: Sequence[ComponentView]
    operators: Sequence[OperatorView]
    standing: str | None = None
    memory: MemoryView | None = None
    overload: OverloadView | None = None


def standing(server: ServerView) -> str | None:
    """A line about the server's standbys, or the server that it follows; None: it has nothing to do with either."""
    follows = server.follows
    if follows is not None:
        lag = f"{counted(follows.lag_steps, 'step')}, {follows.lag_seconds:.1f} s behind"
        state = "connected" if follows.connected else f"NOT CONNECTED ({follows.error or 'connecting'})"
        return f"standby of {follows.server}: {state}, {lag}"
    found = [
        f"{one.peer} copies the data directory"
        if one.copying
        else f"{one.peer} {'lacks ' + counted(one.lag_steps, 'step') if one.connected else 'IS GONE'}"
        for one in server.standbys
    ]
    return f"standby: {', '.join(found)}" if found else None


def load_words(now: Snapshot) -> str:
    """The server's memory and load in a line; nothing of a server that does not say."""
    memory, overload = now.memory, now.overload
    if memory is None or overload is None:
        return ""
    of = "" if memory.budget_bytes is None else f" of {readable_bytes(memory.budget_bytes)}"
    words = f"memory: {readable_bytes(memory.used_bytes)}{of}, load: {percent(overload.load)}"
    doing = DOING.get(overload.mode)
    return words if doing is None else f"{words}, OVERLOAD: {doing}"


# What a server does about too much work.
DOING: Final = {"wait": "feeds wait", "shed": "rows are dropped", "fail": "queries fail"}


# -- rows --------------------------------------------------------------------------------------------------------------


def operator_rows(before: Snapshot | None, now: Snapshot) -> list[Row]:
    """A row per operator. Rates are of the time between the looks; one that is new has none yet."""
    known = {} if before is None else {operator.name: operator for operator in before.operators}
    seconds = 0.0 if before is None else (now.at_us - before.at_us) / 1e6
    return [_operator_row(known.get(operator.name), operator, seconds) for operator in now.operators]


def _update_queues(inputs: Sequence[InputView]) -> list[QueueView]:
    """The queues in which a newer row replaces an older one; those that shed have no key and grow no staler."""
    return [queue for reader in inputs if (queue := reader.queue) is not None and queue.key]


def _operator_row(before: OperatorView | None, now: OperatorView, seconds: float) -> Row:
    inputs = now.inputs
    row: Row = {
        "name": now.name,
        "component": now.component,
        "kind": now.kind,
        "strategy": now.strategy,
        "queue": sum(reader.queue_tuples for reader in inputs),
        "state": now.state_tuples,
        "blocked": now.blocked,
        "break": now.break_,
        "staleness_us": max((queue.application_staleness_us for queue in _update_queues(inputs)), default=None),
        **dict.fromkeys(("in", "out", "selectivity", "cost_us", "idle", "busy")),
    }
    if before is None or seconds <= 0 or before.input_tuples > now.input_tuples or now.kind == "fork":
        return row  # a fork moves no tuple
    tuples_in = now.input_tuples - before.input_tuples
    tuples_out = now.output_tuples - before.output_tuples
    busy_us = now.busy_us - before.busy_us
    row["in"], row["out"] = tuples_in / seconds, tuples_out / seconds
    row["busy"] = min(max(busy_us / 1e6 / seconds, 0.0), 1.0)
    if tuples_in:
        row["selectivity"] = tuples_out / tuples_in
        row["cost_us"] = None if now.kind in ("source", "sink") else busy_us / tuples_in
    if now.waits and len(before.inputs) == len(inputs):
        row["idle"] = max(
            min(max((late.idle_wait_us - early.idle_wait_us) / 1e6 / seconds, 0.0), 1.0)
            for early, late in zip(before.inputs, inputs, strict=True)
        )
    return row


def component_rows(before: Snapshot | None, now: Snapshot) -> list[Row]:
    """A row per component: input of its sources, output of its sinks, and its worst operator."""
    known = {} if before is None else {component.name: component for component in before.components}
    seconds = 0.0 if before is None else (now.at_us - before.at_us) / 1e6
    members: dict[str, list[Row]] = {}
    for row in operator_rows(before, now):
        members.setdefault(row["component"], []).append(row)
    return [
        _component_row(known.get(component.name), component, members.get(component.name, []), seconds)
        for component in now.components
    ]


def _component_row(before: ComponentView | None, now: ComponentView, rows: list[Row], seconds: float) -> Row:
    own = sum(strategy != now.strategy for strategy in now.strategies.values())
    steps = None
    if before is not None and seconds > 0 and now.steps >= before.steps:
        steps = (now.steps - before.steps) / seconds
    return {
        "name": now.name,
        "strategy": now.strategy + (f" +{own}" if own else ""),
        "weight": now.weight,
        "operators": len(rows),
        "in": _total(row["out"] for row in rows if row["kind"] == "source"),
        "out": _total(row["in"] for row in rows if row["kind"] == "sink"),
        "steps": steps,
        "queue": now.queued,
        "idle": _most(row["idle"] for row in rows),
        "state": sum(row["state"] for row in rows),
        "blocked": sum(row["blocked"] for row in rows),
        "staleness_us": _most(row["staleness_us"] for row in rows),
    }


def _total(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


# -- columns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `need` is how soon a narrow terminal omits it: 0 never."""

    key: str
    head: str
    width: int
    words: Callable[[Any], str] = str
    need: int = 0
    right: bool = True


def number(value: float) -> str:
    """At most seven characters."""
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G")):
        if value < limit * 0.9995:
            scaled = value / (limit / 1e3)
            return f"{scaled:.0f}{unit}" if float(scaled).is_integer() or scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{value:.0e}"


def percent(value: float) -> str:
    return f"{value * 100:.0f}%"


def small(value: float) -> str:
    return f"{value:.3f}" if value < 10 else number(value)


def age(us: float) -> str:
    return f"{us:.0f} us" if us < 1_000 else f"{us / 1_000:.0f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"


def flag(value: Any) -> str:
    return str(value) if value else ""


NAME_WIDTH: Final = 20
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "components": (
        Column("name", "component", NAME_WIDTH, right=False),
        Column("strategy", "strategy", 10, right=False),
        Column("operators", "ops", 4, number, 3),
        Column("in", "in/s", 7, number),
        Column("out", "out/s", 7, number),
        Column("steps", "steps/s", 7, number, 1),
        Column("queue", "queue", 7, number),
        Column("idle", "idle", 5, percent),
        Column("blocked", "blocked", 7, number, 4),
        Column("state", "state", 7, number, 5),
        Column("weight", "weight", 6, number, 6),
        Column("staleness_us", "stale", 8, age, 2),
    ),
    "operators": (
        Column("name", "operator", NAME_WIDTH, right=False),
        Column("kind", "kind", 9, need=5, right=False),
        Column("strategy", "strategy", 8, right=False),
        Column("in", "in/s", 7, number),
        Column("out", "out/s", 7, number),
        Column("selectivity", "sel", 6, small, 4),
        Column("cost_us", "us/tup", 7, small, 1),
        Column("queue", "queue", 7, number),
        Column("idle", "idle", 5, percent),
        Column("state", "state", 7, number, 3),
        Column("break", "break", 5, flag, 6, right=False),
        Column("staleness_us", "stale", 8, age, 2),
    ),
}


def columns(level: str, rows: Sequence[Row], width: int) -> list[Column]:
    """The columns that fit, without those that nothing has (staleness where no queue is an update queue)."""
    shown = [
        column
        for column in COLUMNS[level]
        if column.key != "staleness_us" or any(row.get(column.key) is not None for row in rows)
    ]
    while sum(column.width + 1 for column in shown) - 1 > width and any(column.need for column in shown):
        shown.remove(max(shown, key=lambda column: column.need))
    return shown


def cell(column: Column, row: Row) -> str:
    value = row[column.key]
    return "-" if value is None else column.words(value)


# -- the view ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class View:
    """The state of the view.

    level      all components, the operators of one (of all, if `component` is None), or one operator
    sort       per level, the column and whether the greatest come first; None leaves the server's order
    typing     whether keys go into the filter
    """

    level: Level = "components"
    component: str | None = None
    operator: str | None = None
    sort: dict[str, tuple[str | None, bool]] = field(
        default_factory=lambda: {"components": (None, True), "operators": (None, True)}
    )
    filter: str = ""
    typing: bool = False
    cursor: int = 0
    paused: bool = False
    help: bool = False
    done: bool = False

    def rows(self, before: Snapshot | None, now: Snapshot) -> list[Row]:
        """The rows of the level, filtered and sorted."""
        if self.level == "components":
            rows = component_rows(before, now)
        else:
            rows = operator_rows(before, now)
            if self.component is not None:
                rows = [row for row in rows if row["component"] == self.component]
        pattern = self.filter.lower()
        rows = [
            row for row in rows if any(pattern in str(row.get(key, "")).lower() for key in ("name", "kind", "strategy"))
        ]
        key, greatest_first = self.sort[self._listed]
        if key is not None:
            known = [row for row in rows if row[key] is not None]
            known.sort(
                key=lambda row: row[key] if not isinstance(row[key], bool) else int(row[key]), reverse=greatest_first
            )
            rows = known + [row for row in rows if row[key] is None]
        return rows

    @property
    def _listed(self) -> str:
        return "components" if self.level == "components" else "operators"

    def press(self, key: str, rows: Sequence[Row]) -> None:
        """A key, while these rows are on the screen."""
        if key == "ctrl-c":
            self.done = True
        elif self.typing:
            self._type(key)
        elif self.help:
            self.help = False
        elif self.level != "operator" or key in LEAVE:
            self._command(key, rows)
        self.cursor = min(max(self.cursor, 0), max(len(rows) - 1, 0))

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        self.cursor = 0

    def _command(self, key: str, rows: Sequence[Row]) -> None:
        match key:
            case "q":
                self.done = True
            case "p" | " ":
                self.paused = not self.paused
            case "?" | "h":
                self.help = True
            case "/":
                self.typing = True
            case "s" | ">":
                self._sort_by(1)
            case "S" | "<":
                self._sort_by(-1)
            case "r":
                column, greatest_first = self.sort[self._listed]
                self.sort[self._listed] = column, not greatest_first
            case "up" | "k":
                self.cursor -= 1
            case "down" | "j":
                self.cursor += 1
            case "home" | "g":
                self.cursor = 0
            case "end" | "G":
                self.cursor = len(rows)
            case "enter" | "right":
                self._go_down(rows)
            case "escape" | "backspace" | "left":
                self._go_up()
            case "a":
                self._show("operators" if self.level == "components" else "components")

    def _sort_by(self, by: int) -> None:
        """The next column; words are in ascending order, numbers in descending order."""
        listed = COLUMNS[self._listed]
        keys = [None, *(column.key for column in listed)]
        key = keys[(keys.index(self.sort[self._listed][0]) + by) % len(keys)]
        self.sort[self._listed] = key, next((column.right for column in listed if column.key == key), True)

    def _go_down(self, rows: Sequence[Row]) -> None:
        if not rows or self.level == "operator":
            return
        row = rows[min(self.cursor, len(rows) - 1)]
        if self.level == "components":
            self._show("operators", row["name"])
        else:
            self.level, self.operator = "operator", row["name"]

    def _go_up(self) -> None:
        if self.level == "operator":
            self.level, self.operator = "operators", None
        elif self.level == "operators":
            self._show("components")
        else:
            self.filter = ""

    def _show(self, level: Level, component: str | None = None) -> None:
        self.level, self.component, self.operator = level, component, None
        self.filter, self.cursor = "", 0


# The keys of an operator's page, which has no rows to choose, sort or filter.
LEAVE: Final = ("q", "p", " ", "?", "h", "a", "escape", "backspace", "left")
HELP: Final = (
    ("up down, j k", "choose a row"),
    ("Enter, right", "into the component, into the operator"),
    ("Esc, left", "back; on the first page: drop the filter"),
    ("a", "all operators, and back"),
    ("s S, > <", "sort by the next or the previous column"),
    ("r", "sort the other way"),
    ("/", "filter by name, kind or strategy; Enter keeps it, Esc drops it"),
    ("p, space", "pause and resume the view"),
    ("q", "quit"),
)


# -- keys --------------------------------------------------------------------------------------------------------------

_SEQUENCES: Final[Mapping[bytes, str]] = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home", b"\x1b[4~": "end",
}  # fmt: skip
_SINGLE: Final[Mapping[str, str]] = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "ctrl-c",
}


def keys(data: bytes) -> Iterator[str]:
    """The keys in one input of a terminal. Unknown sequences are ignored."""
    while data:
        known = next((sequence for sequence in _SEQUENCES if data.startswith(sequence)), None)
        if known is not None:
            yield _SEQUENCES[known]
            data = data[len(known) :]
        elif data[:2] in (b"\x1b[", b"\x1bO"):
            end = next((at for at, byte in enumerate(data[2:], 3) if 0x40 <= byte <= 0x7E), len(data))
            data = data[end:]
        else:
            length = next((size for size in (1, 2, 3, 4) if _is_letter(data[:size])), 0)
            if length:
                letter = data[:length].decode()
                yield _SINGLE.get(letter, letter)
            data = data[max(length, 1) :]


def _is_letter(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False
