"""The domain of event time at every way into a server and a run: years 1 to 9999, and in microseconds."""

import json
import time

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.client.arrow import to_stream
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.formats.linecolumns import LineColumns
from millrace.protocol import Refuse, RowError, Schema
from millrace.protocol.messages import Ack, DataArrow, Error, Ets, EtsRequest, Punctuation
from millrace.protocol.units import likely_unit
from millrace.values.eventtime import FIRST_US, LAST_US
from tests.running import run_events, run_script
from tests.server.harness import lines, peer, served, until
from tests.server.test_time import feeding, stream, union

SQL = """CREATE STREAM s (ts TIMESTAMP, k BIGINT, at TIMESTAMP) WITH (time = 'ts');
CREATE QUERY q AS SELECT ts, k, at FROM s"""
SOURCE = StreamDecoder(StreamDefinition("s", Schema.of(ts="timestamp", k="bigint", at="timestamp"), "external", "ts"))
BEYOND = [FIRST_US - 1, LAST_US + 1, 2**62, -(2**62), 2**63 - 1, -(2**63), -(2**63) + 1]
EXPECTED = "expected a time from 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999Z"
NOW_S = time.time_ns() // 10**9
UNITS = [(NOW_S, "seconds"), (NOW_S * 1000, "milliseconds"), (NOW_S * 10**9, "nanoseconds")]


# -- the domain --------------------------------------------------------------------------------------------------------


def arrow(rows):
    return to_stream(pa.table({"ts": [r[0] for r in rows], "k": [r[1] for r in rows], "at": [r[2] for r in rows]}))


DECODERS = {
    "rows": lambda rows: SOURCE.decode(msgpack.packb(rows)),
    "frames": lambda rows: SOURCE.decode_many([msgpack.packb([row]) for row in rows]),
    "objects": lambda rows: SOURCE.from_objects([dict(zip(("ts", "k", "at"), row, strict=True)) for row in rows]),
    "arrow": lambda rows: SOURCE.from_arrow(arrow(rows)),
}


@pytest.mark.parametrize("way", DECODERS)
@given(
    times=st.lists(
        st.integers(-(2**63), 2**63 - 1)
        | st.integers(FIRST_US - 2, FIRST_US + 2)
        | st.integers(LAST_US - 2, LAST_US + 2),
        min_size=1,
        max_size=5,
    )
)
@example(times=[FIRST_US, LAST_US])
def test_rows_within_the_domain_are_taken_and_others_refused(way, times):
    rows = [(us, 1, us) for us in times]  # the other column may hold any timestamp
    wrong = [row for row, us in enumerate(times) if not FIRST_US <= us <= LAST_US]
    if not wrong:
        assert DECODERS[way](rows).ts.tolist() == times
        return
    with pytest.raises(RowError) as refused:
        DECODERS[way](rows)
    assert (refused.value.row, refused.value.code) == (wrong[0], "bad_value")
    assert f"row {wrong[0] + 1}, field ts: {EXPECTED}, got {times[wrong[0]]} (" in refused.value.text


@served(SQL)
async def test_frames_with_a_time_beyond_are_refused_and_counted(daemon):
    async with peer(daemon) as feed:
        await feed.open()
        for sequence, us in enumerate(BEYOND):
            feed.data(sequence, [(us, 1, None)])
            error = await feed.hear(Error)
            assert (error.code, error.row) == ("bad_value", 0)
            assert EXPECTED in error.text
        feed.say(DataArrow(0, len(BEYOND), 1, arrow([(2**62, 1, 1)])))
        assert EXPECTED in (await feed.hear(Error)).text
        # A column that is not the stream's time takes all of 64 bits.
        feed.data(len(BEYOND) + 1, [(1, 1, 2**62)])
        await until(lambda: stream(daemon, "s").tuples == 1)
        assert stream(daemon, "s").rejected == len(BEYOND) + 1
        assert daemon.queries()[0].state == "running"


@served(SQL)
async def test_lines_with_a_time_beyond_are_refused_alone(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        times = ["+200000-01-01", "0000-12-31", 2**62, "9999-12-31T23:59:59.999999Z", "0001-01-01"]
        nc.say("\n".join(json.dumps({"stream": "s", "tuple": {"ts": us, "k": at}}) for at, us in enumerate(times[:3])))
        for number in (2, 3, 4):
            error = (await nc.hear())["error"]
            assert (error["line"], error["code"]) == (number, "bad_value")
            assert EXPECTED in error["text"]
        assert stream(daemon, "s").rejected == 3


@served(union())
async def test_promises_beyond_are_refused_and_a_request_still_ends(daemon):
    async with peer(daemon) as busy, peer(daemon) as silent, lines(daemon) as nc:
        await silent.open("b", answers=True)
        await feeding(busy, (100, 1))
        request = await silent.hear(EtsRequest)
        silent.say(Ets(0, request.request, 2**62))
        assert EXPECTED in (await silent.hear(Error)).text
        silent.say(Punctuation(0, -(2**63)))
        assert EXPECTED in (await silent.hear(Error)).text
        nc.say('{"stream": "b", "punctuation": 9223372036854775807}')
        assert EXPECTED in (await nc.hear())["error"]["text"]
        assert stream(daemon, "b").mark_us is None
        silent.say(Punctuation(0, LAST_US + 1))  # nothing more comes
        nc.say('{"stream": "b", "punctuation": "+010000-01-01"}')
        await until(lambda: stream(daemon, "b").mark_us == LAST_US + 1)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("us", [FIRST_US - 1, LAST_US + 1, 2**62])
def test_files_with_a_time_beyond_are_refused_with_the_place(ending, us, tmp_path):
    path = tmp_path / f"s.{ending}"
    rows = [(1, 1, None), (us, 2, None)]
    if ending == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(("ts", "k", "at"), row, strict=True))) + "\n" for row in rows))
    elif ending == "csv":
        path.write_text("ts,k,at\n" + "".join(f"{ts},{k},\n" for ts, k, _ in rows))
    elif ending == "parquet":
        pq.write_table(pa.table({"ts": [1, us], "k": [1, 2]}), path)
    else:
        path.write_bytes(to_stream(pa.table({"ts": [1, us], "k": [1, 2]})))
    place = {"jsonl": "line 2", "csv": "line 3"}.get(ending, "row 2")
    with pytest.raises(Refuse, match=rf"s\.{ending}, {place}, field ts: {EXPECTED}, got {us} "):
        run_script(SQL, tmp_path, inputs=[("s", str(path))])


