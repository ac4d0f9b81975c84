"""A job in epochs and buckets has the rows of `millrace run`, and the same late tuples as one engine over all."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.backfill.bucket import Bucket, Group, group_of, groups_of, lived
from millrace.backfill.flow import flow_of
from millrace.engine.engine import Engine
from millrace.engine.events import (
    AddQuery,
    AddStream,
    Arrived,
    Command,
    CommandBody,
    Deliver,
    FeedClosed,
    FeedOpened,
    Late,
    Punctuated,
    SetBreak,
    SetStrategy,
    TooFar,
)
from millrace.formats.decoder import StreamDecoder
from millrace.offline.script import plan_script
from millrace.protocol import Refuse
from millrace.sql import Catalog
from millrace.values.batch import Batch
from tests.backfill.epochs import Outcome, Read, cut, packed, run_epochs
from tests.comparison import same_final, same_rows
from tests.conformance.rows import BID, CHECKS, HERE, NEXMARK, QUERIES, STREAMS, cases, events_of, sql_of
from tests.depth import DEEP, examples
from tests.running import lines, run_events, run_script

CASES = [case for case in cases() if case["query"]["op"] in QUERIES and case["query"]["op"] not in CHECKS]
SECOND = 1_000_000
PACKETS = """CREATE STREAM packets (ts TIMESTAMP, src TEXT, bytes BIGINT, port BIGINT)
             WITH (time = 'ts', disorder = '1 s', max_ahead = '1 hour');
             CREATE STREAM owners (ts TIMESTAMP, src TEXT, owner TEXT) WITH (time = 'ts', disorder = '2 s');"""
BY_KEY = f"""{PACKETS}
    CREATE QUERY traffic AS SELECT src, sum(bytes) AS bytes, count(*) AS n, window_end
      FROM TUMBLE(packets, ts, INTERVAL '3 seconds') GROUP BY src;
    CREATE QUERY owned AS SELECT p.ts, p.src, p.bytes, o.owner FROM packets p JOIN owners o
      ON p.src = o.src AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '2 seconds';
    CREATE QUERY ports AS SELECT port, count(*) AS n, window_end
      FROM HOP(packets, ts, INTERVAL '1 second', INTERVAL '2 seconds') GROUP BY port;
    CREATE QUERY large AS SELECT ts, src, bytes FROM packets WHERE bytes > 50;
    CREATE QUERY total AS SELECT count(*) AS n, window_end FROM TUMBLE(packets, ts, INTERVAL '3 seconds');
    CREATE QUERY lost AS SELECT ts, src, bytes, late_by_us FROM packets.late;
