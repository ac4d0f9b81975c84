"""The option `time_unit`: numbers in the time field count in the stream's unit at every way in; text means itself."""

import asyncio
import io
import json
import re
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvloop
from hypothesis import assume, example, given
from hypothesis import strategies as st

from millrace.client import AsyncClient, ServerError
from millrace.client.arrow import to_stream
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.protocol import Refuse, RowError, Schema, parse_timestamp
from millrace.protocol.messages import (
    Ack,
    Closed,
    DataArrow,
    Error,
    Hello,
    Opened,
    Punctuation,
    Result,
)
from millrace.protocol.units import UNITS, likely_unit
from millrace.sql import SqlError
from millrace.values.eventtime import FIRST_US, LAST_US
from tests.patience import HANG_SECONDS
from tests.running import run_events, run_script
from tests.server.harness import lines, peer, running, until

NOW_S = 1_770_588_380
NOW_US = NOW_S * 10**6
PER_SECOND = {"us": 10**6, "ms": 10**3, "s": 1, "ns": 10**9}
ISO = "2026-02-08T22:06:23Z"
SECONDS = (NOW_S, NOW_S + 1, NOW_S + 2)
EXPECTED = "expected a time from 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999Z"


def script(unit):
    option = "" if unit == "us" else f", time_unit = '{unit}'"
    return (
        f"CREATE STREAM s (ts TIMESTAMP, k BIGINT, at TIMESTAMP) WITH (time = 'ts'{option});"
        "CREATE QUERY q AS SELECT ts, k, at FROM s"
    )


def numbers_in(unit):
    return [second * PER_SECOND[unit] for second in SECONDS]


def source(unit):
    return StreamDecoder(
        StreamDefinition("s", Schema.of(ts="timestamp", k="bigint", at="timestamp"), "external", "ts", time_unit=unit)
    )


def objects(times):
    return [{"ts": time, "k": k} for k, time in enumerate(times)]


def table(times, kind=None):
    return pa.table({"ts": pa.array(times, kind), "k": list(range(len(times)))})


# -- every way in, in every unit ---------------------------------------------------------------------------------------


def offline(write):
    """A way that reads a file with `millrace run`."""

    def play(unit, times, folder):
        path = write(times, folder)
        return [row["ts"] for row in run_script(script(unit), folder, inputs=[("s", str(path))]).rows["q"]]

    return play


def write_jsonl(times, folder):
    path = folder / "s.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects(times)))
    return path


def write_csv(times, folder):
    path = folder / "s.csv"
    path.write_text("ts,k\n" + "".join(f"{time},{k}\n" for k, time in enumerate(times)))
    return path


def write_parquet(times, folder):
    path = folder / "s.parquet"
    pq.write_table(table(times), path)
    return path


def write_arrow(times, folder):
    path = folder / "s.arrow"
    path.write_bytes(to_stream(table(times)))
    return path


def events(unit, times, folder):
    said = [{"stream": "s", "tuple": each} for each in objects(times)]
    return [row["ts"] for row in run_events(script(unit), said, folder).rows["q"]]


def online(send):
    """A way into a server; the rows are read as frames."""

    def play(unit, times, folder):
        async def through():
            async with asyncio.timeout(HANG_SECONDS), running(script(unit)) as daemon, peer(daemon) as reader:
                await reader.subscribe(credit=100)
                await send(daemon, times)
                rows: list[Any] = []
                while len(rows) < len(times):
                    rows += (await reader.hear(Result)).rows
                return [row[0] for row in rows]

        return uvloop.run(through())

    return play


async def by_lines(daemon, times):
    async with lines(daemon) as nc:
        for each in objects(times):
            nc.say(json.dumps({"stream": "s", "tuple": each}))
        await until(lambda: daemon.streams()[0].tuples == len(times))


async def by_frames(daemon, times):
    async with peer(daemon) as feed:
        await feed.open()
        feed.data(0, [(time, k, None) for k, time in enumerate(times)])
        await feed.hear(Ack)