@pytest.mark.parametrize(
    ("event", "place"),
    [
        ({"stream": "s", "tuple": {"ts": 2**62, "k": 1}}, "line 1, field ts"),
        ({"stream": "s", "punctuation": -(2**63)}, "line 1, punctuation"),
        ({"at": 2**62, "tick": True}, "line 1, at"),
    ],
)
def test_events_with_a_time_beyond_are_refused_with_the_line(event, place, tmp_path):
    with pytest.raises(Refuse, match=f"{place}: {EXPECTED}"):
        run_events(SQL, [event], tmp_path)


# -- the unit ----------------------------------------------------------------------------------------------------------


def test_a_unit_is_likely_where_a_time_makes_sense_in_it_alone():
    units = [unit for value, _ in UNITS if (unit := likely_unit(value)) is not None]
    assert [(unit.name, unit.time_us) for unit in units] == [(name, NOW_S * 10**6) for _, name in UNITS]
    assert [likely_unit(value) for value in (0, 1, 10**6, NOW_S * 10**6, FIRST_US, LAST_US, -NOW_S)] == [None] * 7


@pytest.mark.parametrize(("value", "unit"), UNITS, ids=[name for _, name in UNITS])
@served(SQL)
async def test_lines_in_another_unit_are_refused_with_the_likely_one(daemon, value, unit):
    async with lines(daemon) as nc:
        nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_S * 10**6, "k": 1}}))
        nc.say(json.dumps({"stream": "s", "tuple": {"ts": value, "k": 2}}))
        error = (await nc.hear())["error"]
        assert (error["line"], error["code"]) == (2, "bad_value")
        assert "field ts: expected " in error["text"]
        assert f"got {value}" in error["text"]
        assert f"it looks like {unit} (20" in error["text"]
        assert (stream(daemon, "s").rejected, stream(daemon, "s").tuples) == (1, 1)


@pytest.mark.parametrize(("value", "unit"), UNITS, ids=[name for _, name in UNITS])
@served(SQL)
async def test_frames_in_another_unit_are_refused_even_first(daemon, value, unit):
    async with peer(daemon) as feed:
        await feed.open()
        feed.data(0, [(value, 1, None), (value + 1, 1, None)])
        assert f"it looks like {unit} (" in (await feed.hear(Error)).text
        feed.say(DataArrow(0, 2, 1, arrow([(value, 1, 1)])))
        assert f"it looks like {unit} (" in (await feed.hear(Error)).text
        assert stream(daemon, "s").rejected == 3


@served(SQL)
async def test_refused_lines_are_decoded_once(daemon, monkeypatch):
    decoded = []
    decode, read = StreamDecoder.from_objects, LineColumns.read

    def count(self, objects):
        decoded.append(len(objects))
        return decode(self, objects)

    def count_together(self, *data):
        found = read(self, *data)
        decoded.extend(len(tuples.batch) for tuples in found.tuples)
        return found

    monkeypatch.setattr(StreamDecoder, "from_objects", count)
    monkeypatch.setattr(LineColumns, "read", count_together)
    async with lines(daemon) as nc:
        nc.say("\n".join(json.dumps({"stream": "s", "tuple": {"ts": NOW_S + k, "k": k}}) for k in range(500)))
        assert [(await nc.hear())["error"]["line"] for _ in range(500)] == list(range(1, 501))
    assert sum(decoded) == 500


@served(SQL)
async def test_a_stream_of_early_times_may_pass_through_those(daemon):
    """Made-up times count from 0, and reach 25 minutes one day."""
    async with peer(daemon) as feed:
        await feed.open()
        feed.data(0, [(us, 1, None) for us in (1, 2, 3)])
        feed.data(3, [(NOW_S, 1, None), (NOW_S * 1000, 1, None)])
        assert (await feed.hear(Ack)).sequence >= 3
        await until(lambda: stream(daemon, "s").tuples == 5)
        assert stream(daemon, "s").rejected == 0
