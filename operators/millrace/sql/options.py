"""The options of WITH: their names, their valid values, and the attributes that they set.

Each option has one row, which docs, suggestions and errors use. An option whose feature does not run yet is listed here
too and refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from millrace.engine.plan import POLICIES
from millrace.protocol import Refuse
from millrace.protocol.units import UNITS
from millrace.sql import syntax as s
from millrace.sql.errors import SqlError, did_you_mean
from millrace.values.intervals import format_interval, parse_duration
from millrace.values.retention import FORMS as RETAIN_FORMS
from millrace.values.retention import parse_retain

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class OptionKind:
    """`becomes` is the attribute of the definition; `read` converts the value to the value of that attribute.

    `kinds` are the kinds of timestamps of a stream to which the option applies.
    """

    name: str
    becomes: str
    read: Callable[[Value], Any]
    meaning: str
    kinds: Sequence[str] = ("external", "internal", "latent")


class _Wrong(Exception):  # noqa: N818 - carries a sentence to the caller, which knows the position
    """The option does not accept the value. The text names the valid values."""


def choice(*values: str) -> Callable[[Value], str]:
    def read(value: Value) -> str:
        if isinstance(value, str) and value.lower() in values:
            return value.lower()
        listed = ", ".join(map(repr, values[:-1])) + f" or {values[-1]!r}"
        raise _Wrong(f"expected {listed}, got {_show(value)}{did_you_mean(str(value), values)}")

    return read


def interval(least_us: int = 0, *, unset: bool = False) -> Callable[[Value], int | None]:
    """A time; with `unset` also 'none', which removes it."""

    def read(value: Value) -> int | None:
        if unset and isinstance(value, str) and value.lower() == "none":
            return None
        if not isinstance(value, str):
            or_none = " or 'none'" if unset else ""
            raise _Wrong(f"expected a time in quotes such as '10 seconds'{or_none}, got {_show(value)}")
        try:
            us = parse_duration(value)
        except Refuse as error:
            raise _Wrong(error.text) from None
        if us < least_us:
            raise _Wrong(f"expected {'a time above 0' if least_us else 'no negative time'}, got {_show(value)}")
        return us

    return read


def switch(value: Value) -> bool:
    words = {"on": True, "true": True, "off": False, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise _Wrong(f"expected true or false, got {_show(value)}")


def count(value: Value) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return number
    raise _Wrong(f"expected a whole number above 0, got {_show(value)}")


def slots(value: Value) -> int:
    number = count(value)
    if number > MOST_SLOTS:
        raise _Wrong(f"expected at most {MOST_SLOTS:,}, got {_show(value)}")
    return number


def share(value: Value) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if 0.0 <= number < 1.0:
        return number
    raise _Wrong(f"expected a number of at least 0 and less than 1, got {_show(value)}")


def text(value: Value) -> str:
    if isinstance(value, str) and value:
        return value
    raise _Wrong(f"expected a text in quotes, got {_show(value)}")


def retained(value: Value) -> str:
    """How much of a result is retained, in words of one form."""
    if not isinstance(value, str):
        raise _Wrong(f"expected {RETAIN_FORMS}, got {_show(value)}")
    try:
        parse_retain(value)
    except Refuse as error:
        raise _Wrong(error.text) from None
    return " ".join(value.split())


def names(value: Value) -> tuple[str, ...]:
    """One or several columns: 'symbol' or 'symbol, venue'."""
    parts = tuple(part.strip() for part in text(value).split(","))
    if not all(parts):
        raise _Wrong(f"expected column names separated by commas, got {_show(value)}")
    return parts


def _show(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


# A low-level table of so many slots takes 600 MB with a key and a count.
MOST_SLOTS: Final = 1 << 24
_TIMED: Final = ("external", "internal")
_EXTERNAL: Final = ("external",)
# Why an option of time does not apply to a stream of another kind.
_NO_USE: Final = {
    "internal": "the server's clock stamps its tuples as they arrive",
    "latent": "its tuples have no time, and no operator waits for it",
}

STREAM_OPTIONS: Sequence[OptionKind] = (
    OptionKind("timestamps", "timestamps", choice("external", "internal", "latent"), "where a tuple's time comes from"),
    OptionKind("time", "time", text, "the field that carries the time of an external stream", _EXTERNAL),
    OptionKind("time_unit", "time_unit", choice(*UNITS), "the unit of numbers in the time field", _EXTERNAL),
    OptionKind("disorder", "disorder_us", interval(), "how far out of order a feed's tuples may be", _EXTERNAL),
    OptionKind(
        "max_skew", "max_skew_us", interval(unset=True), "how far feeds' clocks may differ from the server's", _EXTERNAL
    ),
    OptionKind(
        "max_ahead", "ahead_us", interval(unset=True), "how far a tuple's time may be ahead of the clock", _EXTERNAL
    ),
    OptionKind("ets", "ets", choice("none", "periodic", "on-demand"), "when the stream makes timestamps", _TIMED),
    OptionKind("ets_interval", "ets_interval_us", interval(1), "how often, if periodic", _TIMED),
    OptionKind("ets_retry", "ets_retry_us", interval(1), "when to request a timestamp again", _EXTERNAL),
    OptionKind(
        "propagation",
        "propagation",
        choice("arcs", "punctuation"),
        "how timestamps that the stream makes travel",
        _TIMED,
    ),
    OptionKind("lull", "lull_us", interval(1, unset=True), "how far the mark may lag the server's clock", _TIMED),
    OptionKind("progress", "progress", choice("tuples", "punctuation"), "whether tuples move the mark", _EXTERNAL),
    OptionKind("grace", "grace_us", interval(), "how long a disconnected feed may take to reconnect", _EXTERNAL),
    OptionKind("update_key", "update_key", names, "the columns that identify what a row updates"),
    OptionKind("punctuation_key", "punctuation_key", names, "the columns that name a group in punctuation", _EXTERNAL),
    OptionKind(
        "queue",
        "queue",
        choice("append", "auto", "fifo", "inplace", "linecutting", "deadline"),
        "the queue of LATEST edges",
    ),
    OptionKind("history", "history", switch, "whether the stream is archived"),
    OptionKind("extra", "extra", choice("refuse", "ignore"), "how keys that are not columns are handled"),
)
# The options that ALTER STREAM may change while the stream runs.
POLICY_OPTIONS: Final = tuple(row for row in STREAM_OPTIONS if row.becomes in POLICIES)

QUERY_OPTIONS: Sequence[OptionKind] = (
    OptionKind("order", "order", choice("arrival", "event"), "the order of the rows"),
    OptionKind("fuse", "fuse", switch, "whether neighbouring operators may run as one"),
    OptionKind("emit", "emit", choice("latest", "every"), "what an update stream emits"),
    OptionKind("max_state", "max_state", count, "how many tuples the query may keep"),
    OptionKind("on_max_state", "on_max_state", choice("fail", "backpressure"), "what happens at that limit"),
    OptionKind("join", "join", choice("sync", "filter", "adaptive"), "how a join emits its rows in order of time"),
    OptionKind("alpha", "alpha", share, "the gain from which an adaptive join sorts its inputs first"),
    OptionKind("flush", "flush", choice("none", "slow", "lazy"), "how the results of a window are spread"),
    OptionKind("max_delay", "max_delay_us", interval(1), "how late a spread result may be"),
    OptionKind(
        "aggregate",
        "aggregate",
        choice("adaptive", "groups", "bounded", "buffered"),
        "what a window keeps before it closes",
    ),
    OptionKind("slots", "slots", slots, "the size of the low-level table of a bounded aggregate"),
    OptionKind(
        "partial", "partial", choice("skip", "emit"), "whether windows that started before the query are emitted"
    ),
    OptionKind("start", "start", choice("newest", "watermark"), "the point from which the query reads its streams"),
    OptionKind("retain", "retain", retained, "how many of its rows a server keeps on disk"),
)

SINK_OPTIONS: Sequence[OptionKind] = (
    OptionKind("type", "type", choice("file", "stdout"), "where the rows go"),
    OptionKind("path", "path", text, "the file"),
    OptionKind("format", "format", choice("jsonl", "csv", "parquet", "arrow"), "how rows are written"),
    OptionKind(
        "on_slow", "on_slow", choice("wait", "drop_oldest", "disconnect", "latest"), "the policy for a slow sink"
    ),
    OptionKind("slow_limit", "slow_limit", count, "how many rows may wait for the sink"),
    OptionKind("slow_bytes", "slow_bytes", count, "how many bytes of rows in memory may wait for the sink"),
    OptionKind("freshness", "freshness_us", interval(1), "how old a row may be when it is written"),
    OptionKind("rotate_rows", "rotate_rows", count, "the most rows of a Parquet or Arrow file"),
    OptionKind("rotate_bytes", "rotate_bytes", count, "the most bytes in memory of a Parquet or Arrow file"),
    OptionKind("rotate_age", "rotate_age_us", interval(1), "the longest wait for a Parquet or Arrow file"),
)
# The options of sinks that write whole files.
ROTATION_OPTIONS: Final = tuple(row.name for row in SINK_OPTIONS if row.name.startswith("rotate_"))


def read_options(
    sql: str, options: Sequence[s.Option], known: Sequence[OptionKind], of_what: str
) -> tuple[dict[str, Any], Mapping[str, s.Option]]:
    """The values by attribute, and the options by name for later errors."""
    rows = {row.name: row for row in known}
    values: dict[str, Any] = {}
    seen: dict[str, s.Option] = {}
    for option in options:
        name = option.name.text
        row = rows.get(name)
        if row is None:
            hint = did_you_mean(name, rows) or f"; the options are {', '.join(rows)}"
            raise SqlError(sql, option.name.span.start, f"{of_what} has no option {name}{hint}")
        if name in seen:
            raise SqlError(sql, option.name.span.start, f"the option {name} is set twice")
        seen[name] = option
        try:
            values[row.becomes] = row.read(option.value)
        except _Wrong as wrong:
            raise SqlError(sql, option.value_span.start, f"{name}: {wrong}") from None
    return values, seen


def shown_options(definition: Any, known: Sequence[OptionKind]) -> dict[str, Any]:
    """The options of a definition that differ from the default, as written in WITH."""
    shown: dict[str, Any] = {}
    for attribute in fields(definition):
        row = next((row for row in known if row.becomes == attribute.name), None)
        value = getattr(definition, attribute.name)
        if row is not None and value != attribute.default:
            shown[row.name] = _as_written(row, value)
    return {row.name: shown[row.name] for row in known if row.name in shown}


def _as_written(row: OptionKind, value: Any) -> Any:
    if value is None:
        return "none"
    if row.becomes.endswith("_us"):
        return format_interval(value)
    return ", ".join(value) if isinstance(value, tuple) else value


def check_kind(sql: str, seen: Mapping[str, s.Option], stream: str, kind: str) -> None:
    """Refuse options that do not apply to a stream with this kind of timestamps."""
    rows = {row.name: row for row in STREAM_OPTIONS}
    for name, option in seen.items():
        if kind not in rows[name].kinds:
            raise SqlError(
                sql,
                option.name.span.start,
                f"{name} does not apply here: {stream} is {kind}, {_NO_USE[kind]}. It applies to streams "
                f"whose timestamps are {' or '.join(rows[name].kinds)}",
            )