async def by_arrow_frames(daemon, times):
    async with peer(daemon) as feed:
        await feed.open()
        feed.say(DataArrow(0, 0, len(times), to_stream(table(times))))
        await feed.hear(Ack)


async def by_client(daemon, times):
    async with AsyncClient(str(daemon.listen)) as client, await client.open("s") as feed:
        await feed.send(objects(times))


async def by_insert(daemon, times):
    shown = [f"'{time}'" if isinstance(time, str) else str(time) for time in times]
    rows = ", ".join(f"({time}, {k})" for k, time in enumerate(shown))
    await daemon.catalog.execute(f"INSERT INTO s (ts, k) VALUES {rows}")


WAYS = {
    "jsonl": offline(write_jsonl),
    "csv": offline(write_csv),
    "parquet": offline(write_parquet),
    "arrow": offline(write_arrow),
    "events": events,
    "lines": online(by_lines),
    "frames": online(by_frames),
    "arrow frames": online(by_arrow_frames),
    "client": online(by_client),
    "insert": online(by_insert),
}
TYPED = ("parquet", "arrow", "arrow frames")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("way", WAYS)
def test_integers_count_in_the_streams_unit(way, unit, tmp_path):
    assert WAYS[way](unit, numbers_in(unit), tmp_path) == [second * 10**6 for second in SECONDS]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in TYPED])
def test_text_means_the_same_in_every_unit(way, unit, tmp_path):
    times = [*numbers_in(unit), ISO]  # both in one batch
    assert WAYS[way](unit, times, tmp_path) == [*(second * 10**6 for second in SECONDS), parse_timestamp(ISO)]
    assert WAYS[way](unit, [ISO], tmp_path) == [parse_timestamp(ISO)]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("way", TYPED)
@pytest.mark.parametrize("kind", ["s", "ms", "us", "ns"])
def test_typed_columns_mean_the_same_in_every_unit(way, unit, kind, tmp_path):
    times = [np.datetime64(second, "s").astype(f"datetime64[{kind}]") for second in SECONDS]
    assert WAYS[way](unit, np.array(times), tmp_path) == [second * 10**6 for second in SECONDS]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1_000)])
@pytest.mark.parametrize("way", WAYS)
def test_seconds_and_milliseconds_may_have_a_fraction(way, unit, scale, tmp_path):
    times = [NOW_S * scale + 0.25, NOW_S * scale + 0.75]
    wanted = [NOW_US + 250_000 // scale, NOW_US + 750_000 // scale]
    assert WAYS[way](unit, times, tmp_path) == wanted
    if way not in TYPED:  # integers among them
        assert WAYS[way](unit, [NOW_S * scale, *times], tmp_path) == [NOW_US, *wanted]


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("lines", "frames", "arrow frames", "client")])
def test_other_units_have_no_fractions(way, unit, tmp_path):
    with pytest.raises((Refuse, SqlError), match=r"expected timestamp|timestamp, got"):
        WAYS[way](unit, [NOW_S * PER_SECOND[unit] + 0.5], tmp_path)


@pytest.mark.parametrize(
    ("unit", "value", "wanted"),
    [("us", NOW_S + 0.5, "s"), ("us", NOW_S * 1_000 + 0.5, "ms"), ("us", 1.5, "s"), ("ns", NOW_S + 0.5, "s")],
)
def test_a_fraction_without_a_unit_that_takes_one_names_the_option(unit, value, wanted, tmp_path):
    remedy = f"its time_unit is '{unit}', which takes no fractions: send integers, or declare the unit with "
    remedy += f"ALTER STREAM s SET (time_unit = '{wanted}')"
    for decode in (
        lambda: source(unit).decode(msgpack.packb([(value, 1, None)])),
        lambda: source(unit).from_objects([{"ts": value, "k": 1}]),
        lambda: WAYS["csv"](unit, [value], tmp_path),
    ):
        with pytest.raises(Refuse, match=re.escape(remedy)):
            decode()
    with pytest.raises(Refuse, match="only the time column of a stream with time_unit = 's' or 'ms' takes fractions"):
        source(unit).from_table(table([value]))
    # Another column of timestamps has no unit to declare.
    with pytest.raises(Refuse) as refused:
        source(unit).from_objects([{"ts": 1, "k": 1, "at": value}])
    assert "time_unit" not in refused.value.text


