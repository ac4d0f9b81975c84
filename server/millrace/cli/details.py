"""One object as a person reads it: properties in groups, times and durations with units, defaults left out.

Rule: nothing that the API returns is lost. A property without a row in the tables is shown at the end, with a form that
follows from its name, and `--all` shows defaults and zeros too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millrace.protocol.timestamps import format_timestamp
from millrace.protocol.words import counted, printable

Item = Mapping[str, Any]

# Units of a duration in microseconds, the longest first.
UNITS: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
EMPTY: Final[Sequence[Any]] = (None, False, 0, "", (), [], {})
# Properties in microseconds that are points in time. All others are durations.
INSTANTS: Final = frozenset(
    {
        *("at_us", "mark_us", "newest_us", "since_us", "progress_us", "register_us", "low_water_us", "reach_us"),
        *("asked_us", "asked_need_us", "answered_us", "leaves_us", "seam_us", "history_us", "from_us", "found_us"),
        *("leaves_at_us", "requested_at_us", "requested_us"),
    }
)
# Earlier names of properties. Servers write both until version 0.3.
RENAMED: Final[Mapping[str, str]] = {
    "far": "too_far_ahead",
    "broken": "broke_promise",
    "owed": "credit_used",
    "left_out": "filtered",
    "leaves_us": "leaves_at_us",
    "asked_us": "requested_at_us",
    "asked_need_us": "requested_us",
}


# -- forms -------------------------------------------------------------------------------------------------------------


def instant(us: int) -> str:
    return format_timestamp(us)


def duration(us: float) -> str:
    """The two largest units, such as `1 min 30 s`; below a second one unit."""
    if abs(us) < 1_000:
        return f"{us:.3f}".rstrip("0").rstrip(".") + " us"
    if abs(us) < 1_000_000:
        return f"{us / 1_000:.3f}".rstrip("0").rstrip(".") + " ms"
    sign, left = ("-" if us < 0 else ""), round(abs(us))
    words: list[str] = []
    for unit, length in UNITS[:3]:
        if left >= length and len(words) < 2:
            words.append(f"{left // length} {unit}")
            left %= length
    if left and len(words) < 2:
        seconds = f"{left / 1_000_000:.3f}".rstrip("0").rstrip(".") if not words else str(left // 1_000_000)
        words += [f"{seconds} s"] if seconds != "0" else []
    return sign + " ".join(words)


def size(amount: int) -> str:
    """Bytes in the largest binary unit below the amount."""
    value, unit, larger = float(amount), "B", ["TiB", "GiB", "MiB", "KiB"]
    while abs(value) >= 1024 and larger:
        value, unit = value / 1024, larger.pop()
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def plain(value: Any) -> str:
    """A value of any type in one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.6g}"
        case list() | tuple():
            return ", ".join(_field(part) if isinstance(part, list) else plain(part) for part in value) or "-"
        case Mapping():
            return ", ".join(f"{key} {named(str(key), inner)}" for key, inner in value.items()) or "-"
        case _:
            return printable(str(value))


