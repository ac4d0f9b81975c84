"""How one object is shown: groups, units, hidden defaults, one feed per line."""

from dataclasses import fields

import pytest

from millrace.cli.details import GROUPS, LISTS, RENAMED, duration, lines, plain, size
from millrace.protocol.admin.data import former_names
from millrace.protocol.admin.operators import ComponentView, InputView, OperatorView
from millrace.protocol.admin.queries import QueryView, SharedView, SinkView
from millrace.protocol.admin.streams import FeedView, GapView, StreamView

STREAM = {
    "name": "door",
    "fields": [["ts", "timestamp", False], ["person", "text", True]],
    "timestamps": "external",
    "time": "ts",
    "update_key": [],
    "disorder_us": 90_000_000,
    "max_skew_us": None,
    "progress": "tuples",
    "ets_interval_us": 100_000,
    "ahead_us": 86_400_000_000,
    "component": "door",
    "tuples": 12_345,
    "late": 1,
    "late_by_max_us": 29_500_000,
    "far": 0,
    "broken": 2,
    "punctuations": 3,
    "punctuations_by_cause": {"tuple": 3, "client": 0},
    "mark_us": 1_767_225_630_000_000,
    "feeds": [
        {"feed": "main", "mark_us": 1_767_225_630_000_000, "tuples": 3, "late": 1, "owed": 7, "can_answer": False},
        {"feed": "till\n2", "mark_us": None, "tuples": 0, "late": 0, "owed": 0, "can_answer": True},
    ],
    "rejected": 0,
    "bytes": 2_097_152,
    "connections": 0,
    "archive": None,
    "novelty_us": 2_000,
    "sql": "CREATE STREAM door (ts TIMESTAMP,\n  person TEXT)",
}


VIEWS = {
    "stream": StreamView,
    "query": QueryView,
    "sink": SinkView,
    "component": ComponentView,
    "operator": OperatorView,
    "feeds": FeedView,
    "inputs": InputView,
    "gaps": GapView,
    "shared": SharedView,
}


def keys(kind):
    return {field.metadata.get("alias", field.name) for field in fields(VIEWS[kind])}


def test_every_property_is_a_field_of_its_view():
    for kind, groups in GROUPS.items():
        named = [part.key for properties in groups.values() for part in properties]
        assert set(named) <= keys(kind), kind
        assert len(named) == len(set(named)), kind
    assert {lead for name, lead in LISTS.items() if lead not in keys(name)} == set()


def test_every_renamed_property_has_its_present_name():
    former = former_names(StreamView) | former_names(FeedView) | former_names(OperatorView)
    assert former.items() >= RENAMED.items()


def test_a_stream_in_groups():
    assert list(lines("stream", STREAM, everything=False)) == [
        "stream door",
        "  fields       ts timestamp not null, person text",
        "  timestamps   external",
        "  time column  ts",
        "  component    door",
        "",
        "Settings",
        "  disorder  1 min 30 s",
        "",
        "Tuples",
        "  tuples           12,345",
        "  received         2 MiB",
        "  late             1",
        "  latest by        29.5 s",
        "  rejected         0",
        "  broke a promise  2",
        "  connections      0",
        "",
        "Progress",
        "  watermark     2026-01-01T00:00:30Z",
        "  punctuations  3",
        "  by cause      tuple 3",
        "",
        "Other",
        "  novelty  2 ms",
        "",
        "Feeds",
        "  main: watermark 2026-01-01T00:00:30Z, 3 tuples, 1 late, credit used 7",
        r"  till\u000a2: answers requests",
        "",
        "  CREATE STREAM door (ts TIMESTAMP,",
        "    person TEXT)",
    ]


def test_everything_includes_defaults():
    shown = "\n".join(lines("stream", STREAM, everything=True))
    for line in ("  max_skew      -", "  ets_interval  100 ms", "  max_ahead     1 d", "too far ahead    0"):
        assert line in shown, shown
    assert "no watermark yet, 0 tuples, 0 late, credit used 0, answers requests" in shown


def test_both_names_of_a_property_are_shown_once():
    both = {**STREAM, "too_far_ahead": 4, "far": 4}
    shown = "\n".join(lines("stream", both, everything=False))
    assert shown.count("too far ahead  ") == 1
    assert "far  " not in shown.replace("too far ahead", "")


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"),
        (19.549, "19.549 us"),
        (250_000, "250 ms"),
        (1_500, "1.5 ms"),
        (1_000_000, "1 s"),
        (1_250_000, "1.25 s"),
        (90_000_000, "1 min 30 s"),
        (86_400_000_000, "1 d"),
        (90_061_000_001, "1 d 1 h"),
        (3_600_000_001, "1 h"),
        (-2_000_000, "-2 s"),
    ],
)
def test_durations(us, text):
    assert duration(us) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0 B"), (942, "942 B"), (1536, "1.5 KiB"), (67_108_864, "64 MiB"), (2**50, "1024 TiB")]
)
def test_sizes(amount, text):
    assert size(amount) == text


def test_plain_values():
    assert [plain(value) for value in (None, True, 1_234_567, [], ["a", "b"], {"lag_us": 2_000})] == [
        *("-", "yes", "1,234,567", "-", "a, b", "lag_us 2 ms"),
    ]


@pytest.mark.parametrize("kind", ["stream", "query", "sink", "component", "operator"])
def test_every_kind_of_a_server_is_shown_without_other_properties(server, kind):
    """A property that the server adds needs a row in the table."""
    server.millrace(
        "sql",
        "CREATE STREAM door (ts TIMESTAMP) WITH (time = 'ts'); CREATE QUERY diary AS SELECT ts FROM door;"
        "CREATE SINK alerts FROM diary WITH (type = 'file', path = 'alerts.jsonl')",
    )
    name = {"query": "diary", "sink": "alerts", "operator": "diary.project1"}.get(kind, "door")
    for flags in ((), ("--all",)):
        shown = server.millrace(kind, "show", name, *flags)
        assert shown.stdout.startswith(f"{kind} {name}\n"), shown
        assert "_us" not in shown.stdout
    assert "CREATE" in server.millrace(kind, "show", name).stdout or kind in ("component", "operator")


def test_the_group_that_a_feed_was_asked_for():
    feed = {"feed": "main", "tuples": 1, "requested_us": 1_767_225_630_000_000, "requested_group": {"k": 7, "t": "a"}}
    assert "  main: 1 tuple, requested 2026-01-01T00:00:30Z, for k 7, t a" in list(
        lines("stream", {**STREAM, "feeds": [feed]}, everything=False)
    )