@pytest.mark.parametrize("value", [0.5, 1.5, float("inf"), float("nan"), True, 2**63, "soon", None, [1]])
@pytest.mark.parametrize("unit", UNITS)
def test_what_is_no_time_is_refused_by_both_decoders(unit, value):
    fits = UNITS[unit].is_number(value) and value != 2**63
    for decode in (
        lambda: source(unit).decode(msgpack.packb([(value, 1, None)])),
        lambda: source(unit).from_objects([{"ts": value, "k": 1}]),
    ):
        if fits:
            assert decode().ts.tolist() == [round(value * 10**6 / PER_SECOND[unit])]
            continue
        with pytest.raises(RowError) as refused:
            decode()
        assert refused.value.text.startswith("row 1, field ts: expected timestamp")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint32(), pa.uint64(), pa.float64()])
def test_arrow_seconds_may_have_any_integer_type(kind):
    batch = source("s").from_table(pa.table({"ts": pa.array([5, 6], kind), "k": [1, 2]}))
    assert batch.ts.tolist() == [5_000_000, 6_000_000]


@pytest.mark.parametrize(
    ("unit", "array", "words"),
    [
        (
            "s",
            pa.array([1.0], pa.float32()),
            "timestamp (or seconds as integers or float64), got Arrow's float",
        ),
        ("ns", pa.array([1.0]), "expected timestamp (or nanoseconds as integers), got Arrow's double"),
        ("us", pa.array([1], pa.int32()), "expected timestamp, got Arrow's int32"),
        ("ms", pa.array([2**63], pa.uint64()), "expected timestamp without loss, got 9223372036854775808"),
        ("s", pa.array([float("nan")]), f"{EXPECTED}, got nan"),
        ("s", pa.array([2**62]), f"{EXPECTED}, got {2**62} seconds"),
    ],
)
def test_arrow_columns_that_are_no_times(unit, array, words):
    with pytest.raises(Refuse) as refused:
        source(unit).from_table(pa.table({"ts": array, "k": [1]}))
    assert words in refused.value.text


def test_other_timestamp_fields_are_microseconds():
    batch = source("s").from_objects([{"ts": NOW_S, "k": 1, "at": NOW_S}])
    assert (batch.ts.tolist(), batch.columns[2].tolist()) == ([NOW_US], [NOW_S])


# -- conversion, against exact fractions -------------------------------------------------------------------------------


def exact(unit, value):
    return Fraction(value) * 10**6 / PER_SECOND[unit]


DECODERS = {
    "rows": lambda decoder, times: decoder.decode(msgpack.packb([(time, 1, None) for time in times])),
    "objects": lambda decoder, times: decoder.from_objects([{"ts": time, "k": 1} for time in times]),
    "arrow": lambda decoder, times: decoder.from_table(table(times)),
}


