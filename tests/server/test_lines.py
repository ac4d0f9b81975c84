"""JSON lines over a real socket, as `nc` would speak them."""

import asyncio
import random

from millrace.protocol.messages import Result
from tests.server.harness import lines, peer, served, until

TIMED = (
    "CREATE STREAM e (ts TIMESTAMP, k BIGINT NOT NULL) WITH (timestamps = 'external', time = 'ts');"
    "CREATE QUERY p AS SELECT k FROM e"
)


@served()
async def test_feed_and_subscribe_by_hand(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        nc.say('{"stream": "s", "tuple": {"k": 1, "v": 2, "name": "ä"}}')
        nc.say("")
        nc.say('{"stream": "s", "tuple": {"k": 2}}')
        whose = {"query": "q", "history": daemon.query("q").history}
        assert await nc.hear() == {**whose, "seq": 0, "row": {"k": 1, "v": 2.0, "name": "ä"}}
        assert await nc.hear() == {**whose, "seq": 1, "row": {"k": 2, "v": None, "name": None}}
        nc.say('{"unsubscribe": "q"}')
        nc.say('{"stream": "s", "tuple": {"k": 3}}')
        nc.say('{"subscribe": "q", "from": 1}')
        assert (await nc.hear())["seq"] == 1


@served()
async def test_each_bad_line_is_refused_alone(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        for number, (line, code, words) in enumerate(
            [
                ('{"stream": "s", "tuple": {"k": "x"}}', "bad_row", "field k: expected bigint"),
                ('{"stream": "s", "tuple": {"k": 1.5}}', "bad_row", "field k"),
                ('{"stream": "s", "tuple": {"z": 1}}', "bad_row", "fields k, v, name"),
                ('{"stream": "t", "tuple": {"k": 1}}', "unknown_stream", "there is s"),
                ('{"subscribe": "qq"}', "unknown_query", "did you mean q?"),
                ('{"subscribe": "q"}', "already_open", "already"),
                ('{"unsubscribe": "z"}', "not_open", "not subscribed"),
                ('{"stream": "t", "close": true}', "not_open", "does not feed"),
                ('{"stream": "s", "tuple": {"k": 1}', "bad_message", "JSON"),
                ('{"stream": "s", "tuple": {"v": NaN}}', "bad_value", "finite"),
                ('{"stream": "s", "tuple": {"k": 9223372036854775808}}', "bad_value", "64 bits"),
                ("[1]", "bad_message", "object"),
            ],
            2,
        ):
            nc.say(line)
            error = (await nc.hear())["error"]
            assert (error["code"], error["line"]) == (code, number), error
            assert words in error["text"], error
        nc.say('{"stream": "s", "tuple": {"k": 7}}')
        assert (await nc.hear())["row"]["k"] == 7


@served(sql=TIMED)
async def test_a_missing_key_is_named(daemon):
    async with lines(daemon) as nc:
        for number, (tuple_, words) in enumerate(
            [
                ('{"k": 1}', "missing field ts (timestamp, not null)"),
                ("{}", "missing field ts (timestamp, not null)"),
                ('{"ts": 1}', "missing field k (bigint, not null)"),
                ('{"ts": null, "k": 1}', "field ts: expected timestamp, not null, got null"),
            ],
            1,
        ):
            nc.say(f'{{"stream": "e", "tuple": {tuple_}}}')
            error = (await nc.hear())["error"]
            assert (error["code"], error["text"], error["line"]) == ("bad_row", words, number)


@served(sql=TIMED)
async def test_refusals_come_in_the_order_of_the_lines(daemon):
    """Whatever is wrong with them, and also when a line of another kind comes between."""
    bad = ('{"stream": "e", "tuple": {"k": 1}}', "{", '{"subscribe": "zz"}', '{"stream": "e", "tuple": {"ts": "x"}}')
    good = '{"stream": "e", "tuple": {"ts": 1, "k": 1}}'
    said = [bad[0], bad[1], bad[2], bad[3], good, bad[3], bad[0], '{"stream": "e", "punctuation": 9}', bad[1], bad[0]]
    async with lines(daemon) as nc:
        nc.say("\n".join(said))
        wrong = [number for number, line in enumerate(said, 1) if line in bad]
        assert [(await nc.hear())["error"]["line"] for _ in wrong] == wrong


@served()
async def test_good_lines_around_a_bad_one_are_taken(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        good = [f'{{"stream": "s", "tuple": {{"k": {k}}}}}' for k in range(3)]
        nc.say("\n".join([good[0], '{"stream": "s", "tuple": {"k": true}}', good[1], good[2]]))
        said = [await nc.hear() for _ in range(4)]
        assert [line["error"]["line"] for line in said if "error" in line] == [3]
        assert [line["row"]["k"] for line in said if "row" in line] == [0, 1, 2]


@served()
async def test_lines_that_are_bad_in_different_ways_are_each_refused(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        tuples = ['{"k": 1}', '{"k": "x"}', '{"kk": 3}', '{"k": 2.5}', '{"k": 3}']
        nc.say("\n".join(f'{{"stream": "s", "tuple": {one}}}' for one in tuples))
        said = [await nc.hear() for _ in range(5)]
        assert [line["error"]["line"] for line in said if "error" in line] == [3, 4, 5]
        assert [line["row"]["k"] for line in said if "row" in line] == [1, 3]


@served(limits={"frame_bytes": 2048})
async def test_a_line_beyond_the_limit_ends_the_connection(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        nc.say('{"stream": "s", "tuple": {"name": "' + "x" * 3000 + '"}}')
        assert (await nc.hear())["error"]["code"] == "frame_too_large"
        assert await nc.hear() is None


@served()
async def test_the_end_of_input_ends_the_feed_but_not_the_subscription(daemon):
    async with lines(daemon) as nc, lines(daemon) as other:
        nc.say('{"subscribe": "q"}')
        nc.writer.write(b'{"stream": "s", "tuple": {"k": 1}}')  # the last line has no newline
        nc.writer.write_eof()
        assert (await nc.hear())["row"]["k"] == 1
        await until(lambda: daemon.streams()[0].connections == 0)
        other.say('{"stream": "s", "tuple": {"k": 2}}')
        assert (await nc.hear())["row"]["k"] == 2


@served()
async def test_two_people_with_nc_are_two_feeds(daemon):
    async with lines(daemon) as one, lines(daemon) as two:
        one.say('{"stream": "s", "tuple": {"k": 1}}')
        two.say('{"stream": "s", "tuple": {"k": 2}}')
        await until(lambda: daemon.streams()[0].tuples == 2)
        assert daemon.streams()[0].connections == 2


@served(engine={"credit": 10})
async def test_lines_ahead_of_the_engine_are_not_read(daemon):
    async with lines(daemon) as nc:
        for k in range(5_000):
            nc.say(f'{{"stream": "s", "tuple": {{"k": {k}}}}}')
        await until(lambda: daemon.queries()[0].rows == 5_000)


@served()
async def test_timestamps_and_bytes_in_lines(daemon):
    await daemon.catalog.execute(
        "CREATE STREAM e (ts TIMESTAMP, raw BYTES) WITH (timestamps = 'external', time = 'ts');"
        "CREATE QUERY p WITH (order = 'event') AS SELECT ts, raw FROM e"
    )
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "p", "progress": true}')
        nc.say('{"stream": "e", "tuple": {"ts": "2026-01-01T00:00:00Z", "raw": "aGk="}}')
        nc.say('{"stream": "e", "punctuation": "2026-01-01T00:00:05Z"}')
        said = [await nc.hear()]
        while said[-1].get("progress") != "2026-01-01T00:00:05Z":
            said.append(await nc.hear())
        row = {"ts": "2026-01-01T00:00:00Z", "raw": "aGk="}
        assert {"query": "p", "seq": 0, "row": row, "history": daemon.query("p").history} in said


@served()
async def test_dropping_is_told(daemon):
    async with lines(daemon) as nc:
        nc.say('{"subscribe": "q"}')
        nc.say('{"stream": "s", "tuple": {"k": 2}}')
        await nc.hear()
        await daemon.catalog.execute("DROP QUERY q; DROP STREAM s")
        assert [(await nc.hear())["error"]["code"] for _ in range(2)] == ["dropped", "dropped"]


@served(limits={"frame_bytes": 4096})
async def test_lines_of_nonsense(daemon):
    """Twenty thousand lines, most of them damaged, and one client that must not notice."""
    chance = random.Random(11)
    samples = [
        b'{"stream": "s", "tuple": {"k": 1, "v": 2.5, "name": "x"}}',
        b'{"stream": "s", "punctuation": "2026-01-01T00:00:00Z"}',
        b'{"subscribe": "q", "from": 0}',
        b'{"unsubscribe": "q"}',
        b'{"stream": "s", "close": true}',
        b'{"stream": "s", "tuple": {"k": [[[[[[1]]]]]]}}',
    ]

    def damaged():
        line = bytearray(chance.choice(samples))
        for _ in range(chance.randrange(3)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        return bytes(line)

    async def torment():
        async with lines(daemon) as nc:
            nc.writer.write(b"{}\n" + b"\n".join(damaged() for _ in range(5_000)) + b"\n")
            nc.say('{"unsubscribe": "the end"}')
            await nc.hear_until(b"the end")

    async with peer(daemon) as reader:
        await reader.subscribe(credit=10**6)
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(torment())
        async with lines(daemon) as nc:
            nc.say('{"stream": "s", "tuple": {"k": 123456789}}')
            while 123456789 not in [row[0] for row in (await reader.hear(Result)).rows]:
                pass
