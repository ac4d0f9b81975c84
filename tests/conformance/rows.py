"""Cases as SQL and events: how a case runs, and how its rows are compared."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from millrace.offline.script import plan_script
from millrace.protocol import Type, parse_timestamp
from millrace.values.aggregates import AGGREGATES, user_aggregate
from tests.comparison import same_event_order, same_final, same_rows
from tests.running import Result, lines, run_events, run_script

HERE = Path(__file__).parent
Case = Mapping[str, Any]

TYPES = {
    "time_us": "TIMESTAMP",
    "int": "BIGINT",
    "string": "TEXT",
    "float": "DOUBLE",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
}


def cases() -> list[Case]:
    return [json.loads(path.read_text("utf-8")) for path in sorted((HERE / "cases").glob("*.json"))]


# -- SQL ---------------------------------------------------------------------------------------------------------------


def streams_of(case: Case) -> str:
    """The statements that create a case's streams."""
    return "\n".join(_stream(case, name, fields) for name, fields in case["streams"].items())


def _stream(case: Case, name: str, fields: Mapping[str, str]) -> str:
    if case["query"]["op"] == "upstream_trace":
        fields = {**fields, "one": "int"}
    columns = ", ".join(f'"{field}" {_type(kind)}' for field, kind in fields.items())
    progress = "punctuation" if _by_punctuation(case, name) else "tuples"
    return f"CREATE STREAM \"{name}\" ({columns}) WITH (time = 'ts', progress = '{progress}'{_key_of(case)});"


def _key_of(case: Case) -> str:
    """The update key; a trace is of one key."""
    match case["query"]["op"]:
        case "update_queue":
            return f", update_key = '{case['query']['key']}'"
        case "upstream_trace":
            return ", update_key = 'one'"
    return ""


def _type(kind: str) -> str:
    """A question mark marks a nullable column. Decimals are texts, because Millrace has no decimal type."""
    return "DOUBLE" if kind.startswith("decimal") else TYPES[kind.removesuffix("?")]


def _by_punctuation(case: Case, name: str) -> bool:
    """Whether tuples may not move the stream's mark: the case says so, or its times decrease."""
    own = [entry for entry in case["feed"] if entry.get("s") == name]
    times = [time for entry in own for time in _times(entry)]
    return any("punct" in entry for entry in own) or times != sorted(times)


def _times(entry: Mapping[str, Any]) -> list[int]:
    if "file" in entry:
        return [row["ts_us"] for row in lines(HERE / entry["file"])]
    return [entry["ts"]] if "ts" in entry else []


def _columns(case: Case) -> str:
    return ", ".join(f'"{name}"' for name in case["expected"]["columns"])


def _passthrough(case: Case) -> str:
    def columns(stream: str) -> str:
        return ", ".join(f"'{stream}' AS _stream" if n == "_stream" else f'"{n}"' for n in case["expected"]["columns"])

    return " UNION ALL ".join(f'SELECT {columns(stream)} FROM "{stream}"' for stream in case["streams"])


def _ordered_union(case: Case) -> str:
    arms = " UNION ALL ".join(f'SELECT {_columns(case)} FROM "{stream}"' for stream in case["query"]["inputs"])
    return f"CREATE QUERY q WITH (order = 'event') AS {arms}"


def _reorder(case: Case) -> str:
    (stream,) = case["streams"]
    return f"CREATE QUERY q WITH (order = 'event') AS SELECT {_columns(case)} FROM \"{stream}\""


def _nos_trace(case: Case) -> str:
    """A path of selections that everything passes."""
    (stream,) = case["streams"]
    table = f'"{stream}"'
    for _ in range(case["query"]["operators"] - 1):
        table = f"(SELECT * FROM {table} WHERE v >= 0)"
    return f"CREATE QUERY path WITH (fuse = 'off') AS SELECT * FROM {table} WHERE v >= 0"