@pytest.mark.parametrize("way", DECODERS)
@pytest.mark.parametrize("unit", UNITS)
@given(data=st.data())
def test_integers_are_converted_exactly_or_refused(way, unit, data):
    edges = [int(time_us * PER_SECOND[unit] // 10**6) for time_us in (FIRST_US, 0, NOW_US, LAST_US)]
    near = st.sampled_from(edges).flatmap(lambda edge: st.integers(edge - 3, edge + 3))
    fits = st.integers(-(2**63), 2**63 - 1)
    times = data.draw(st.lists((near | fits).filter(lambda time: -(2**63) <= time < 2**63), min_size=1, max_size=5))
    wanted = [exact(unit, time).__floor__() for time in times]
    wrong = [row for row, time_us in enumerate(wanted) if not FIRST_US <= time_us <= LAST_US]
    if not wrong:
        assert DECODERS[way](source(unit), times).ts.tolist() == wanted
        return
    with pytest.raises(RowError) as refused:
        DECODERS[way](source(unit), times)
    assert (refused.value.row, refused.value.code) == (wrong[0], "bad_value")
    assert f"row {wrong[0] + 1}, field ts: {EXPECTED}, got {times[wrong[0]]}" in refused.value.text


@pytest.mark.parametrize("way", DECODERS)
@pytest.mark.parametrize("unit", ["s", "ms"])
@given(
    times=st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e12, 1e12), min_size=1, max_size=5)
)
@example(times=[1_770_588_380.123456])
@example(times=[-0.0000005])
@example(times=[1e300])
def test_fractions_are_rounded_to_the_nearest_microsecond(way, unit, times):
    wanted = [exact(unit, time) for time in times]
    margin = Fraction(1, 1000)
    assume(all(min(abs(time - FIRST_US), abs(time - LAST_US)) > 1 for time in wanted))
    wrong = [row for row, time in enumerate(wanted) if not FIRST_US <= time <= LAST_US]
    if wrong:
        with pytest.raises(RowError) as refused:
            DECODERS[way](source(unit), times)
        assert refused.value.row == wrong[0]
        return
    for time_us, time in zip(DECODERS[way](source(unit), times).ts.tolist(), wanted, strict=True):
        assert abs(time_us - time) <= Fraction(1, 2) + margin


@given(st.sampled_from(sorted(UNITS)), st.integers(FIRST_US, LAST_US), st.integers(0, 10**6))
def test_times_keep_their_order_in_every_unit(unit, time_us, more):
    first, second = (UNITS[unit].count(us) for us in (time_us, time_us + more))
    assert UNITS[unit].micros(first) <= UNITS[unit].micros(second)
    assert UNITS[unit].micros(first) <= time_us + (1 if unit == "ns" else 0)


def test_seconds_written_to_the_microsecond_come_back(tmp_path):
    written = [f"{NOW_S}.{fraction:06d}" for fraction in range(0, 1_000_000, 7_919)]
    path = tmp_path / "s.csv"
    path.write_text("ts,k\n" + "".join(f"{time},1\n" for time in written))
    rows = run_script(script("s"), tmp_path, inputs=[("s", str(path))]).rows["q"]
    assert [row["ts"] for row in rows] == [NOW_US + fraction for fraction in range(0, 1_000_000, 7_919)]


# -- values in another unit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", UNITS)
@pytest.mark.parametrize("sent", UNITS)
def test_a_likely_unit_is_another_than_the_declared_one(declared, sent):
    likely = likely_unit(NOW_S * PER_SECOND[sent], UNITS[declared])
    assert (likely and likely.unit.name) == (sent if sent != declared else None)
    if likely is not None:
        factor = Fraction(PER_SECOND[declared], PER_SECOND[sent])
        how = f"multiply by {factor}" if factor > 1 else f"divide by {1 / factor}"
        assert f"so {how}, or declare the stream WITH (time_unit = '{sent}')" in str(likely)


@pytest.mark.parametrize("declared", UNITS)
@pytest.mark.parametrize("sent", UNITS)
def test_lines_in_another_unit_than_the_declared_one_are_refused_and_counted(declared, sent):
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script(declared)) as daemon, lines(daemon) as nc:
            value = NOW_S * PER_SECOND[sent]
            nc.say(json.dumps({"stream": "s", "tuple": {"ts": value, "k": 1}}))
            if declared == sent:
                await until(lambda: daemon.streams()[0].tuples == 1)
                return
            error = (await nc.hear())["error"]
            assert error["code"] == "bad_value"
            shown = value if declared != "ns" else value // 1000 * 1000
            assert f"got {shown}" in error["text"]
            assert f"it looks like {UNITS[sent].words} (2026-02-08T22:" in error["text"]
            assert f"WITH (time_unit = '{sent}')" in error["text"]
            assert (daemon.streams()[0].tuples, daemon.streams()[0].rejected) == (0, 1)

    uvloop.run(play())


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**62, -(2**63)])
def test_seconds_beyond_event_time_are_refused_row_by_row(seconds):
    async def play():
        async with (
            asyncio.timeout(HANG_SECONDS),
            running(script("s")) as daemon,
            lines(daemon) as nc,
            peer(daemon) as p,
        ):
            nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_S, "k": 1}}))
            nc.say(json.dumps({"stream": "s", "tuple": {"ts": seconds, "k": 1}}))
            error = (await nc.hear())["error"]
            assert (error["line"], error["code"]) == (2, "bad_value")
            assert f"{EXPECTED}, got {seconds} seconds (" in error["text"]
            await p.open()
            p.data(0, [(NOW_S, 1, None), (seconds, 1, None)])
            refused = await p.hear(Error)
            assert (refused.row, refused.code) == (1, "bad_value")
            assert f"row 2, field ts: {EXPECTED}, got {seconds} seconds (" in refused.text
            assert (daemon.streams()[0].tuples, daemon.streams()[0].rejected) == (1, 3)

    uvloop.run(play())


