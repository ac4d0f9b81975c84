"""The lines of --events: the times and the order of events, and the errors of invalid lines."""

from __future__ import annotations

import json

import pytest

from millrace.engine.events import Arrived, FeedClosed, Punctuated
from millrace.engine.plan import StreamDefinition
from millrace.offline.events import read_events
from millrace.protocol import Refuse, Schema

EXTERNAL = StreamDefinition("e", Schema.of(ts="timestamp", v="bigint"), "external", "ts")
INTERNAL = StreamDefinition("i", Schema.of(v="bigint"))


def read(tmp_path, *lines):
    path = tmp_path / "events.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return [
        (instant.at_us, list(instant.events))
        for instant in read_events(str(path), {"e": EXTERNAL, "i": INTERNAL}, lambda read: None, exact=True)
    ]


def e(ts, **more):
    return {"stream": "e", "tuple": {"ts": ts, "v": 0}, **more}


def i(v, **more):
    return {"stream": "i", "tuple": {"v": v}, **more}


def ats(instants):
    return [at for at, _ in instants]


def test_when_things_happen(tmp_path):
    assert ats(read(tmp_path, e(5), i(1), e(3), e(9), {"stream": "e", "punctuation": 100})) == [5, 9]
    assert ats(read(tmp_path, i(1), {"at": 7, "tick": True}, i(2), e(8))) == [0, 7, 8]
    assert ats(read(tmp_path, e(5, at=2), e(6, at=1), e(1, at="1970-01-01T00:00:01Z"))) == [2, 1_000_000]
    assert ats(read(tmp_path, e(-5))) == [-5]
    assert read(tmp_path) == []


def test_tuples_of_one_feed_at_one_time_are_one_batch(tmp_path):
    ((at, events),) = read(tmp_path, e(5), e(5), e(4, feed="x"), e(5), {"stream": "e", "punctuation": 5}, e(5))
    assert at == 5
    assert [(event.feed, len(event.batch)) for event in events if isinstance(event, Arrived)] == [
        ("main", 2),
        ("x", 1),
        ("main", 1),
        ("main", 1),
    ]
    assert isinstance(events[3], Punctuated)


def test_the_end_of_a_feed(tmp_path):
    ((_, events),) = read(tmp_path, {"at": 1, "stream": "i", "close": True, "feed": "f"})
    assert events == [FeedClosed("i", "f", ended=True)]


WRONG = [
    ({"tick": True}, "expected a time in at, because a tick has no other, got none"),
    ({"at": 1}, "expected one of tuple, punctuation, close, tick, got none of them"),
    ({"at": 1, "tick": False}, "expected true in tick, got false"),
    ({"at": 1, "stream": "e", "close": 1}, "expected true in close, got 1"),
    ({"at": 1, "stream": "e", "close": True, "punctuation": 1}, "got punctuation and close"),
    ({"at": "soon", "tick": True}, "at: expected a timestamp"),
    ({"at": 2**63, "tick": True}, "at: expected a timestamp within 64 bits"),
    ({"at": 1, "stream": "e", "punctuation": None}, "punctuation: expected a timestamp"),
    ({"at": 1, "stream": "x", "tuple": {}}, "expected one of the streams e, i, got 'x'"),
    ({"at": 1, "tuple": {}}, "expected the name of a stream in stream, got none"),
    ({"at": 1, "stream": "e", "tuple": [1]}, "expected an object in tuple, got [1]"),
    ({"at": 1, "stream": "e", "tuple": {"v": 1}}, "missing field ts (timestamp, not null)"),
    ({"at": 1, "stream": "i", "tuple": {"v": "1"}}, "field v: expected bigint (an integer of 64 bits), got '1'"),
    ({"at": 1, "stream": "i", "tuple": {"w": 1}}, "expected the fields v, got unknown field 'w'"),
    ({"at": 1, "stream": "i", "feed": 3, "tuple": {"v": 1}}, "expected a feed's name in feed, got 3"),
    ({"at": 1, "stream": "i", "tulpe": {"v": 1}}, "got 'tulpe'"),
    ("[]", "expected a JSON object, got '[]'"),
    ('{"at": 1, "tick"', "half an object"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_wrong_line_is_named(tmp_path, line, said):
    with pytest.raises(Refuse) as refused:
        read(tmp_path, i(1), i(2), "", line)
    assert refused.value.text.startswith(f"{tmp_path}/events.jsonl, line 4")
    assert said in refused.value.text
