"""The default span of a comparison, and the written rows that count. These tests do not start Spark."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.backfill.inputs import find_history
from millrace.backfill.job import flow_of_text
from millrace.backfill.outputs import MANIFEST
from millrace.backfill.running import BackfillRequest
from millrace.backfill.splitting import ALWAYS, Slice
from millrace.backfill.verifying import LiveQueryInfo, span_of_files, span_of_query, verify
from millrace.history.files import Gap, Reach, write_reach
from millrace.protocol import Refuse
from millrace.values.eventtime import MAX_TIME, MIN_TIME

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts');"
WINDOWS = STREAM + "SELECT k, count(*) AS n, window_end FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k"
BARE = STREAM + "SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 us') GROUP BY k"
PLAIN = STREAM + "SELECT ts, k FROM s"
TOTALS = STREAM + "SELECT k, count(*) AS n FROM s GROUP BY k"
AHEAD = STREAM + "SELECT a.ts FROM s a LEFT JOIN s b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '20 us'"
MICROS = pa.timestamp("us", "UTC")


@pytest.fixture
def history(tmp_path):
    """Rows at 0, 10, .. 90 in two files, which arrived in order at 1000, 1001, .. 1009."""
    for first in (0, 5):
        numbers = list(range(first, first + 5))
        place = tmp_path / "history" / "s" / "date=1970-01-01"
        place.mkdir(parents=True, exist_ok=True)
        table = pa.table(
            {
                "ts": pa.array([10 * number for number in numbers], MICROS),
                "k": numbers,
                "__seq": numbers,
                "__arrived": pa.array([1_000 + number for number in numbers], MICROS),
                "__late": [False] * 5,
            }
        )
        pq.write_table(table, place / f"{first}-{first + 4}.parquet", row_group_size=2)
    return tmp_path / "history"


def told(*, mark=None, **lived):
    return LiveQueryInfo((), {"s": mark}, **lived)


@pytest.mark.parametrize(
    ("sql", "lived", "span"),
    [
        (WINDOWS, {"mark": MAX_TIME}, ALWAYS),
        (AHEAD, {"mark": 70}, Slice(MIN_TIME, 50)),
        (WINDOWS, {"since_us": 999, "mark": 70}, Slice(MIN_TIME, 70)),
        # It received the tuples after the row at 30, so its windows are complete from the first one that starts later.
        (WINDOWS, {"since_us": 1_003, "mark": 70}, Slice(40, 70)),
        (PLAIN, {"since_us": 1_006, "mark": MAX_TIME}, Slice(61, MAX_TIME)),
        (WINDOWS, {"seam_us": 50, "mark": 70}, Slice(50, 70)),
        (WINDOWS, {"seam_us": 50, "since_us": 1_008, "mark": 99}, Slice(90, 99)),
        (TOTALS, {"since_us": 999, "mark": 70}, ALWAYS),
    ],
)
def test_of_a_query_that_which_it_has_given_whole(history, sql, lived, span):
    flow = flow_of_text(sql)
    assert span_of_query(flow, find_history(flow, str(history), ["s"]), told(**lived)) == span


def gap_in(history, after_seq, from_us=None):
    stream = flow_of_text(PLAIN).streams["s"]
    gap = Gap(after_seq, from_us, "killed", 2_000)
    write_reach(history / "s", replace(Reach.begun(stream), reach_us=95, last_seq=9, gaps=(gap,)))


DISORDERED = WINDOWS.replace("time = 'ts'", "time = 'ts', disorder = '7 us'")


@pytest.mark.parametrize(
    ("sql", "after_seq", "lived", "span"),
    [
        # The first row after the gap is at 50: no lost row was later.
        (PLAIN, 4, {"mark": 90}, Slice(51, 90)),
        (WINDOWS, 4, {"mark": 90}, Slice(60, 90)),
        (DISORDERED, 4, {"mark": 90}, Slice(67, 90)),
        (WINDOWS, 4, {"mark": 90, "since_us": 1_006}, Slice(70, 90)),
        (WINDOWS, 4, {"mark": 90, "since_us": 1_002}, Slice(60, 90)),
        # The query lacks the tuples that history lacked when the query started with it.
        (WINDOWS, 4, {"mark": 90, "seam_us": 50}, Slice(50, 90)),
        (WINDOWS, 4, {"mark": 90, "seam_us": 20}, Slice(60, 90)),
        (WINDOWS, 9, {"mark": 90}, Slice(MAX_TIME, 90)),
    ],
)
def test_what_was_made_of_tuples_in_a_gap_is_not_compared(history, sql, after_seq, lived, span):
    gap_in(history, after_seq, 45)
    flow = flow_of_text(sql)
    assert span_of_query(flow, find_history(flow, str(history), ["s"]), told(**lived)) == span


def test_a_gap_that_may_matter_for_ever_is_told(history, compared):
    gap_in(history, 4)
    with pytest.raises(Refuse, match=r"the archive of s lacks \(those that arrived after sequence number 4: killed\)"):
        compared(TOTALS, [], [], mark=90)
    gap_in(history, 9)
    with pytest.raises(
        Refuse, match=r"it would start after a gap of an archive, and no tuple has arrived since, and rows"
    ):
        compared(WINDOWS, [], [], mark=90)


def test_a_query_that_never_has_all_is_told_so(history):
    flow = flow_of_text(TOTALS)
    with pytest.raises(Refuse, match=r"q was created at 1970-01-01T00:00:00.001004Z, when s already had rows"):
        span_of_query(flow, find_history(flow, str(history), ["s"]), told(since_us=1_004))


def test_of_files_what_lies_between_the_first_row_and_the_last(tmp_path):
    path = tmp_path / "live.jsonl"
    path.write_text("".join(json.dumps({"k": 1, "n": 1, "window_end": end}) + "\n" for end in (30, 20, 50)))
    flow = flow_of_text(WINDOWS)
    assert span_of_files(flow, [str(path)]) == Slice(19, 50)
    (tmp_path / "past").mkdir()
    (tmp_path / "past" / MANIFEST).write_text(json.dumps({"from_us": 0, "to_us": 20}))
    assert span_of_files(flow, [str(tmp_path / "past")]) == Slice(0, 20)
    assert span_of_files(flow, [str(tmp_path / "past"), str(path)]) == Slice(0, 50)
    assert span_of_files(flow_of_text(TOTALS), [str(path)]) == ALWAYS


def test_the_folder_of_a_sink_is_its_whole_files(tmp_path):
    folder = tmp_path / "live.parquet"
    folder.mkdir()
    for name, ends in (("f-0-1", [30, 20]), ("f-2-2", [50]), (".f-3-3", [90])):
        rows = {"k": [1] * len(ends), "n": [1] * len(ends), "window_end": pa.array(ends, pa.timestamp("us", tz="UTC"))}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet")
    assert span_of_files(flow_of_text(WINDOWS), [str(folder)]) == Slice(19, 50)


@pytest.fixture
def compared(history, tmp_path, monkeypatch):
    """The result of a comparison of recomputed rows with written rows."""

    def compare(sql, recomputed, written, span=ALWAYS, **lived):
        flow = flow_of_text(sql)
        names = flow.schema.names
        path = tmp_path / "live.jsonl"
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in written))
        wanted = BackfillRequest(flow, find_history(flow, str(history), ["s"]), "", span)
        asked: list[Slice] = []
        monkeypatch.setattr("millrace.backfill.verifying.compute", lambda made, *_: asked.append(made.span))
        rows = [dict(zip(names, row, strict=True)) for row in recomputed]
        monkeypatch.setattr("millrace.backfill.verifying.read_backfill", lambda _: iter(rows))
        said: list[str] = []
        made = verify(wanted, [str(path)], said.append, lambda *_: None, told(**lived) if lived else None)
        assert asked == [made.span]
        return made, said

    return compare


def test_rows_below_a_seam_and_of_open_windows_are_no_differences(compared):
    rows = [(1, 2, 30), (1, 1, 40)]
    made, said = compared(WINDOWS, rows, [*rows, (1, 1, 60)], seam_us=25, mark=45)
    assert (made.span, made.differences.count) == (Slice(25, 45), 0)
    (line,) = said
    assert line.startswith("compared from 1970-01-01T00:00:00.000025Z to 1970-01-01T00:00:00.000045Z, where both")
    made, said = compared(WINDOWS, rows, [*rows, (1, 1, 60)], Slice(25, 70), seam_us=25, mark=45)
    assert (made.differences.extra, said) == ([{"k": 1, "n": 1, "window_end": 60}], [])
    made, _ = compared(WINDOWS, rows, rows[:1], Slice(to_us=40), seam_us=25, mark=45)
    assert (made.span, made.differences.missing) == (Slice(25, 40), [{"k": 1, "n": 1, "window_end": 40}])


def test_where_no_column_tells_the_time_what_is_left_over_may_lie_outside(compared):
    made, _ = compared(BARE, [(1, 2), (2, 1)], [(1, 2), (3, 1)], seam_us=25, mark=45)
    assert (made.differences.missing, made.differences.extra) == ([{"k": 2, "n": 1}], [])
    assert "no column has the time of a row" in made.notes[0]


def test_nothing_that_both_have(compared):
    with pytest.raises(Refuse, match="no span is complete on both sides yet"):
        compared(WINDOWS, [], [], since_us=1_009, mark=70)
    with pytest.raises(Refuse, match=r"start at 1970-01-01T00:00:00\.000100Z, and no row is complete yet\. Wait"):
        compared(WINDOWS, [], [], since_us=1_009)


def test_of_a_paused_query_it_is_said_that_rows_passed_it_by(compared):
    made, _ = compared(WINDOWS, [], [], mark=70, skipped=1)
    assert made.notes == ("q skipped 1 tuple while it was paused: its rows do not contain them",)
