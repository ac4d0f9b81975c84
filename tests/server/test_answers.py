"""Every answer of the API, key by key: names, order, nulls, and the values that do not depend on the moment.

`python -m tests.server.test_answers` records them again, for a change of an answer that is meant.
"""

import asyncio
import json
import re
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

from millrace.observe.rates import between
from millrace.store.restarts import Marker
from tests.patience import HANG_SECONDS
from tests.server.harness import lines, peer, running, until
from tests.server.test_api import ask

RECORDED = Path(__file__).with_name("answers.jsonl")
NOON = 1_791_288_000_000_000
SECOND = 1_000_000

DEFINITIONS = """
CREATE STREAM plain (k BIGINT, v DOUBLE, name TEXT);
CREATE STREAM latent (k BIGINT) WITH (timestamps = 'latent');
CREATE STREAM left (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', max_skew = '1 hour', disorder = '1 s', time_unit = 'ms');
CREATE STREAM right (ts TIMESTAMP NOT NULL, k BIGINT) WITH (time = 'ts', ets = 'none');
CREATE STREAM grouped (ts TIMESTAMP, k BIGINT, b BYTES) WITH (time = 'ts', punctuation_key = 'k, b');
CREATE STREAM kept (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', history = 'true');
CREATE STREAM ticks (symbol TEXT, price DOUBLE) WITH (update_key = 'symbol');
CREATE STREAM lonely (k BIGINT);
CREATE QUERY filtered AS SELECT k, v FROM plain WHERE k > 0;
CREATE QUERY alike AS SELECT k, v FROM plain WHERE k > 0;
CREATE QUERY summed AS SELECT k, sum(v) AS total FROM plain GROUP BY k;
CREATE QUERY merged WITH (order = 'event') AS SELECT k FROM left UNION ALL SELECT k FROM right;
CREATE QUERY pairs WITH (order = 'event', join = 'adaptive', alpha = 0.5) AS
    SELECT l.k FROM left l JOIN right r ON l.k = r.k AND l.ts BETWEEN r.ts - INTERVAL '1 s' AND r.ts + INTERVAL '1 s';
CREATE QUERY windows AS
    SELECT k, count(*) AS n, window_start FROM TUMBLE(grouped, ts, INTERVAL '10 seconds') GROUP BY k, window_start;
CREATE QUERY bounded WITH (aggregate = 'bounded', slots = 16) AS
    SELECT k, count(*) AS n, window_start FROM TUMBLE(left, ts, INTERVAL '10 seconds') GROUP BY k, window_start;
CREATE QUERY board AS SELECT symbol, price FROM ticks LATEST USING DEADLINE;
CREATE QUERY busy AS SELECT symbol, price FROM ticks LATEST USING AUTO;
CREATE QUERY late AS SELECT * FROM left.late;
CREATE QUERY above AS SELECT k FROM filtered WHERE v > 1;
CREATE QUERY stopped AS SELECT k FROM plain;
CREATE QUERY chained AS SELECT k FROM lonely WHERE k > 0;
CREATE SINK printed FROM filtered WITH (type = 'stdout', on_slow = 'disconnect');
CREATE SINK strict FROM board WITH (type = 'file', path = '{folder}/rows.jsonl', format = 'jsonl', freshness = '1 us');
"""
# Changes after the rows, each as method, path and body.
CHANGES: tuple[tuple[str, str, object], ...] = (
    ("POST", "queries/stopped/pause", {"reason": "the answers need one"}),
    ("PUT", "components/lonely/strategy", {"strategy": "chain"}),
    ("PUT", "components/plain/weight", {"weight": 3}),
    ("POST", "operators/summed.aggregate1/insert", {"input": 0, "sample": 0.5, "seed": 1}),
    ("PUT", "operators/alike.filter1/break", None),
    ("PUT", "queries/pairs/order", {"join": "filter"}),
    ("POST", "queries/chained/rename", {"to": "chosen"}),
    ("POST", "changes/undo", {}),
    ("POST", "components/lonely/trial", {"strategy": "bfs", "for": "10 ms"}),
    ("POST", "backfills", {"sql": "CREATE QUERY past AS SELECT k FROM kept"}),
)
# Further requests whose answers are recorded, after the backfill.
REQUESTS: tuple[tuple[str, str, object], ...] = (
    ("POST", "queries/stopped/resume?dry_run=true", {}),
    ("POST", "queries/stopped/resume", {}),
    ("POST", "queries/alike/unshare", {}),
    ("POST", "queries/chained/rename?dry_run=true", {"to": "elsewhere"}),
    ("POST", "streams/lonely/rename-column", {"column": "k", "to": "number"}),
    ("PUT", "operators/board.project1/queue", {"kind": "append"}),
    ("PUT", "operators/alike.filter1", {"where": "k > 1"}),
    ("DELETE", "operators/alike.filter1/break", None),
    ("POST", "streams/kept/archive", {}),
    ("PUT", "backfills/past", {"history_us": NOON, "done": True}),
    ("DELETE", "backfills/past", None),
    ("DELETE", "queries/late?dry_run=true", None),
    ("DELETE", "queries/late", None),
    ("POST", "changes", {"changes": [{"change": "drop_sink", "name": "printed"}], "dry_run": True}),
    ("POST", "changes", {"changes": [
        {"change": "create_query", "sql": "CREATE QUERY twice AS SELECT k FROM plain WHERE k > 1"},
        {"change": "create_query",
         "sql": "CREATE OR REPLACE QUERY chained AS SELECT number FROM lonely WHERE number > 2"},
        {"change": "create_stream", "sql": "CREATE STREAM fresh (ts TIMESTAMP, k BIGINT) WITH (time = 'ts')"},
        {"change": "alter_stream", "sql": "ALTER STREAM fresh SET (max_skew = '1 s')"},
        {"change": "create_sink", "sql": "CREATE SINK again FROM twice WITH (type = 'stdout')"},
        {"change": "drop_sink", "name": "again"},
    ]}),
    ("POST", "changes/undo", {"dry_run": True}),
    ("POST", "sql", {"sql": "CREATE STREAM more (ts TIMESTAMP, k BIGINT) WITH (time = 'ts'); "
                            "CREATE QUERY most AS SELECT k FROM more; "
                            "CREATE SINK rest FROM most WITH (type = 'stdout'); ALTER STREAM more ADD COLUMN v DOUBLE; "
                            "ALTER STREAM more RENAME COLUMN v TO w; ALTER STREAM more SET (max_skew = '1 s'); "
                            "CREATE OR REPLACE QUERY most AS SELECT k FROM more WHERE k > 0"}),
    ("POST", "sql", {"sql": "ALTER QUERY most RENAME TO least; DROP SINK rest", "dry_run": True}),
    ("POST", "sql", {"sql": "CREATE SINK rest FROM most WITH (type = 'stdout')", "idempotent": True}),
    ("POST", "sql", {"sql": "INSERT INTO plain (k, v) VALUES (1, 2.5); INSERT INTO left (ts, k) VALUES (1, 2)"}),
    ("POST", "sql", {"sql": "SHOW STREAMS"}),
    ("POST", "sql", {"sql": "DESCRIBE left; DESCRIBE pairs; DESCRIBE STREAM ticks"}),
    ("POST", "sql", {"sql": "SHOW CREATE STREAM left; SHOW CREATE QUERY pairs; DESCRIBE SINK strict"}),
    ("POST", "sql", {"sql": "EXPLAIN SELECT k FROM plain; EXPLAIN pairs; EXPLAIN ANALYZE pairs"}),
    ("POST", "sql", {"sql": "EXPLAIN ANALYZE stopped"}),
    ("POST", "sql", {"sql": "SELECT k FROM plain", "temporary": True, "dry_run": True}),
    ("POST", "sql", {"sql": "SELECT k FROM plain LIMIT 3", "temporary": True}),
    ("POST", "sql", {"sql": "CREATE STREAM plain (k BIGINT, v DOUBLE, name TEXT); CREATE STREAM new (k BIGINT)",
                     "prune": True, "dry_run": True}),
    ("POST", "sql", {"sql": "CREATE STREAM plain (k BIGINT)"}),
    ("POST", "sql", {"sql": "SELEC"}),
)  # fmt: skip
# Lists, and what has one item of each, by the name of the item.
ITEMS = {"streams": (), "queries": ("explain", "explain?analyze=true", "why"), "sinks": (), "operators": (),
         "components": ("table", "graph", "strategy", "trial")}  # fmt: skip
