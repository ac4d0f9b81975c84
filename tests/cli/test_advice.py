"""Each rule of `millrace doctor` advises where it should, with the number and the command, and is silent elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace.observe.advice import RULES, Snapshot, advise
from millrace.protocol.admin.operators import OperatorView
from millrace.protocol.admin.queries import QueryView, SinkView, Why
from millrace.protocol.admin.server import Advice, ServerView
from millrace.protocol.admin.streams import StreamView
from tests.views import view

SECOND = 1_000_000
NOW = 1_767_268_800 * SECOND

SERVER = {
    "now_us": NOW,
    "data_dir": "/data",
    "listen": "127.0.0.1:7420",
    "admin": "127.0.0.1:7421",
    "kernels": "compiled",
    "clock_held_back_us": 0,
    "listen_guard": {"loopback": True, "tls": False, "token": False},
    "admin_guard": {"loopback": True, "tls": False, "token": False},
    "process": {"open_files": 20, "open_files_limit": 20_000},
}
STANDBY = {
    "peer": "10.0.0.2",
    "connected": False,
    "copying": False,
    "lsn": 3,
    "lag_steps": 7,
    "sent_bytes": 100,
    "since_us": 0,
    "heard_us": NOW - 60 * SECOND,
    "left": False,
}
FOLLOWS = {
    "server": "https://10.0.0.1:7421",
    "connected": False,
    "error": "it does not answer",
    "lsn": 3,
    "announced_lsn": None,
    "announced_us": None,
    "lag_steps": 0,
    "lag_tuples": 0,
    "lag_seconds": 0.0,
    "to_replay": 0,
    "silent_seconds": None,
    "received_bytes": 0,
    "connections": 0,
}
CONFIGURATION = {"limits": {"connections": 10_000}}
STREAM = {
    "name": "s",
    "timestamps": "external",
    "tuples": 10_000,
    "late": 0,
    "late_by_max_us": 0,
    "broke_promise": 0,
    "too_far_ahead": 0,
    "rejected": 0,
    "disorder_us": 0,
    "ahead_us": 86_400 * SECOND,
    "newest_us": NOW,
    "mark_us": NOW,
    "max_skew_us": None,
    "update_key": [],
}
QUERY = {
    "name": "q",
    "state": "running",
    "reason": None,
    "skipped": 0,
    "state_tuples": 0,
    "max_state": 1_000,
    "reads_streams": ["s"],
}
SINK = {
    "name": "f",
    "state": "running",
    "reason": None,
    "held": 0,
    "lag_us": 0,
    "dropped": 0,
    "slow_limit": 65_536,
    "on_slow": "wait",
}
INPUT = {"from": "s.source", "queue_tuples": 0}
OPERATOR = {
    "name": "q.project1",
    "queries": ["q"],
    "queues": ["append"],
    "inputs": [INPUT],
    "errors": 0,
    "last_error": "",
    "join": None,
}
WHY = {
    "reason": "flowing",
    "text": "All is well.",
    "operator": None,
    "stream": "s",
    "feed": None,
    "since": None,
    "held": 0,
    "try": None,
}


MEMORY = {
    "budget_bytes": 100 * 2**20,
    "used_bytes": 90 * 2**20,
    "parts": {"program": 20 * 2**20, "state": 60 * 2**20, "other": 10 * 2**20},
    "since_us": NOW - 5 * SECOND,
}
OVERLOAD = {"mode": "wait", "since_us": NOW - 5 * SECOND, "streams": ["a", "b"], "load": 0.97}


def snapshot_with(**changed: Any) -> Snapshot:
    """A healthy server with these changes."""
    parts: dict[str, Any] = {
        "server": view(ServerView, {**SERVER, **changed.get("server", {})}),
        "configuration": changed.get("configuration", CONFIGURATION),
        "streams": [view(StreamView, {**STREAM, **changed.get("stream", {})})],
        "queries": [view(QueryView, {**QUERY, **changed.get("query", {})})],
        "sinks": [view(SinkView, {**SINK, **changed.get("sink", {})})],
        "operators": [view(OperatorView, {**OPERATOR, **changed.get("operator", {})})],
        "whys": {"q": view(Why, {**WHY, **changed.get("why", {})})},
        "own_clock_us": changed.get("own_clock_us", NOW),
    }
    return Snapshot(**parts)


def only(snapshot: Snapshot) -> Advice:
    (advice,) = advise(snapshot)
    return advice


def join(*switched_us: int, order: str = "adaptive") -> Mapping[str, Any]:
    last = [{"at_us": at, "mode": "filter", "value": 0.3, "alpha": 0.3} for at in switched_us]
    return {"order": order, "mode": "filter", "value": 0.301, "alpha": 0.3, "last_switches": last}


WAITING = {"operator": "q.union1", "since": NOW - 8 * SECOND, "held": 3}


def test_nothing_is_advised_where_all_is_well() -> None:
    assert advise(snapshot_with()) == []
    assert advise(Snapshot(view(ServerView, SERVER))) == []


@pytest.mark.parametrize(
    ("code", "about", "words", "command", "changed"),
    [
        (
            "query_failed",
            "q",
            "Query q failed: it remembers too much.",
            "millrace why q",
            {"query": {"state": "failed", "reason": "it remembers too much"}},
        ),
        (
            "query_paused",
            "q",
            "is paused: for lunch. It has skipped 7 tuples so far.",
            "millrace query resume q",
            {"query": {"state": "paused", "reason": "for lunch", "skipped": 7}},
        ),
        (
            "ignored",
            "q",
            "Query q ignored 3 tuples of s: newer tuples had arrived before it was created.",
            "millrace why q",
            {"query": {"ignored": {"s": 3}}},
        ),
        (
            "sink_waiting",
            "f",
            "No space left on device. 7 rows wait for it, and it has lost 2 rows. It retries by itself",
            "millrace sink show f",
            {
                "sink": {
                    "state": "waiting",
                    "reason": "No space left on device",
                    "since_us": NOW - 3 * SECOND,
                    "path": "/d/f.jsonl",
                    "held": 4,
                    "unfinished": 3,
                    "dropped": 2,
                }
            },
        ),
        (
            "sink_outside",
            "f",
            "Sink f writes to /d/f.jsonl, outside the folders that sinks may write to.",
            "millrace config check --config FILE",
            {"sink": {"path": "/d/f.jsonl", "outside": True}},
        ),
        (
            "sink_failed",
            "f",
            "Sink f failed and writes no more rows: the disk is full.",
            "millrace sink drop f",
            {"sink": {"state": "failed", "reason": "the disk is full"}},
        ),
        (
            "reader_slow",
            "q",
            "The feeds of s wait for sink f.",
            "millrace sink show f",
            {
                "query": {
                    "slow_reader": {
                        "name": "f",
                        "since_us": NOW - 3 * SECOND,
                        "text": "The feeds of s wait for sink f.",
                        "try": "millrace sink show f",
                    }
                },
                "sink": {"held": 60_000},
            },
        ),
        (
            "no_max_skew",
            "s",
            "3 tuples wait at q.union1, the first for 8.0 s",
            "millrace sql \"ALTER STREAM s SET (max_skew = '2 seconds')\"",
            {"why": {**WAITING, "reason": "silent", "feed": "main"}},
        ),
        (
            "feed_silent",
            "s",
            "No client is feeding stream s: 1 tuple waits at q.union1",
            "millrace feed s FILE",
            {"why": {**WAITING, "reason": "no_feed", "held": 1}},
        ),
        (
            "feed_silent",
            "s",
            "Feed gate of stream s is silent",
            "millrace stream show s",
            {"why": {**WAITING, "reason": "no_answer", "feed": "gate"}},
        ),
        (
            "feed_silent",
            "s",
            "the server never requests its time (ets = 'none')",
            "millrace sql \"ALTER STREAM s SET (ets = 'on-demand')\"",
            {"why": {**WAITING, "reason": "ets_none"}},
        ),
        (
            "feed_silent",
            "s",
            "Feed gate of stream s is silent and does not report its time",
            "millrace stream show s",
            {"why": {**WAITING, "reason": "asked", "feed": "gate"}},
        ),
        (
            "waits_long",
            "s",
            "s may be late. If s is never 1 minute late, a smaller max_skew emits rows sooner.",
            "millrace sql \"ALTER STREAM s SET (max_skew = '2 seconds')\"",
            {"why": {**WAITING, "reason": "skew", "text": "s may be late."}, "stream": {"max_skew_us": 60 * SECOND}},
        ),
        (
            "waits_long",
            "s",
            "is never 1 minute late",
            "millrace sql \"ALTER STREAM s SET (max_skew = '2 seconds')\"",
            {
                "why": {**WAITING, "reason": "skew", "since": NOW},
                "stream": {"max_skew_us": 60 * SECOND, "newest_us": NOW - 90 * SECOND, "mark_us": NOW - 60 * SECOND},
            },
        ),
        (
            "waits_long",
            "s",
            "The other streams are ahead of s",
            "millrace feed s FILE",
            {"why": {**WAITING, "reason": "skew"}, "stream": {"max_skew_us": 2 * SECOND}},
        ),
        (
            "waits_long",
            "s",
            "It sends, and is far behind.",
            "millrace stream show s",
            {"why": {**WAITING, "reason": "sending", "text": "It sends, and is far behind."}},
        ),
        (
            "waits_long",
            "q",
            "The clock has not come so far.",
            "millrace query show q",
            {"why": {**WAITING, "reason": "clock", "stream": None, "text": "The clock has not come so far."}},
        ),
        (
            "append_edge",
            "q.project1",
            "50000 updates of stream s wait at q.project1",
            "millrace operator queue q.project1 inplace",
            {"stream": {"update_key": ["k"]}, "operator": {"inputs": [{**INPUT, "queue_tuples": 50_000}]}},
        ),
        (
            "join_flaps",
            "q.project1",
            "4 times in the last minute",
            "millrace query order q filter",
            {"operator": {"join": join(*(NOW - at * SECOND for at in (40, 30, 20, 10)))}},
        ),
        (
            "sink_slow",
            "f",
            "40000 rows wait for it, the oldest for 9.0 s",
            "millrace sink show f",
            {"sink": {"held": 40_000, "lag_us": 9 * SECOND}},
        ),
        (
            "sink_slow",
            "f",
            "it has lost 12 rows (on_slow = 'drop_oldest')",
            "millrace sink show f",
            {"sink": {"dropped": 12, "on_slow": "drop_oldest"}},
        ),
        (
            "catalog_unwritten",
            "server",
            "cannot write the catalog d/catalog.sqlite: disk full. Changes are safe in the journal",
            "millrace export > catalog.sql",
            {"server": {"catalog_error": "cannot write the catalog d/catalog.sqlite: disk full"}},
        ),
        (
            "journal_full",
            "server",
            "of the data directory /var/lib/my data has been full for 60.0 s: creating the next segment failed",
            "df -h '/var/lib/my data'",
            {
                "server": {
                    "data_dir": "/var/lib/my data",
                    "journal": {"full": {"since_us": NOW - 60 * SECOND, "reason": "creating the next segment failed"}},
                }
            },
        ),
        (
            "checkpoint_failed",
            "server",
            "The journal keeps all records until it can, and a start would replay 7 steps",
            "df -h /data",
            {
                "server": {
                    "data_dir": "/data",
                    "journal": {"checkpoint": {"error": "no space left on device", "steps_since": 7}},
                }
            },
        ),
        (
            "standby_gone",
            "server",
            "at 10.0.0.2 has not been heard for 60.0 s and lacks 7 steps",
            "millrace standby",
            {"server": {"standbys": [STANDBY]}},
        ),
        (
            "standby_gone",
            "server",
            "at 10.0.0.2 lacks 7 steps, more than standby.keep keeps for it",
            "millrace standby",
            {"server": {"standbys": [{**STANDBY, "left": True}]}},
        ),
        (
            "standby_gone",
            "server",
            "not connected to https://10.0.0.1:7421: it does not answer.",
            "millrace standby",
            {"server": {"follows": FOLLOWS}},
        ),
        (
            "follower_differs",
            "server",
            "another state of query q, operator q.sum1 and 2 other operators after step 90: a restart could emit other",
            "millrace journal show --from 90 --limit 1",
            {
                "server": {
                    "journal": {
                        "follower": {"difference": {"lsn": 90, "operators": ["query q, operator q.sum1", "x", "y"]}}
                    }
                }
            },
        ),
        (
            "follower_behind",
            "server",
            "The follower of the journal is 6.0 minutes and 1 step behind the server, which makes checkpoints itself",
            "top -p 7",
            {"server": {"journal": {"follower": {"running": True, "pid": 7, "lag_seconds": 360.0, "lag_steps": 1}}}},
        ),
        (
            "history_behind",
            "s",
            "lags: 900 rows wait for the disk, and the stream's feeds wait",
            "millrace stream show s",
            {"stream": {"archive": {"held": True, "waiting_rows": 900, "error": None, "gaps": []}}},
        ),
        (
            "history_behind",
            "s",
            "cannot be written: no space left on device.",
            "millrace stream show s",
            {"stream": {"archive": {"held": False, "error": "no space left on device", "gaps": []}}},
        ),
        (
            "history_behind",
            "s",
            "has 1 gap:",
            "millrace stream show s",
            {"stream": {"archive": {"held": False, "error": None, "gaps": [{"reason": "killed"}]}}},
        ),
        (
            "wrong_unit",
            "s",
            (
                "The newest time of stream s is 1970-01-01T00:29:30.588380Z, which is 1770588380 as an integer; it "
                "looks like seconds (2026-02-08T22:06:20Z): integer timestamps are microseconds, so multiply by "
                "1000000, or declare the stream WITH (time_unit = 's')."
            ),
            "millrace sql \"ALTER STREAM s SET (time_unit = 's')\"",
            {
                "server": {"now_us": 1_770_588_381 * SECOND},
                "own_clock_us": 1_770_588_381 * SECOND,
                "stream": {"newest_us": 1_770_588_380},
            },
        ),
        (
            "late",
            "s",
            (
                "The latest was 20492.9 days late, too much for a disorder. Its time is near 1970, which suggests "
                "that its feed sends another unit: integer timestamps are microseconds. Correct the sender, or set the "
                "time_unit of the stream."
            ),
            "millrace tail s.late --from 0 --json",
            {
                "server": {"now_us": 1_770_588_381 * SECOND},
                "own_clock_us": 1_770_588_381 * SECOND,
                "stream": {
                    "late": 500,
                    "newest_us": 1_770_588_380 * SECOND,
                    "late_by_max_us": 1_770_588_380 * SECOND - 1_770_588_000,
                },
            },
        ),
        (
            "late",
            "s",
            "The latest was 3.0 days late, too much for a disorder. Look at these tuples",
            "millrace tail s.late --from 0 --json",
            {"stream": {"late": 500, "late_by_max_us": 3 * 86_400 * SECOND}},
        ),
        (
            "late",
            "s",
            "(5.0%) arrived late and are in no result. With disorder = '9 seconds' instead of '5 seconds', none",
            "millrace sql \"ALTER STREAM s SET (disorder = '9 seconds')\"",
            {"stream": {"late": 500, "late_by_max_us": 3_400_000, "disorder_us": 5 * SECOND}},
        ),
        (
            "late",
            "s",
            "With disorder = '40 ms' instead of '0 seconds'",
            "millrace sql \"ALTER STREAM s SET (disorder = '40 ms')\"",
            {"stream": {"late": 500, "late_by_max_us": 39_500}},
        ),
        (
            "late",
            "s",
            "400 of them broke a promise",
            "millrace tail s.late --from 0 --json",
            {"stream": {"late": 500, "broke_promise": 400, "late_by_max_us": 5}},
        ),
        (
            "clock_ahead",
            "s",
            "is 90.0 s ahead of the server's clock",
            "millrace sql \"ALTER STREAM s SET (max_ahead = '1 second')\"",
            {"stream": {"newest_us": NOW + 90 * SECOND}},
        ),
        (
            "clock_ahead",
            "s",
            "The server refused 3 tuples of stream s: they, or others in their frames, were ahead of",
            "millrace stream show s",
            {"stream": {"too_far_ahead": 3, "rejected": 3}},
        ),
        (
            "rejected",
            "s",
            "refused 5 tuples of stream s that did not fit",
            "millrace stream show s",
            {"stream": {"rejected": 5}},
        ),
        (
            "rows_failed",
            "q.project1",
            "dropped 2 rows that it could not compute: division by zero.",
            "millrace explain q",
            {"operator": {"errors": 2, "last_error": "division by zero"}},
        ),
        (
            "state_full",
            "q",
            "holds 900 tuples in its state; at 1000 (max_state)",
            "millrace explain q --analyze",
            {"query": {"state_tuples": 900}},
        ),
        (
            "memory_short",
            "server",
            "of 100.0 MiB (server.memory) are used, most of it by the state of queries (60.0 MiB).",
            "millrace top",
            {"server": {"memory": {**MEMORY, "stage": "shed"}, "overload": {**OVERLOAD, "mode": "shed"}}},
        ),
        (
            "overloaded",
            "server",
            "The feeds of a, b wait for credit, so their clients send more slowly, and nothing is lost.",
            "millrace top",
            {"server": {"overload": OVERLOAD}},
        ),
        ("clock", "server", "are 5.0 s apart", "timedatectl status", {"own_clock_us": NOW - 5 * SECOND}),
        (
            "clock",
            "server",
            "was set back by 30.0 s",
            "timedatectl status",
            {"server": {"clock_held_back_us": 30 * SECOND}},
        ),
        (
            "descriptors",
            "server",
            "allows the server 1024 open files and sockets, and its configuration 10000 connections",
            "ulimit -n 11024; millrace serve",
            {"server": {"process": {"open_files": 20, "open_files_limit": 1_024}}},
        ),
        (
            "descriptors",
            "server",
            "has 19000 files and sockets open; the system allows 20000",
            "ulimit -n 40000; millrace serve",
            {"server": {"process": {"open_files": 19_000, "open_files_limit": 20_000}}},
        ),
        (
            "open_to_network",
            "admin",
            "Anyone who can reach 127.0.0.1:7421 can change everything",
            "millrace config check --config FILE",
            {"server": {"admin_guard": {"loopback": False, "tls": True, "token": False}}},
        ),
        (
            "nothing_kept",
            "server",
            "has no data folder",
            "millrace export > catalog.sql; millrace serve --data-dir DIR",
            {"server": {"data_dir": None}},
        ),
        ("slow_kernels", "server", "are not compiled", "make setup", {"server": {"kernels": "python"}}),
        ("outdated_build", "server", "older than their sources", "make setup", {"server": {"kernels": "outdated"}}),
    ],
)
def test_one_thing_is_wrong(code: str, about: str, words: str, command: str, changed: dict[str, Any]) -> None:
    found = only(snapshot_with(**changed))
    assert (found.code, found.about, found.try_) == (code, about, command)
    assert words in found.text
    assert found.text.endswith(".")


@pytest.mark.parametrize(
    "changed",
    [
        {"why": {**WAITING, "reason": "silent", "since": NOW - SECOND}},  # the client may still answer
        {
            "why": {**WAITING, "reason": "skew", "since": NOW - SECOND},
            "stream": {"max_skew_us": 2 * SECOND},
        },  # as agreed
        {"why": {**WAITING, "reason": "skew", "since": NOW}, "stream": {"max_skew_us": 60 * SECOND}},  # not yet long
        {"why": {"reason": "gathering"}},  # an open window
        {"stream": {"late": 500, "disorder_us": 9 * SECOND}},  # the disorder was changed since
        {"stream": {"late": 500, "ended": True}},  # all of them arrived after the end
        {"stream": {"late": 10}},  # one tuple of a thousand
        {"stream": {"timestamps": "internal", "late": 500, "newest_us": None}},
        {"stream": {"history": True, "archive": None}},
        {"stream": {"archive": {"held": False, "waiting_rows": 9, "error": None, "gaps": []}}},
        {"stream": {"update_key": ["k"]}, "operator": {"inputs": [{**INPUT, "queue_tuples": 9}]}},
        {"operator": {"inputs": [{**INPUT, "queue_tuples": 50_000}]}},  # not an update stream
        {
            "stream": {"update_key": ["k"]},
            "operator": {"queues": ["inplace"], "inputs": [{**INPUT, "queue_tuples": 50_000}]},
        },
        {"operator": {"join": join(*(NOW - at * SECOND for at in (400, 300, 200, 10)))}},
        {"operator": {"join": join(NOW, NOW, NOW, NOW, order="filter")}},  # a strategy was set already
        {"server": {"admin_guard": {"loopback": False, "tls": True, "token": True}}},
        {"server": {"process": {"open_files": None, "open_files_limit": None}}},
        {"own_clock_us": NOW - 1_000},
    ],
)
def test_normal_situations_get_no_advice(changed: dict[str, Any]) -> None:
    assert advise(snapshot_with(**changed)) == []


def test_queries_that_wait_for_one_stream_are_one_advice() -> None:
    whys = {
        name: view(Why, {**WHY, **WAITING, "reason": "silent", "operator": f"{name}.union1"}) for name in ("p", "q")
    }
    found = only(Snapshot(view(ServerView, SERVER), CONFIGURATION, whys=whys))
    assert "3 tuples wait at p.union1, q.union1" in found.text


def test_one_reason_for_waiting_is_one_advice() -> None:
    whys = {name: view(Why, {**WHY, **WAITING, "reason": "grace", "text": f"{name} waits."}) for name in ("p", "q")}
    found = only(Snapshot(view(ServerView, SERVER), CONFIGURATION, whys=whys))
    assert found.text == "p waits. The same applies to q."


@pytest.mark.parametrize(
    ("own", "tried"), [(None, "millrace stream show s"), ("millrace feed s FILE", "millrace feed s FILE")]
)
def test_a_window_of_a_silent_stream_while_another_advances(own: str | None, tried: str) -> None:
    streams = [
        view(StreamView, {**STREAM, "newest_us": NOW - 20 * SECOND}),
        view(StreamView, {**STREAM, "name": "other"}),
    ]
    query = view(QueryView, {**QUERY, "reads_streams": ["s", "other"]})
    why = view(Why, {**WHY, "reason": "gathering", "text": "Its window is open.", "try": own})
    found = only(Snapshot(view(ServerView, SERVER), CONFIGURATION, streams, [query], whys={"q": why}))
    assert (found.code, found.about, found.try_) == ("left_behind", "s", tried)
    assert "Stream s is 20.0 s older than the other streams of query q" in found.text
    assert found.text.endswith("Its window is open.")


def test_a_stream_of_late_tuples_is_never_fed_by_hand() -> None:
    why = view(Why, {**WHY, **WAITING, "reason": "no_feed", "stream": "s.late", "try": "millrace stream show s"})
    assert only(Snapshot(view(ServerView, SERVER), CONFIGURATION, whys={"q": why})).try_ == "millrace stream show s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(90, "90.0 s"), (7_200 * 1.5, "3.0 hours"), (600, "10.0 minutes"), (86_400 * 20, "20.0 days")],
)
def test_a_duration_has_the_unit_of_its_size(seconds: float, words: str) -> None:
    advice = only(snapshot_with(own_clock_us=NOW - round(seconds * SECOND)))
    assert f"are {words} apart" in advice.text


def test_every_rule_is_listed_once() -> None:
    assert len(RULES) == len(set(RULES))


def test_every_code_is_documented() -> None:
    here = Path(__file__).parents[2]
    codes = re.findall(r'Advice\(\s*"(\w+)"', (here / "server/millrace/observe/advice.py").read_text())
    page = (here / "docs" / "cli.md").read_text()
    assert len(set(codes)) >= len(RULES)
    assert [code for code in codes if f"`{code}`" not in page] == []