"""


def catalog_of(sql: str) -> Catalog:
    script = plan_script(sql)
    return Catalog(script.streams, script.queries)


# -- the same rows as `millrace run` -----------------------------------------------------------------------------------


def reads_of(catalog: Catalog, events: list[dict]) -> list[Read]:
    """Events as what was read of each stream: rows until a promise."""
    found: dict[str, list[Read]] = {}
    rows: dict[str, list[dict]] = {}

    def close(name: str, promise: int | None) -> None:
        decoder = StreamDecoder(catalog.streams[name])
        own = rows.pop(name, [])
        if own or promise is not None:
            batch = decoder.from_objects(own) if own else Batch.empty(catalog.streams[name].schema)
            found.setdefault(name, []).append(Read(name, "main", batch, promise))

    for event in events:
        name = event["stream"]
        if "tuple" in event:
            rows.setdefault(name, []).append(event["tuple"])
        elif "punctuation" in event:
            close(name, event["punctuation"])
    for name in list(rows):
        close(name, None)
    return [read for own in found.values() for read in own]


def check(catalog: Catalog, name: str, reads: list[Read], expected: list[dict], seed: int, buckets: int) -> Group:
    rng = Random(seed)
    group = group_of(flow_of(catalog, name), buckets)
    outcome = run_epochs([group], cut(rng, reads, rng.randint(0, 6)))
    wrong = compare(group, outcome.rows.get(name, []), expected)
    assert wrong is None, f"{name}, {buckets} buckets, seed {seed}: {wrong}"
    return group


def compare(group: Group, rows: list[dict], expected: list[dict]) -> str | None:
    if group.flow.equality == "rows":
        return same_rows(rows, expected)
    key = group.flow.query.update_key or ()
    told = [{name: value for name, value in row.items() if name != "$gone" or value} for row in rows]
    return same_final(told, expected, itemgetter(*key) if key else lambda row: None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_conformance(case, tmp_path):
    sql = sql_of(case)
    catalog = catalog_of(sql)
    result = run_events(sql, events_of(case, case["feed"]), tmp_path)
    name = list(catalog.queries)[-1]
    reads = reads_of(catalog, events_of(case, case["feed"]))
    for seed in range(20 if DEEP else 1):
        for buckets in (1, 4, 64) if DEEP else (1, 4):
            check(catalog, name, reads, result.rows[name], seed, buckets)


@pytest.mark.parametrize("name", NEXMARK)
def test_nexmark(name, tmp_path):
    sql = STREAMS + BID + NEXMARK[name]
    catalog = catalog_of(sql)
    paths = {name: str(HERE / "nexmark" / "data" / f"{name}.jsonl") for name in ("person", "auction", "bid")}
    result = run_script(sql, tmp_path, inputs=list(paths.items()), sorted=True)
    reads: list[Read] = []
    for stream, path in paths.items():
        batch = StreamDecoder(catalog.streams[stream]).from_objects(lines(path))
        reads.append(Read(stream, "main", batch.take(np.argsort(batch.ts, kind="stable"))))
    check(catalog, "q", reads, result.rows["q"], 1, 4)


# -- the same late tuples as one engine --------------------------------------------------------------------------------


def random_reads(rng: Random, catalog: Catalog, parts: int, rows: int) -> list[Read]:
    """Parts whose times rise, fall back more than their streams allow, leap ahead, or have been promised away."""
    reads: list[Read] = []
    for name, stream in catalog.streams.items():
        for part in range(rng.randint(1, parts)):
            now = 10 * SECOND + rng.randint(0, 3 * SECOND)
            while len(reads) < 1 or rng.random() < 0.8:
                made = []
                for _ in range(rng.randint(0, rows)):
                    now += rng.randint(0, SECOND // 2)
                    leap = 7_200 * SECOND if rng.random() < 0.03 else 0
                    ts = now + leap - rng.choice((0, 0, rng.randint(0, 4 * SECOND)))
                    src = rng.choice((None, "", *"abcdefg"))
                    made.append(
                        (ts, src, *(rng.choice((None, 0, rng.randint(-5, 99))) for _ in stream.schema.fields[2:]))
                    )
                if name == "owners":
                    made = [(ts, src, rng.choice("xyz")) for ts, src, *_ in made]
                promise = now - rng.randint(-SECOND, 3 * SECOND) if rng.random() < 0.3 else None
                batch = Batch.from_rows(stream.schema, made, [row[0] for row in made])
                reads.append(Read(name, f"{name}-{part}", batch, promise))
    return reads


def run_whole(catalog: Catalog, epochs, changes=None) -> Outcome:
    """One engine that takes all rows of a part as they are, and obeys commands before an epoch of these numbers."""
    engine, outcome, number = Engine(), Outcome(), 0
    commands: list[CommandBody] = [AddStream(lived(stream)) for stream in catalog.streams.values()]
    commands += [AddQuery(query) for query in catalog.queries.values()]
    engine.step(0, [Command(number, body) for number, body in enumerate(commands)])
    known: set[tuple[str, str]] = set()

    def step(at_us: int, events: list) -> None:
        effects = engine.step(at_us, events)
        more = True
        while more:
            for one in effects.orders:
                match one:
                    case Deliver(query, _, batch):
                        names = batch.schema.names
                        outcome.rows.setdefault(query, []).extend(
                            dict(zip(names, row, strict=True)) for row in batch.rows()
                        )
                    case Late(stream, batch=batch):
                        outcome.late[stream] += len(batch)
                    case TooFar(stream, batch=batch):
                        outcome.too_far[stream] += len(batch)
            more = effects.more
            effects = engine.step(at_us) if more else effects

    for place, (at_us, reads) in enumerate(epochs):
        for number, body in enumerate((changes or {}).get(place, ())):
            step(at_us, [Command(number, body)])
        order = list(engine.streams_by_name)
        reads = [read for read in reads if read.stream in order]
        reads.sort(key=lambda read: (order.index(read.stream), read.part))
        events: list = [FeedOpened(read.stream, read.part) for read in reads if (read.stream, read.part) not in known]
        known |= {(read.stream, read.part) for read in reads}
        for read in reads:
            if len(read.rows):
                events.append(Arrived(read.stream, read.part, read.rows))
            if read.promise is not None:
                events.append(Punctuated(read.stream, read.part, read.promise))
        step(at_us, events)
        number = at_us
    step(number + 1, [FeedClosed(stream, part, ended=True) for stream, part in sorted(known)])
    return outcome


def clocked_of(catalog: Catalog, epochs) -> list[tuple[int, list[Read]]]:
    """Epochs in which every part is heard of, by a clock that has the rows' times."""
    parts = dict.fromkeys((read.stream, read.part) for _, reads in epochs for read in reads)
    clocked = []
    for at_us, reads in epochs:
        silent = [one for one in parts if one not in {(read.stream, read.part) for read in reads}]
        empty = [Read(*one, Batch.empty(catalog.streams[one[0]].schema)) for one in silent]
        clocked.append((20 * SECOND + at_us, [*reads, *empty]))
    return clocked