def named(key: str, value: Any) -> str:
    """A value in the form that its property's name calls for."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key in INSTANTS:
            return instant(int(value))
        if key.endswith("_us"):
            return duration(value)
        if key == "bytes" or key.endswith("_bytes"):
            return size(int(value))
        if key in ("next_sequence", "oldest_sequence", "last_seq", "after_seq"):
            return str(value)
    return plain(value)


def _field(field: Sequence[object]) -> str:
    """A field of a schema: [name, type, nullable]."""
    name, kind, nullable = field
    return f"{printable(str(name))} {kind}" + ("" if nullable else " not null")


def _causes(value: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {count:,}" for key, count in value.items() if count) or "-"


def _group_words(group: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {printable(str(part))}" for name, part in group.items())


def _looks(value: Sequence[Mapping[str, Any]]) -> str:
    """The first readers that say how often they look."""
    shown = [
        f"{printable(read['reader'])} every {duration(read['refresh_us'])}"
        + ("" if read["keys"] is None else f" at {counted(read['keys'], 'key')}")
        for read in value[:3]
    ]
    more = len(value) - len(shown)
    return ", ".join(shown) + (f", and {more:,} more" if more else "")


def _groups(value: Sequence[Mapping[str, Any]]) -> str:
    """The first groups that are ahead, each with its mark."""
    shown = [
        _group_words(one["group"]) + ("" if one["mark_us"] is None else f": {format_timestamp(one['mark_us'])}")
        for one in value[:3]
    ]
    return "; ".join([*shown, "..."] if len(value) > 3 else shown)


def _text(value: Mapping[str, Any] | None) -> str:
    return "-" if value is None else printable(str(value["text"]))


# -- groups ------------------------------------------------------------------------------------------------------------


class Property(NamedTuple):
    """`default` lists the values that are left out; None means that the property is always shown."""

    key: str
    label: str
    default: Sequence[Any] | None = EMPTY
    form: Callable[[Any], str] | None = None


def _always(key: str, label: str = "", form: Callable[[Any], str] | None = None) -> Property:
    return Property(key, label or key, None, form)


def _if(key: str, label: str = "", *defaults: Any, form: Callable[[Any], str] | None = None) -> Property:
    return Property(key, label or key, (*EMPTY, *defaults), form)


Groups = Mapping[str, Sequence[Property]]

DAY_US: Final = 86_400_000_000
GROUPS: Final[Mapping[str, Groups]] = {
    "stream": {
        "": (
            _always("fields"),
            _always("timestamps"),
            _if("time", "time column"),
            _if("time_unit", "time unit", "us"),
            _if("update_key", "update key"),
            _if("punctuation_key", "punctuation key"),
            _always("component"),
        ),
        "Settings": (
            _if("disorder_us", "disorder"),
            _if("max_skew_us", "max_skew"),
            _if("lull_us", "lull"),
            _if("ahead_us", "max_ahead", DAY_US),
            _if("grace_us", "grace"),
            _if("progress", "progress", "tuples"),
            _if("ets", "ets", "on-demand"),
            _if("ets_interval_us", "ets_interval", 100_000),
            _if("ets_retry_us", "ets_retry", 100_000),
            _if("propagation", "propagation", "arcs"),
            _if("history", "history"),
        ),
        "Tuples": (
            _always("tuples"),
            _if("bytes", "received"),
            _always("late"),
            _if("late_by_max_us", "latest by"),
            _always("rejected"),
            _if("too_far_ahead", "too far ahead"),
            _if("broke_promise", "broke a promise"),
            _always("connections"),
            _if("withheld_for", "no credit because of"),
        ),
        "Progress": (
            _if("mark_us", "watermark"),
            _if("newest_us", "newest tuple"),
            _if("ended", "ended"),
            _if("punctuations", "punctuations"),
            _if("punctuations_by_cause", "by cause", form=_causes),
            _if("groups_ahead", "groups ahead"),
            _if("groups", "by punctuation", form=_groups),
            _if("group_promises_ignored", "promises ignored"),
        ),
    },
    "query": {
        "": (
            _always("state"),
            _if("reason", "reason"),
            _if("restarted", "restarted", form=_text),
            _always("fields"),
            _if("reads_streams", "reads streams"),
            _if("reads_queries", "reads queries"),
            _always("component"),
        ),
        "Settings": (
            _if("order", "order", "arrival"),
            _if("update_key", "update key"),
            _if("start", "start", "newest"),
            _if("max_state", "max_state", 10_000_000),
        ),
        "Rows": (
            _always("rows"),
            _always("next_sequence", "next sequence"),
            _if("oldest_sequence", "oldest sequence"),
            _if("retained_tuples", "retained rows"),
            _if("retained_bytes", "retained"),
            _if("history", "history"),
            _if("since_us", "history since"),
            _if("progress_us", "complete below"),
            _always("subscribers"),
            _if("reads", "looks", form=_looks),
            _if("slow_reader", "waits for", form=_text),
        ),
        "Input": (
            _if("ignored", "ignored tuples"),
            _if("skipped", "skipped tuples"),
            _if("lost", "lost tuples"),
            _if("state_tuples", "state tuples"),
            _if("backfill", "backfill"),
        ),
        "Operators": (_always("operators"), _if("shared", "shared"), _if("joins", "joins"), _if("auto", "auto")),
    },
    "sink": {
        "": (
            _always("query"),
            _always("state"),
            _if("reason", "reason"),
            _if("since_us", "since"),
            _always("type"),
            _if("path", "path"),
            _if("format", "format"),
        ),
        "Settings": (
            _if("on_slow", "on_slow", "wait"),
            _if("slow_limit", "slow_limit", 65_536),
            _if("slow_bytes", "slow_bytes", 67_108_864),
            _if("outside", "outside sink_dir"),
        ),
        "Rows": (
            _always("delivered"),
            _if("held", "queued"),
            _if("held_bytes", "queued bytes"),
            _if("unfinished", "in unfinished files"),
            _if("dropped", "dropped"),
            _if("superseded", "superseded"),
            _if("lag_us", "lag"),
            _if("freshness", "freshness"),
            _if("history", "history"),
        ),
    },
    "component": {
        "": (_always("strategy"), _if("weight", "weight", 1)),
        "Work": (
            _always("steps"),
            _always("queued", "queued tuples"),
            _if("queued_bytes", "queued"),
            _if("ready", "has work"),
        ),
        "Operators": (_always("operators"), _if("strategies", "strategies"), _if("breaks", "break points")),
    },
    "operator": {
        "": (
            _always("kind"),
            _if("queries", "queries"),
            _always("component"),
            _if("strategy", "strategy"),
            _if("break", "break point"),
            _if("reads", "reads"),
        ),
        "Settings": (
            _if("queues", "queues"),
            _if("inserted", "inserted"),
            _if("where", "where"),
            _if("sample", "sample"),
        ),
        "Work": (
            _always("input_tuples", "tuples in"),
            _always("output_tuples", "tuples out"),
            _always("executions"),
            _if("busy_us", "busy"),
            _if("superseded", "superseded"),
            _if("shed", "shed"),
            _if("filtered", "filtered"),
            _if("errors", "errors"),
            _if("last_error", "last error"),
            _if("blocked", "blocked"),
            _if("waits", "can wait"),
            _if("low_water_us", "output complete below"),
        ),
        "State": (_if("state_tuples", "tuples"), _if("state_bytes", "bytes")),
    },
}
# Lists with a line per entry, each with the property that leads its lines.
LISTS: Final[Mapping[str, str]] = {"feeds": "feed", "inputs": "from", "gaps": "reason", "shared": "node"}


def lines(kind: str, item: Item, *, everything: bool) -> Iterator[str]:
    """The lines of one object: a head, its groups, its lists, and its statement."""
    item = _current_names(without_fork_counts(item))
    if "name" in item:
        yield f"{kind} {printable(str(item['name']))}"
    groups = GROUPS.get(kind, {})
    shown = {"name", "sql"}
    for title, properties in groups.items():
        shown.update(part.key for part in properties)
        rows = [
            (part.label, part.form(item[part.key]) if part.form else named(part.key, item[part.key]))
            for part in properties
            if part.key in item and _visible(part, item[part.key], everything)
        ]
        yield from _group(title, rows)
    rest = {key: value for key, value in item.items() if key not in shown}
    lists = {key: value for key, value in rest.items() if _is_list(value)}
    others = [
        (_label(key), named(key, value))
        for key, value in rest.items()
        if key not in lists
        and key not in LISTS
        and not isinstance(value, Mapping)
        and (everything or value not in EMPTY)
    ]
    yield from _group("Other" if groups else "", others)
    for key, value in rest.items():
        if isinstance(value, Mapping) and value:
            nested = {inner: each for inner, each in value.items() if everything or each not in EMPTY}
            yield from _group(
                _label(key).capitalize(), [(_label(inner), named(inner, each)) for inner, each in nested.items()]
            )
    for key, value in lists.items():
        yield ""
        yield _label(key).capitalize()
        yield from (f"  {_entry(key, part, everything)}" for part in value)
    if item.get("sql"):
        yield ""
        yield from (f"  {printable(line)}" for line in str(item["sql"]).splitlines())


def without_fork_counts(item: Item) -> Item:
    """A fork passes tuples to its readers without counting them: its own counts mean nothing."""
    return {**item, "input_tuples": None, "output_tuples": None} if item.get("kind") == "fork" else item


def _current_names(item: Item) -> dict[str, Any]:
    """The item with its properties under their current names, in one place each."""
    current = {RENAMED.get(key, key): value for key, value in item.items() if RENAMED.get(key) not in item}
    for key in ("feeds", "inputs"):
        if _is_list(current.get(key)):
            current[key] = [_current_names(part) for part in current[key]]
    return current


def _visible(part: Property, value: Any, everything: bool) -> bool:
    return everything or part.default is None or value not in part.default


def _group(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    if title:
        yield ""
        yield title
    width = max(len(label) for label, _ in rows)
    yield from (f"  {label.ljust(width)}  {value}" for label, value in rows)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _entry(key: str, part: Item, everything: bool) -> str:
    """One feed, input or gap in a line."""
    lead = LISTS.get(key)
    subject = "" if lead is None else printable(str(part.get(lead, "")))
    if key == "inputs":
        subject = f"{part['operator']} from {subject}" if "operator" in part else f"from {subject}"
    words = [
        _phrase(name, value)
        for name, value in part.items()
        if name not in (lead, "operator") and (everything or value not in EMPTY)
    ]
    return f"{subject}: {', '.join(words) or 'idle'}" if subject else ", ".join(words)


PHRASES: Final[Mapping[str, Callable[[Any], str]]] = {
    "mark_us": lambda us: f"watermark {instant(us)}" if us is not None else "no watermark yet",
    "tuples": lambda count: counted(count, "tuple"),
    "late": lambda count: f"{count:,} late",
    "queue_tuples": lambda count: f"{count:,} queued",
    "peak_queue_tuples": lambda count: f"at most {count:,} queued",
    "idle_wait_us": lambda us: f"held others back for {duration(us)}",
    "requested_group": lambda group: "for all tuples" if group is None else f"for {_group_words(group)}",
    "can_answer": lambda able: "answers requests" if able else "answers no requests",
}


def _phrase(name: str, value: Any) -> str:
    phrase = PHRASES.get(name)
    return f"{_label(name)} {named(name, value)}" if phrase is None else phrase(value)


def _label(key: str) -> str:
    return printable(key.removesuffix("_us").replace("_", " "))