PAGES = ("server", "configuration", "log", "changes", "catalog", "catalog?plans=true", "backfills/past")
# Numbers that the rows and the changes above decide.
DECIDED = {"tuples", "late", "rows", "weight", "input_tuples", "output_tuples", "state_tuples", "skipped", "delivered",
           "superseded", "connections", "subscribers", "number", "undoes", "undone_by", "slow_limit", "slow_bytes",
           "disorder_us", "max_skew_us", "ets_interval_us", "grace_us", "ahead_us", "alpha", "sample",
           "max_state", "slots", "rejected", "dropped", "errors", "refresh_us", "bound_us", "seam_us"}  # fmt: skip


async def made(daemon, folder):
    """Rows, changes and readers, so that every kind of object is there with as much to show as possible."""
    async with lines(daemon) as feeder, lines(daemon) as reader, peer(daemon) as asking:
        reader.say('{"subscribe": "board", "refresh": 500}')
        await until(lambda: daemon.engine.reads)
        await asking.subscribe("filtered")
        for k in range(4):
            feeder.say(f'{{"stream": "plain", "tuple": {{"k": {k}, "v": {k}.5, "name": "n"}}}}')
            feeder.say(f'{{"stream": "latent", "tuple": {{"k": {k}}}}}')
            feeder.say(f'{{"stream": "lonely", "tuple": {{"k": {k}}}}}')
            feeder.say(f'{{"stream": "left", "tuple": {{"ts": {(NOON + k * SECOND) // 1000}, "k": {k}}}}}')
            feeder.say(f'{{"stream": "kept", "tuple": {{"ts": {NOON + k * SECOND}, "k": {k}}}}}')
            feeder.say(f'{{"stream": "grouped", "tuple": {{"ts": {NOON + k * SECOND}, "k": {k}, "b": "YQ=="}}}}')
            feeder.say(f'{{"stream": "ticks", "tuple": {{"symbol": "A", "price": {k}.5}}}}')
        feeder.say(f'{{"stream": "right", "tuple": {{"ts": {NOON}, "k": 1}}}}')
        feeder.say(f'{{"stream": "left", "tuple": {{"ts": {(NOON - 60 * SECOND) // 1000}, "k": 9}}}}')
        feeder.say(f'{{"stream": "grouped", "punctuation": {NOON + 30 * SECOND}, "where": {{"k": 1, "b": "YQ=="}}}}')
        feeder.say('{"stream": "plain", "tuple": {"k": "nonsense"}}')
        await until(lambda: count(daemon) >= 4 * 7 + 2)
        await daemon.runner.wait_drained()
        found = {}
        for method, path, body in CHANGES:
            status, _, answer = await ask(daemon, method, f"/api/v1/{path}", body)
            found[f"{method} {path}"] = [status, shape(answer, folder)]
        await until(lambda: daemon.trials.look("lonely").state == "ended")
        await until(lambda: daemon.seams.look("past").phase == "live")
        await daemon.runner.wait_drained()
        daemon.rates.now = partial(rates, daemon)
        found |= await answers(daemon, folder)
        for number, (method, path, body) in enumerate(REQUESTS, 1):
            status, _, answer = await ask(daemon, method, f"/api/v1/{path}", body)
            found[f"{number}: {method} {path}"] = [status, shape(answer, folder)]
        return found