def check_parts(seed: int, buckets: int) -> tuple[Counter, int]:
    rng = Random(seed)
    catalog = catalog_of(BY_KEY)
    clocked = clocked_of(catalog, cut(rng, random_reads(rng, catalog, 3, 8), rng.randint(0, 5)))
    expected = run_whole(catalog, clocked)
    groups = groups_of(catalog, buckets)
    outcome = run_epochs(groups, clocked)
    for name in catalog.queries:
        left, right = outcome.rows.get(name, []), expected.rows.get(name, [])
        assert (wrong := same_rows(left, right)) is None, f"seed {seed}, {name}: {wrong}"
    # Each group takes all rows of the streams that it reads.
    for name in catalog.streams:
        readers = sum(name in [lane.stream.name for lane in group.lanes] for group in groups)
        assert outcome.late[name] == readers * expected.late[name], f"seed {seed}: late tuples of {name}"
        assert outcome.too_far[name] == readers * expected.too_far[name], f"seed {seed}: {name} too far"
    assert all(len(marks) <= len(clocked) + 1 for marks in outcome.marks.values()), "all buckets have the same marks"
    return expected.late, len(groups)


@settings(deadline=None, max_examples=examples(40))
@given(seed=st.integers(0, 2**32), buckets=st.sampled_from((1, 2, 4, 7)))
def test_random_parts(seed, buckets):
    check_parts(seed, buckets)


def test_random_parts_have_late_tuples():
    late: Counter = Counter()
    for seed in range(6):
        more, _ = check_parts(seed, 4)
        late += more
    assert min(late["packets"], late["owners"]) > 20, late


# -- groups ------------------------------------------------------------------------------------------------------------


def test_queries_with_one_key_share_their_buckets():
    groups = groups_of(catalog_of(BY_KEY), 8)
    told = [(group.flow.names, group.how, group.buckets) for group in groups]
    assert told == [
        (("traffic", "owned"), "key", 8),
        (("ports",), "key", 8),
        (("large", "lost"), "spread", 8),
        (("total",), "one", 1),
    ]
    assert len({group.fingerprint for group in groups}) == 4


def test_the_fingerprint_is_of_the_plan_and_the_buckets():
    def fingerprint(sql: str, buckets: int) -> str:
        return group_of(flow_of(catalog_of(sql), "traffic"), buckets).fingerprint

    assert fingerprint(BY_KEY, 8) == fingerprint(BY_KEY, 8)
    assert fingerprint(BY_KEY, 8) != fingerprint(BY_KEY, 9)
    assert fingerprint(BY_KEY, 8) != fingerprint(BY_KEY.replace("3 seconds", "4 seconds"), 8)


