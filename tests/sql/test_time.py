"""Statements about time at run time: late tuples as a stream, order by event time, changed policies."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.offline.script import plan_script
from tests.running import Result, run_events, run_script

STREAM = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '3 us');"


def event(ts: int, at: int | None = None, k: int = 0, feed: str = "main") -> dict[str, Any]:
    line: dict[str, Any] = {"stream": "s", "tuple": {"ts": ts, "k": k}, "feed": feed}
    return line if at is None else {"at": at, **line}


# -- late tuples -------------------------------------------------------------------------------------------------------


def test_late_tuples_flow_into_a_query(tmp_path: Path) -> None:
    sql = STREAM + "SELECT * FROM s.late; SELECT k, late_by_us FROM s.late WHERE late_by_us > 1;"
    events = [event(20, 100), event(16, 101, k=7), event(17, 102), event(1, 103, k=8, feed="main")]
    result = run_events(sql, events, tmp_path)
    assert result.rows["q"] == [
        {"ts": 16, "k": 7, "late_by_us": 1, "mark": 17, "feed": "main", "at": 101},
        {"ts": 1, "k": 8, "late_by_us": 16, "mark": 17, "feed": "main", "at": 103},
    ]
    assert result.rows["q2"] == [{"k": 8, "late_by_us": 16}]


def test_late_tuples_tell_the_same_to_a_query_and_to_the_late_file(tmp_path: Path) -> None:
    rows = tmp_path / "s.csv"
    rows.write_text("ts,k\n" + "".join(f"{n * 37 % 101},{n}\n" for n in range(300)), "utf-8")
    result = run_script(STREAM + "SELECT * FROM s.late", tmp_path, inputs=[("s", str(rows))], report=None)
    late = [
        {**line["tuple"], **{name: line[name] for name in ("late_by_us", "mark", "feed", "at")}}
        for line in result.late["s"]
    ]
    assert len(late) > 100
    assert result.rows["q"] == late


def test_tuples_on_time_and_late_tuples_are_all_tuples(tmp_path: Path) -> None:
    sql = STREAM + "CREATE QUERY all_of_it WITH (order = 'event') AS SELECT k FROM s UNION ALL SELECT k FROM s.late;"
    events = [event(n * 37 % 101, k=n) for n in range(200)]
    result = run_events(sql, events, tmp_path)
    assert sorted(row["k"] for row in result.rows["all_of_it"]) == list(range(200))
    assert result.report["streams"]["s"]["late"] == result.report["streams"]["s.late"]["tuples"] > 0


def test_a_dropped_stream_takes_its_late_tuples_along(tmp_path: Path) -> None:
    sql = f"""{STREAM} CREATE QUERY before AS SELECT * FROM s.late; DROP QUERY before; DROP STREAM s;
    CREATE STREAM s (ts TIMESTAMP, k BIGINT, more TEXT) WITH (time = 'ts'); SELECT more FROM s.late"""
    events = [event(20, 100), {"at": 101, "stream": "s", "tuple": {"ts": 1, "k": 1, "more": "x"}}]
    assert run_events(sql, events, tmp_path).rows["q"] == [{"more": "x"}]


# -- order = 'event' ---------------------------------------------------------------------------------------------------


def released(log: list[tuple[int, int | None]], disorder: int) -> list[tuple[int, int]]:
    """The oracle: tuples on time, by time and arrival, after the mark has reached them."""
    mark, newest, on_time = -(10**9), -(10**9), []
    for number, (ts, promise) in enumerate(log):
        if ts >= mark:
            on_time.append((ts, number))
            newest = max(newest, ts)
            mark = max(mark, newest - disorder)
        if promise is not None:
            mark = max(mark, promise)
    return sorted(row for row in on_time if row[0] <= mark)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 40)), max_size=14),
    st.integers(0, 12),
    st.booleans(),
)
def test_a_plain_select_in_event_order_emits_rows_up_to_the_mark(
    log: list[tuple[int, int | None]], disorder: int, where: bool
) -> None:
    sql = f"""CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '{disorder} us');
              CREATE QUERY q WITH (order = 'event') AS SELECT ts, k FROM s {"WHERE k >= 0" if where else ""};"""
    events: list[dict[str, Any]] = []
    for number, (ts, promise) in enumerate(log):
        events.append(event(ts, at=100, k=number))
        if promise is not None:
            events.append({"at": 100, "stream": "s", "punctuation": promise})
    with TemporaryDirectory() as folder:
        result = run_events(sql, events, Path(folder), close=False)
    assert [(row["ts"], row["k"]) for row in result.rows["q"]] == released(log, disorder)


# -- policies ----------------------------------------------------------------------------------------------------------


def outcome(result: Result) -> Any:
    return result.rows, result.late, result.report["streams"]


def test_an_altered_stream_runs_as_one_that_was_created_so(tmp_path: Path) -> None:
    created = "CREATE STREAM s (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', disorder = '9 us', max_ahead = '50 us');"
    altered = STREAM + "ALTER STREAM s SET (disorder = '9 us', max_ahead = '50 us');"
    events = [event(ts, at) for at, ts in enumerate((20, 5, 12, 11, 10, 500, 30, 20, 21))]
    outcomes = [outcome(run_events(sql + "SELECT ts FROM s", events, tmp_path)) for sql in (created, altered)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2]["s"]["rejected"] == 1
    assert [row["ts"] for row in outcomes[0][0]["q"]] == [20, 12, 11, 30, 21]


def test_an_alteration_may_come_after_the_queries(tmp_path: Path) -> None:
    """The clock answers for the silent stream only when it may."""
    sql = """CREATE STREAM i (v BIGINT) WITH (ets = 'none'); CREATE STREAM j (v BIGINT) WITH (ets = 'none');
             CREATE QUERY u WITH (order = 'event') AS SELECT v FROM i UNION ALL SELECT v FROM j;"""
    events = [{"at": 100, "stream": "i", "tuple": {"v": 1}}, {"at": 200, "tick": True}]
    assert run_events(sql, events, tmp_path, close=False).rows["u"] == []
    sql += "ALTER STREAM j SET (ets = 'on-demand')"
    assert run_events(sql, events, tmp_path, close=False).rows["u"] == [{"v": 1}]


def test_a_script_knows_a_stream_as_it_was_altered() -> None:
    script = plan_script(STREAM + "ALTER STREAM s SET (disorder = '9 us'); SELECT k FROM s")
    assert script.streams["s"].disorder_us == 9