def rates(daemon):
    """The same for every operator, however long the test has taken."""
    waiting = {one.name: len(one.inputs) if one.waits else 0 for one in daemon.engine.graph.operators.values()}
    return {
        name: between((0, 0, 0, 0.0, (0,) * inputs), (10, 5, 3, 7.0, (1,) * inputs), SECOND)
        for name, inputs in waiting.items()
    }


def count(daemon):
    return sum(
        source.counts.input_tuples for source in daemon.engine.graph.operators.values() if source.kind == "source"
    )


async def answers(daemon, folder):
    async def get(path):
        status, kind, answer = await ask(daemon, "GET", f"/api/v1/{path}")
        assert "json" in kind, answer
        return status, answer

    found = {}
    for kind, pages in ITEMS.items():
        _, items = await get(kind)
        found[kind] = shape(items, folder)
        for item in items:
            at = f"{kind}/{item['name']}"
            _, one = await get(at)
            assert list(one) == list(item), "one item has the keys of the list's"
            for page in pages:
                status, answer = await get(f"{at}/{page}")
                found[f"{at}/{page}"] = [status, shape(answer, folder)]
    for stream in found["streams"]:
        status, answer = await get(f"streams/{stream['name']}/stale")
        found[f"streams/{stream['name']}/stale"] = [status, shape(answer, folder)]
    for page in PAGES:
        found[page] = shape((await get(page))[1], folder) if page != "log" else []
    return found