def test_a_run_warns_of_first_times_in_another_unit(tmp_path):
    from millrace.offline.run import Options, Run
    from millrace.offline.script import plan_script

    path = write_jsonl([NOW_S], tmp_path)
    options = Options(inputs=[("s", str(path))], outputs=[("q", str(tmp_path / "q.jsonl"))])
    run = Run(plan_script(script("ms")), options, io.BytesIO())
    run.run()
    assert run.doubtful_units["s"].startswith(
        f"its first time, {NOW_S}, is 1970-01-21T11:49:48.380000Z; it looks like s"
    )


# -- punctuation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NOW_S + 1, "2026-02-08T22:06:21Z"])
def test_a_punctuation_in_json_counts_in_the_streams_unit(value, tmp_path):
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("s")) as daemon, lines(daemon) as nc:
            nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_S, "k": 1}}))
            nc.say(json.dumps({"stream": "s", "punctuation": value}))
            await until(lambda: daemon.streams()[0].mark_us == NOW_US + 10**6)

    uvloop.run(play())
    said = [{"stream": "s", "tuple": {"ts": NOW_S, "k": 1}}, {"stream": "s", "punctuation": value}]
    late = {"stream": "s", "tuple": {"ts": NOW_S, "k": 2}}
    result = run_events(script("s"), [*said, late], tmp_path)
    assert [late["tuple"]["k"] for late in result.late["s"]] == [2]


def test_a_punctuation_beyond_event_time_is_refused_with_the_likely_unit(tmp_path):
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("s")) as daemon, lines(daemon) as nc:
            nc.say(json.dumps({"stream": "s", "punctuation": NOW_S * 1000}))
            text = (await nc.hear())["error"]["text"]
            assert f"got {NOW_S * 1000} seconds (" in text
            assert "it looks like milliseconds" in text
            nc.say(json.dumps({"stream": "s", "punctuation": [1]}))
            assert "expected a timestamp" in (await nc.hear())["error"]["text"]

    uvloop.run(play())
    with pytest.raises(Refuse, match=f"line 1, punctuation: {EXPECTED}, got {NOW_S * 1000} seconds"):
        run_events(script("s"), [{"stream": "s", "punctuation": NOW_S * 1000}], tmp_path)


def test_frames_of_promises_are_microseconds():
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("ms")) as daemon, peer(daemon) as feed:
            await feed.open()
            feed.data(0, [(NOW_S * 1000, 1, None)])
            feed.say(Punctuation(0, NOW_US + 5))
            await until(lambda: daemon.streams()[0].mark_us == NOW_US + 5)

    uvloop.run(play())


# -- clients -----------------------------------------------------------------------------------------------------------


async def greeted(daemon, *capabilities):
    connection = peer(daemon, greet=False)
    feed = await connection.__aenter__()
    feed.say(Hello(1, "test", None, capabilities or None))
    await feed.hear()
    return connection, feed


