"""A backfill has the same rows as `millrace run` for every split, by their class of equality."""

from __future__ import annotations

import io
import json
from collections import Counter
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.backfill.flow import Flow, flow_of
from millrace.backfill.layout import OWN_TIME
from millrace.backfill.splitting import Mode, plan_split
from millrace.engine.events import AddQuery, AddStream
from millrace.formats.decoder import StreamDecoder
from millrace.offline.run import Options, Run
from millrace.offline.script import Script, plan_script
from millrace.protocol import Refuse
from millrace.sql import Catalog
from millrace.values.batch import Batch
from tests.backfill.local import extent_of, run_split
from tests.comparison import same_final, same_rows
from tests.conformance.rows import BID, CHECKS, HERE, NEXMARK, QUERIES, STREAMS, cases, events_of, sql_of
from tests.depth import examples
from tests.running import lines, run_events, run_script
from tests.simulation.world import World, world_of

CASES = [case for case in cases() if case["query"]["op"] in QUERIES and case["query"]["op"] not in CHECKS]


def differences(flow: Flow, inputs: dict[str, Batch], expected: list[dict], tasks: int = 3) -> tuple[Counter, list]:
    """The differences over all ways to split the flow, and the number of each way."""
    found: list[str] = []
    ways: Counter[str] = Counter()
    asked: list[tuple[Mode, int]] = [("auto", 1), ("key", tasks), ("time", tasks)]
    for mode, count in asked:
        try:
            split = plan_split(flow, extent_of(inputs), mode=mode, tasks=count)
        except Refuse as refused:
            ways[refused.code] += 1
            continue
        ways[split.how] += 1
        rows = [
            {name: value for name, value in row.items() if name != OWN_TIME} for row in run_split(flow, split, inputs)
        ]
        wrong = compare(flow, rows, expected)
        if wrong is not None:
            found.append(f"{flow.name} {mode} {split.how}: {wrong}")
    return ways, found


def compare(flow: Flow, rows: list[dict], expected: list[dict]) -> str | None:
    if flow.equality == "rows":
        return same_rows(rows, expected)
    if flow.equality == "load":
        return None  # Rows depend on the load of the engine, so only one task is possible.
    key = flow.query.update_key or ()
    return same_final(told(rows), expected, itemgetter(*key) if key else lambda row: None)


def told(rows: list[dict]) -> list[dict]:
    """Rows as JSON lines have them: existing rows have no mark."""
    return [{name: value for name, value in row.items() if name != "$gone" or value} for row in rows]


def everything(streams) -> str:
    return "".join(f'CREATE QUERY "all-{name}" AS SELECT * FROM "{name}";' for name in streams)


def arrived(catalog: Catalog, result, streams) -> dict[str, Batch]:
    """The rows of each stream that were on time, in order of arrival."""
    made = {}
    for name in streams:
        source = StreamDecoder(catalog.streams[name])
        made[name] = source.from_objects(result.rows[f"all-{name}"])
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_conformance(case, tmp_path):
    sql = sql_of(case)
    script = plan_script(sql)
    result = run_events(sql + ";" + everything(script.streams), events_of(case, case["feed"]), tmp_path)
    ((name, _),) = list(script.queries.items())[-1:]
    flow = flow_of(Catalog(script.streams, script.queries), name)
    ways, found = differences(flow, arrived(flow.catalog, result, flow.streams), result.rows[name])
    assert not found
    assert ways["one"]


@pytest.mark.parametrize("name", NEXMARK)
def test_nexmark(name, tmp_path):
    sql = STREAMS + BID + NEXMARK[name]
    script = plan_script(sql)
    inputs = [(name, str(HERE / "nexmark" / "data" / f"{name}.jsonl")) for name in ("person", "auction", "bid")]
    result = run_script(sql + ";" + everything(script.streams), tmp_path, inputs=inputs, sorted=True)
    flow = flow_of(Catalog(script.streams, script.queries), "q")
    _, found = differences(flow, arrived(flow.catalog, result, flow.streams), result.rows["q"])
    assert not found


def world_rows(world: World) -> dict[str, list[dict]]:
    """The tuples of the log at their own times, all on time."""
    rows: dict[str, list[dict]] = {stream.name: [] for stream in world.streams}
    for said in world.log:
        if said.kind == "tuples":
            for ts, id_, v in said.tuples:
                at = ts if ts is not None else said.at
                rows[said.stream].append({"at": at, "stream": said.stream, "tuple": {"ts": ts, "id": id_, "v": v}})
    return rows


def check_world(seed: int, tasks: int, folder) -> Counter:
    world = world_of(seed)
    plans = {query.name: query.plan() for query in world.queries}
    streams = {stream.name: stream for stream in world.streams}
    commands: list = [*map(AddStream, streams.values()), *map(AddQuery, plans.values())]
    rows = world_rows(world)
    events = sorted((event for own in rows.values() for event in own), key=itemgetter("at"))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    outputs = [(name, str(folder / f"{name}.jsonl")) for name in plans]
    run = Run(
        Script(commands, streams, plans),
        Options(events=str(folder / "events.jsonl"), outputs=outputs, iso=False),
        io.BytesIO(),
    )
    run.run()
    catalog = Catalog(streams, plans)
    inputs = {name: world_batch(streams[name], rows[name]) for name in streams}
    for name, stream in streams.items():
        inputs[f"{name}.late"] = Batch.empty(stream.late.schema)
    ways: Counter[str] = Counter()
    for name in plans:
        flow = flow_of(catalog, name)
        more, found = differences(
            flow, {one: inputs[one] for one in flow.streams}, lines(folder / f"{name}.jsonl"), tasks
        )
        assert not found, f"world {seed}: {found}"
        ways += more
    return ways


def world_batch(stream, rows: list[dict]) -> Batch:
    rows = sorted(rows, key=itemgetter("at"))
    values = [(row["tuple"]["ts"], row["tuple"]["id"], row["tuple"]["v"]) for row in rows]
    return Batch.from_rows(stream.schema, values, [row["at"] for row in rows])


@settings(deadline=None, max_examples=examples(40))
@given(seed=st.integers(0, 2**32), tasks=st.integers(2, 6))
def test_random_plans(seed, tasks, tmp_path_factory):
    check_world(seed, tasks, tmp_path_factory.mktemp("world"))


def test_random_plans_are_split_in_every_way(tmp_path_factory):
    ways: Counter[str] = Counter()
    for seed in range(30):
        ways += check_world(seed, 3, tmp_path_factory.mktemp("world"))
    assert min(ways["key"], ways["time"], ways["one"], ways["cannot_split"]) >= 5, ways