def shape(value, folder, key=""):
    """The answer with the names of types in the place of values that differ from run to run."""
    if isinstance(value, dict):
        return {re.sub(r":\d+/", ":PORT/", name): shape(inner, folder, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner, folder, key) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return words(value, folder, key)
    return value if key in DECIDED else type(value).__name__


def words(text, folder, key):
    if key in (
        "fingerprint",
        "history",
        "author",
        "client",
        "feed",
        "version",
        "python",
        "platform",
        "text",
        "kernels",
        "allow_paths",
    ):
        return "str"
    if key in ("listen", "admin", "reader") or re.fullmatch(r"[\d.]+", text):
        return "str"
    return text.replace(str(folder), "FOLDER")


async def recorded(folder):
    server = {"data_dir": str(folder / "data"), "history_dir": str(folder / "history")}
    sections = {"server": server, "journal": {"follower": "off"}}  # its reason for not running depends on the time
    (folder / "data").mkdir(exist_ok=True)
    definitions = DEFINITIONS.replace("{folder}", str(folder))
    async with asyncio.timeout(HANG_SECONDS):
        async with running(definitions, **sections) as daemon:
            first = await made(daemon, folder)
        Marker(folder / "data").write(NOON)  # as if it had been killed
        async with running(**sections) as daemon:
            again = await answers(daemon, folder)
    return {**first, **{f"restarted/{kind}": again[kind] for kind in ("streams", "queries", "server")}}


def play(folder):
    """By path, the shape of the answer."""
    return asyncio.run(recorded(folder))


def differences(before, now, path=""):
    """Where two values differ, keys in order included."""
    if isinstance(before, dict) and isinstance(now, dict):
        if list(before) != list(now):
            yield f"{path}: keys {list(before)} were expected, got {list(now)}"
        for key in before.keys() & now.keys():
            yield from differences(before[key], now[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{path}/{at}")
    elif before != now or type(before) is not type(now):
        yield f"{path}: {before!r} was expected, got {now!r}"


def test_answers_have_the_recorded_keys_and_values(tmp_path):
    before = dict(json.loads(line) for line in RECORDED.read_text().splitlines())
    assert list(differences(before, play(tmp_path))) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        RECORDED.write_text("".join(f"{json.dumps(answer)}\n" for answer in play(Path(folder)).items()))
        sys.stdout.write(f"recorded {RECORDED}\n")