def test_opened_says_the_unit_to_clients_that_know_it():
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("ms")) as daemon:
            for capabilities, unit in (((), None), (("late",), None), (("time_unit",), "ms")):
                connection, feed = await greeted(daemon, *capabilities)
                assert (await feed.open()).time_unit == unit
                await connection.__aexit__(None, None, None)

    uvloop.run(play())


@pytest.mark.parametrize("unit", UNITS)
def test_datetimes_of_the_client_mean_the_same_in_every_unit(unit):
    at = datetime(2026, 2, 8, 22, 6, 20, 123456, UTC)

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script(unit)) as daemon, peer(daemon) as reader:
            await reader.subscribe(credit=100)
            async with AsyncClient(str(daemon.listen)) as client, await client.open("s") as feed:
                await feed.send({"ts": at, "k": 1, "at": at})
                await feed.send({"ts": NOW_S * PER_SECOND[unit] + PER_SECOND[unit], "k": 2, "at": at})
                await feed.send({"ts": np.datetime64(at.replace(tzinfo=None), "ns"), "k": 3, "at": at})
                await feed.punctuate((NOW_S + 1) * PER_SECOND[unit])
                await feed.flush()
                rows: list[Any] = []
                while len(rows) < 2:
                    rows += (await reader.hear(Result)).rows
                stamp = NOW_US + 123_456
                assert rows == [(stamp, 1, stamp), (NOW_US + 10**6, 2, stamp)]
                await until(lambda: daemon.streams()[0].mark_us == NOW_US + 10**6)

    uvloop.run(play())


def test_a_client_of_the_previous_version_is_refused_clearly_or_works():
    """It sends datetimes as microseconds; integers pass as they are."""

    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("ms")) as daemon:
            connection, feed = await greeted(daemon, "late", "history")
            assert isinstance(await feed.open(), Opened)
            feed.data(0, [(NOW_US, 1, None)])
            assert "it looks like microseconds (2026-" in (await feed.hear(Error)).text
            feed.data(1, [(NOW_S * 1000, 1, None)])
            await until(lambda: daemon.streams()[0].tuples == 1)
            await connection.__aexit__(None, None, None)

    uvloop.run(play())


@pytest.mark.parametrize("unit", ["ms", "ns"])
@pytest.mark.parametrize("form", ["rows", "arrow"])
def test_an_answer_of_the_client_never_exceeds_unsent_rows_in_any_unit(unit, form):
    """Least times of unsent rows are compared in microseconds, whatever unit the rows have."""
    from millrace.client.arrow import least_time as least_of_arrow
    from millrace.client.rows import RowPacker, least_time, unpack_rows

    schema = Schema.of(ts="timestamp", k="bigint")
    if form == "rows":
        packed = RowPacker(schema, UNITS[unit]).pack([(time, 1) for time in [*numbers_in(unit), ISO]])
        assert least_time(unpack_rows(packed), schema, "ts", UNITS[unit]) == NOW_US
    else:
        assert least_of_arrow(to_stream(table(numbers_in(unit))), schema, "ts", UNITS[unit]) == NOW_US
        typed = table(np.array([NOW_US], "datetime64[us]"))
        assert least_of_arrow(to_stream(typed), schema, "ts", UNITS[unit]) == NOW_US


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_changed_unit_ends_open_feeds_and_is_used_from_then_on():
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("us")) as daemon:
            async with peer(daemon) as feed, lines(daemon) as nc:
                await feed.open()
                nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_US, "k": 1}}))
                await until(lambda: daemon.streams()[0].tuples == 1)
                await daemon.catalog.execute("ALTER STREAM s SET (disorder = '1 second')")
                await daemon.catalog.execute("ALTER STREAM s SET (time_unit = 'ms')")
                closed = await feed.hear(Closed)
                assert closed.code == "altered"
                assert "its time_unit is 'ms' now; open the feed again" in closed.text
                assert (await nc.hear())["error"]["code"] == "altered"
                nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_S * 1000, "k": 2}}))
                await until(lambda: daemon.streams()[0].tuples == 2)
                await feed.open(channel=1)
                feed.data(0, [(NOW_S * 1000, 3, None)], channel=1)
                await until(lambda: daemon.streams()[0].tuples == 3)
                assert daemon.streams()[0].newest_us == NOW_US
                assert daemon.streams()[0].time_unit == "ms"
                assert daemon.streams()[0].connections == 2
            await daemon.catalog.execute(
                "CREATE OR REPLACE STREAM s (ts TIMESTAMP, k BIGINT, at TIMESTAMP) WITH (time = 'ts', time_unit = 's')"
            )
            assert daemon.streams()[0].time_unit == "s"

    uvloop.run(play())