def _window_agg(case: Case) -> str:
    query, (stream,) = case["query"], case["streams"]
    size, slide = query["size_us"], query.get("slide_us", query["size_us"])
    table = f"HOP(\"{stream}\", ts, '{slide} us', '{size} us', '{query.get('offset_us', 0)} us')"
    return _aggregated(case, table)


def _session_agg(case: Case) -> str:
    (stream,) = case["streams"]
    return _aggregated(case, f"SESSION(\"{stream}\", ts, '{case['query']['gap_us']} us')")


def _aggregated(case: Case, table: str) -> str:
    groups = case["query"].get("group_by", [])
    calls = {name: _call(function, column) for function, column, name in case["query"]["aggs"]}
    calls["first_ts"] = "min(ts)"
    columns = ", ".join(f'{calls.get(name, _quoted(name))} AS "{name}"' for name in case["expected"]["columns"])
    by = ", ".join([*map(_quoted, groups), "window_start", "window_end"])
    return f"SELECT {columns} FROM {table} GROUP BY {by}"


def _call(function: str, column: str) -> str:
    if function == "count_distinct":
        return f"count(DISTINCT {_quoted(column)})"
    return f"{function}({column if column == '*' else _quoted(column)})"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _dedup(case: Case) -> str:
    """The first or last row of each key: an update stream."""
    query, (stream,) = case["query"], case["streams"]
    columns = ", ".join(
        _quoted(name) if name in query["key"] else f'{query["keep"]}("{name}") AS "{name}"'
        for name in case["expected"]["columns"]
    )
    return f'SELECT {columns} FROM "{stream}" GROUP BY {", ".join(map(_quoted, query["key"]))}'


def _interval_join(case: Case) -> str:
    """Bounds may be open or missing; a case may name a column for the joined row's time."""
    query = case["query"]
    bounds = []
    for key, above, open_ in (("lo", ">", "lo_incl"), ("hi", "<", "hi_incl")):
        if query[f"{key}_us"] is not None:
            sign = f"{above}=" if query.get(open_, True) else above
            bounds.append(f"r.ts {sign} l.ts + INTERVAL '{query[f'{key}_us']} us'")
    return _joined(case, f'"{query["left"]}" l', f'"{query["right"]}" r', bounds)


def _window_join(case: Case) -> str:
    query = case["query"]
    windowed = [
        f"HOP(\"{query[side]}\", ts, '{query['slide_us']} us', '{query['size_us']} us') {side[0]}"
        for side in ("left", "right")
    ]
    left, right = windowed
    return _joined(case, left, right, ["l.window_start = r.window_start"])


def _joined(case: Case, left: str, right: str, conditions: Sequence[str]) -> str:
    query = case["query"]
    columns = [f'{side}."{name}" AS "{shown}"' for side, name, shown in query["select"]]
    if "ts_max" in case["expected"]["columns"]:
        columns.append("greatest(l.ts, r.ts) AS ts_max")
    keys = [f'l."{left_key}" = r."{right_key}"' for left_key, right_key in query["on"]]
    return f"SELECT {', '.join(columns)} FROM {left} JOIN {right} ON {' AND '.join([*keys, *conditions]) or 'TRUE'}"


def _sequence(case: Case) -> str:
    """Every pair: no sequence emits these, so it is a join in which one tuple precedes the other."""
    query = case["query"]
    columns = ", ".join(f'{side}."{name}" AS "{shown}"' for side, name, shown in query["select"])
    keys = [f'a."{left}" = b."{right}"' for left, right in query["on"]]
    first, then = f'"{query["first"]}" a', f'"{query["then"]}" b'
    if query["mode"] == "unrestricted":
        before = "a.ts < b.ts" if query["strict"] else "a.ts <= b.ts"
        return f"SELECT {columns} FROM {first} JOIN {then} ON {' AND '.join([*keys, before])}"
    on = f" ON {' AND '.join(keys)}" if keys else ""
    return f"SELECT {columns} FROM {first} FOLLOWED BY {then} {query['mode'].upper()}{on}"