def test_what_cannot_be_repeated_is_refused():
    with pytest.raises(Refuse, match="query q cannot run here: its result depends on the load"):
        groups_of(catalog_of(f"{PACKETS}CREATE QUERY q AS SELECT src, bytes FROM packets SHED RANDOM 5;"), 4)


# -- changes while it runs ---------------------------------------------------------------------------------------------

CHANGED = {
    "a new query": (
        "CREATE QUERY more AS SELECT src, max(bytes) AS most, window_end "
        "FROM TUMBLE(packets, ts, INTERVAL '2 seconds') GROUP BY src;"
    ),
    "a new stream, too": (
        "CREATE QUERY more AS SELECT p.ts, p.src, p.bytes, o.owner FROM packets p JOIN owners o "
        "ON p.src = o.src AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '2 seconds';"
    ),
    "another plan": (
        "CREATE OR REPLACE QUERY traffic AS SELECT src, sum(bytes) AS bytes, count(*) AS n, window_end "
        "FROM TUMBLE(packets, ts, INTERVAL '3 seconds') WHERE bytes > 10 GROUP BY src;"
    ),
    "one query less": "DROP QUERY large;",
    "a strategy": "",
}
TWO = f"""{PACKETS}
    CREATE QUERY traffic AS SELECT src, sum(bytes) AS bytes, count(*) AS n, window_end
      FROM TUMBLE(packets, ts, INTERVAL '3 seconds') GROUP BY src;
    CREATE QUERY large AS SELECT src, count(*) AS n, window_end
      FROM HOP(packets, ts, INTERVAL '1 second', INTERVAL '3 seconds') WHERE bytes > 50 GROUP BY src;
"""


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("seed", [2, 4, 6])
def test_a_job_changes_as_an_engine_does(change, seed):
    rng = Random(seed)
    before, sql = catalog_of(TWO), TWO + CHANGED[change]
    after = catalog_of(sql)
    decisions = () if CHANGED[change] else (SetBreak("packets.source", True), SetStrategy("packets", "bfs(3)"))
    (group,) = groups_of(before, 4)
    changed, commands = group.after(flow_of(after, *after.queries), decisions)
    clocked = clocked_of(before, cut(rng, random_reads(rng, before, 3, 12), 5))
    at = rng.randint(1, 4)
    whole = run_whole(group.flow.catalog, clocked, {at: commands})
    outcome = run_epochs([group], clocked, changes={at: (changed, commands)})
    assert any(whole.rows.values())
    for name in {*before.queries, *after.queries}:
        wrong = same_rows(outcome.rows.get(name, []), whole.rows.get(name, []))
        assert wrong is None, f"{name}: {wrong}"
    assert changed.fingerprint != group.fingerprint


def test_a_change_may_not_move_rows_to_other_buckets():
    catalog = catalog_of(BY_KEY)
    group, *_ = groups_of(catalog, 4)
    with pytest.raises(Refuse, match=r"divided by packets by src.* create it as a new query"):
        group.after(flow_of(catalog, *group.flow.names, "ports"))


# -- states ------------------------------------------------------------------------------------------------------------


def test_the_same_parcels_make_the_same_bytes():
    rng = Random(5)
    catalog = catalog_of(BY_KEY)
    (group, *_) = groups_of(catalog, 4)
    reads = [read for read in random_reads(rng, catalog, 2, 30) if read.stream == "packets"]
    placed = [(read, 100 * at) for at, read in enumerate(reads[:4])]
    parcels = [one for one in packed([group], placed, SECOND) if one.bucket == 1]
    states = set()
    for seed in range(3):
        Random(seed).shuffle(parcels)
        bucket = Bucket(group)
        bucket.step(SECOND, parcels)
        states.add(bucket.save())
    assert len(states) == 1
    (state,) = states
    assert Bucket(group, state).save() == state


def test_a_state_has_nothing_of_the_plan():
    (group, *_) = groups_of(catalog_of(BY_KEY), 4)
    assert b"SELECT" not in Bucket(group).save()
    assert len(Bucket(group).save()) < 3_000