async def send_until_it_ends(feed):
    while True:
        await feed.send({"ts": NOW_US, "k": 1})
        await asyncio.sleep(0.001)


def test_a_feed_of_the_client_ends_when_the_unit_changes():
    async def play():
        timeout = asyncio.timeout(HANG_SECONDS)
        async with timeout, running(script("us")) as daemon, AsyncClient(str(daemon.listen)) as client:
            feed = await client.open("s")
            await feed.send({"ts": NOW_US, "k": 1})
            await feed.flush()
            await daemon.catalog.execute("ALTER STREAM s SET (time_unit = 'ms')")
            with pytest.raises(ServerError, match="open the feed again"):
                await send_until_it_ends(feed)

    uvloop.run(play())


def test_a_restart_keeps_the_unit(tmp_path):
    async def play():
        section = {"server": {"data_dir": str(tmp_path)}}
        async with asyncio.timeout(HANG_SECONDS):
            async with running(script("ms"), **section) as daemon:
                await daemon.catalog.execute("ALTER STREAM s SET (time_unit = 's')")
            async with running(None, **section) as daemon, lines(daemon) as nc:
                nc.say(json.dumps({"stream": "s", "tuple": {"ts": NOW_S, "k": 1}}))
                await until(lambda: daemon.streams()[0].newest_us == NOW_US)

    uvloop.run(play())


@pytest.mark.parametrize("value", ["'min'", "'seconds'", "5", "true"])
def test_a_wrong_unit_is_refused_with_the_four_values(value):
    from millrace.offline.script import plan_script

    with pytest.raises(SqlError, match=r"time_unit: expected 'us', 'ms', 's' or 'ns', got"):
        plan_script(f"CREATE STREAM s (ts TIMESTAMP) WITH (time = 'ts', time_unit = {value})")


def test_a_stream_without_a_time_field_has_no_unit():
    from millrace.offline.script import plan_script

    with pytest.raises(SqlError, match="time_unit does not apply here: s is internal"):
        plan_script("CREATE STREAM s (k BIGINT) WITH (time_unit = 'ms')")


def test_the_unit_is_shown_where_it_is_not_the_default():
    async def play():
        async with asyncio.timeout(HANG_SECONDS), running(script("ms")) as daemon:
            (described,) = await daemon.catalog.execute("DESCRIBE s")
            assert described.options["time_unit"] == "ms"
            (explained,) = await daemon.catalog.execute("EXPLAIN SELECT k FROM s")
            assert "stream s, external time ts in milliseconds" in explained.text
            (shown,) = await daemon.catalog.execute("SHOW CREATE STREAM s")
            assert "time_unit = 'ms'" in shown.text

    uvloop.run(play())


def test_an_archive_is_not_converted_again(tmp_path):
    """Archived rows have typed times: a run over the archive reads them as they are."""

    async def play():
        sections = {"server": {"data_dir": str(tmp_path)}}
        sql = script("ms").replace("time_unit = 'ms'", "time_unit = 'ms', history = 'true'")
        async with asyncio.timeout(HANG_SECONDS), running(sql, **sections) as daemon:
            await by_lines(daemon, numbers_in("ms"))

    uvloop.run(play())
    (archive,) = tmp_path.rglob("*.parquet")
    sql = script("ms").replace("time = 'ts'", "time = 'ts', extra = 'ignore'")
    rows = run_script(sql, tmp_path, inputs=[("s", str(archive))]).rows["q"]
    assert [row["ts"] for row in rows] == [second * 10**6 for second in SECONDS]