def _update_queue(case: Case) -> str:
    """The tuples that an edge retains of those that arrive at once."""
    (stream,) = case["streams"]
    key = case["query"]["key"]
    columns = ", ".join(dict.fromkeys([_quoted(key), *map(_quoted, case["expected"]["columns"])]))
    return f'SELECT {columns} FROM "{stream}" LATEST USING {case["query"]["policy"]}'


def _upstream_trace(case: Case) -> str:
    """The windows of one key, and the window of each result."""
    query, (stream,) = case["query"], case["streams"]
    window = f"HOP(\"{stream}\", ts, '{query['delta']} us', '{query['omega']} us')"
    return f"SELECT one, count(*) AS n, window_start FROM {window} LATEST {query['mode']} GROUP BY one, window_start"


def _sorted_list() -> None:
    """The cases show the values of a group as a list. Millrace has no lists, so this returns one as text."""
    AGGREGATES.add(
        user_aggregate(
            "sorted_list",
            [Type.BIGINT],
            Type.TEXT,
            init=list,
            iterate=lambda values, value: [*values, value],
            terminate=lambda values: json.dumps(sorted(values)),
            merge=lambda first, second: [*first, *second],
        )
    )


_sorted_list()

# By the operation that a case's query names.
QUERIES: Mapping[str, Callable[[Case], str]] = {
    "passthrough": _passthrough,
    "ordered_union": _ordered_union,
    "reorder": _reorder,
    "nos_trace": _nos_trace,
    "window_agg": _window_agg,
    "session_agg": _session_agg,
    "dedup": _dedup,
    "interval_join": _interval_join,
    "window_join": _window_join,
    "sequence": _sequence,
    "update_queue": _update_queue,
    "upstream_trace": _upstream_trace,
}


def sql_of(case: Case) -> str:
    return f"{streams_of(case)}\n{QUERIES[case['query']['op']](case)};"


# -- events ------------------------------------------------------------------------------------------------------------


def events_of(case: Case, feed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A feed of a case, or the first part of it, as lines of `--events`."""
    events = [event for entry in feed for event in _events(entry)]
    for event in events:
        kinds = case["streams"][event["stream"]]
        for name, value in event.get("tuple", {}).items():
            if kinds[name].startswith("decimal") and value is not None:
                event["tuple"][name] = float(value)
    return events


def _events(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"at": entry["at"]} if "at" in entry else {}
    if "check" in entry or "deq" in entry:
        return
    if "file" in entry:
        for row in lines(HERE / entry["file"]):
            ts = row.pop("ts_us")
            del row["ts_iso"]
            yield {"stream": entry["s"], "tuple": {"ts": ts, **row}}
    elif "punct" in entry:
        yield {**at, "stream": entry["s"], "punctuation": entry["punct"]}
    elif "eos" in entry:
        yield {**at, "stream": entry["s"], "close": True}
    else:
        yield {**at, "stream": entry["s"], "tuple": {"ts": entry["ts"], **entry["row"]}}


# -- running and comparing ---------------------------------------------------------------------------------------------


def check_case(case: Case, folder: Path) -> None:
    """Run a case, also up to each of its checks, and compare."""
    if case["query"]["op"] in CHECKS:
        CHECKS[case["query"]["op"]](case, folder)
        return
    expected = case["expected"]
    for position, entry in enumerate(case["feed"]):
        if "check" in entry:
            so_far = run_events(sql_of(case), events_of(case, case["feed"][:position]), folder, close=False)
            _compare(case, so_far, expected["checks"][entry["check"]], entry["check"])
    if "rows" in expected:
        flush = case["query"].get("flush_at_end", True)
        whole = run_events(sql_of(case), events_of(case, case["feed"]), folder, close=flush)
        _compare(case, whole, expected["rows"], "the end")
        if "late_count" in expected:
            assert sum(stream["late"] for stream in whole.report["streams"].values()) == expected["late_count"]


def _compare(case: Case, result: Result, expected: Sequence[Sequence[Any]], moment: str) -> None:
    columns = case["expected"]["columns"]
    got = [tuple(row[name] for name in columns) for row in result.rows["q"]]
    expected_rows = [tuple(json.dumps(cell) if isinstance(cell, list) else cell for cell in row) for row in expected]
    order, _, column = case["expected"]["order"].partition(":")
    if case["query"]["op"] == "dedup":
        key = [columns.index(name) for name in case["query"]["key"]]
        difference = same_final(got, expected_rows, lambda row: tuple(row[at] for at in key))
        assert difference is None, f"{case['id']} at {moment}: {difference}"
    elif order == "exact":
        assert got == expected_rows, f"{case['id']} at {moment}"
    elif order == "nondecreasing":
        at = columns.index(column)
        assert same_event_order(got, expected_rows, lambda row: row[at]) is None, f"{case['id']} at {moment}"
    else:
        assert same_rows(got, expected_rows) is None, f"{case['id']} at {moment}: {same_rows(got, expected_rows)}"


def _check_trace(case: Case, folder: Path) -> None:
    """A burst of tuples at one time through a path: the operator of each tuple's execution."""
    (stream,) = case["streams"]
    burst = [{"at": 1, "stream": stream, "tuple": {"ts": 1, "v": number}} for number in range(case["query"]["n"])]
    strategy = f"{case['query']['strategy']}(1)"
    result = run_events(sql_of(case), burst, folder, strategy=strategy, trace=True)
    steps = [line["operator"] for line in result.trace if line.get("took")]
    path = list(dict.fromkeys(steps))
    assert [[f"Q{path.index(name) + 1}"] for name in steps] == case["expected"]["rows"]


def _check_queue(case: Case, folder: Path) -> None:
    """Everything is enqueued before anything is dequeued: all tuples arrive at one time."""
    (*feed, last) = case["feed"]
    assert last["deq"] >= len(feed)
    result = run_events(sql_of(case), [{**event, "at": 1} for event in events_of(case, feed)], folder)
    columns = case["expected"]["columns"]
    (rows,) = result.rows.values()  # the stream is called q, so the query is not
    assert [[row[name] for name in columns] for row in rows] == case["expected"]["rows"]


def _check_windows(case: Case, folder: Path) -> None:
    """A tuple of one key per time unit from time 1, each costing c_t units: the committed windows and the times of
    their results.

    A window is committed when its first tuple is taken. Its result is out when the execution that emits it ends. It
    has then been stale since the arrival of the next window's last tuple.
    """
    query, unit = case["query"], 1_000
    omega, delta, c_t = (query[name] * unit for name in ("omega", "delta", "c_t"))
    scaled = {**case, "query": {**query, "omega": omega, "delta": delta}}
    arriving = [
        {"at": at, "stream": next(iter(case["streams"])), "tuple": {"ts": at, "v": at, "one": 1}}
        for at in range(unit, (query["horizon"] + 1) * unit, unit)
    ]
    result = run_events(sql_of(scaled), arriving, folder, strategy="dfs(1)", cost=str(c_t), trace=True, close=False)
    (rows,) = result.rows.values()
    windows = iter(rows)
    results: list[list[int]] = []
    commit = None
    for line in result.trace:
        if not line.get("took") or line["at"] + c_t > query["horizon"] * unit:
            continue
        commit = line["at"] if commit is None else commit
        if line["gave"]:
            first, out = next(windows)["window_start"], line["at"] + c_t
            results.append([first, commit, out, out - (first + delta + omega - unit)])
            commit = None
    assert [[time / unit for time in row] for row in results] == case["expected"]["rows"]


# Cases that check more than the final rows.
CHECKS: Mapping[str, Callable[[Case, Path], None]] = {
    "nos_trace": _check_trace,
    "update_queue": _check_queue,
    "upstream_trace": _check_windows,
}


# -- Nexmark -----------------------------------------------------------------------------------------------------------

STREAMS = """
CREATE STREAM person (ts_us TIMESTAMP, id BIGINT, name TEXT, city TEXT, state TEXT)
  WITH (time = 'ts_us', extra = 'ignore');
CREATE STREAM auction (ts_us TIMESTAMP, expires_us TIMESTAMP, id BIGINT, item_name TEXT, initial_bid BIGINT,
                       reserve BIGINT, seller BIGINT, category BIGINT)
  WITH (time = 'ts_us', extra = 'ignore');
"""
BID = """
CREATE STREAM bid (ts_us TIMESTAMP, auction BIGINT, bidder BIGINT, price BIGINT, channel TEXT, url TEXT, extra TEXT)
  WITH (time = 'ts_us', extra = 'ignore');
"""

NEXMARK: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, ts_us AS date_time FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction IN (1007, 1020, 2001, 2019, 2087)",
    "q10": """SELECT auction, bidder, price, ts_us AS date_time,
                     to_char(ts_us, 'YYYY-MM-DD') AS date, to_char(ts_us, 'HH:MI') AS time
              FROM bid""",
    "q21": """SELECT auction, bidder, price, channel, channel_id
              FROM (SELECT auction, bidder, price, channel,
                           CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                                               WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                                               ELSE nullif(split_part(split_part(url, 'channel_id=', 2), '&', 1), '')
                           END AS channel_id
                    FROM bid)
              WHERE channel_id IS NOT NULL""",
    "q17": """SELECT auction, to_char(ts_us, 'YYYY-MM-DD') AS day, count(*) AS total_bids,
                     count(*) FILTER (WHERE price < 10000) AS rank1_bids,
                     count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
                     count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
                     min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
              FROM bid GROUP BY auction, day""",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
             WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')""",
    "q7": """SELECT b.auction, b.price, b.bidder, b.ts_us AS date_time
             FROM bid b JOIN (SELECT max(price) AS most, window_end FROM TUMBLE(bid, ts_us, INTERVAL '10 s')) m
               ON b.price = m.most
             WHERE b.ts_us BETWEEN m.window_end - INTERVAL '10 s' AND m.window_end""",
    # Running totals cannot be joined, but joined rows can have running totals.
    "q101": """SELECT a.id AS auction_id, a.item_name AS auction_item_name, max(b.price) AS current_highest_bid
               FROM auction a LEFT JOIN bid b ON a.id = b.auction GROUP BY a.id, a.item_name""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra
              FROM (SELECT *, ts_us AS date_time,
                           ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts_us DESC, extra) AS place
                    FROM bid)
              WHERE place <= 1""",
}


def check_nexmark(name: str, folder: Path) -> None:
    sql = STREAMS + BID + NEXMARK[name]
    inputs = [(name, str(HERE / "nexmark" / "data" / f"{name}.jsonl")) for name in ("person", "auction", "bid")]
    result = run_script(sql, folder, inputs=inputs, sorted=True)
    plan = plan_script(sql).queries["q"]
    types = {field.name: field.type for field in plan.schema}
    with (HERE / "nexmark" / "expected" / f"{name}.csv").open(newline="") as file:
        expected = [
            {column: _value(types[column], text) for column, text in row.items()} for row in csv.DictReader(file)
        ]
    assert expected
    if plan.update_key is None:
        difference = same_rows(result.rows["q"], expected)
    else:
        difference = same_final(result.rows["q"], expected, itemgetter(*plan.update_key))
    assert difference is None, difference


def _value(kind: Type, text: str) -> Any:
    if not text:
        return None
    if kind is Type.TIMESTAMP:
        return parse_timestamp(text)
    return text if kind is Type.TEXT else json.loads(text)
