"""Rates between two looks, the graph in every form, and EXPLAIN ANALYZE."""

import re

import pytest

from millrace.changes.pause_query import PauseQuery
from millrace.changes.set_break import SetBreak
from millrace.changes.set_strategy import SetStrategy
from millrace.engine import views
from millrace.observe.analysis import asked_for
from millrace.observe.graph import FORMS, draw, render
from millrace.observe.rates import LOOKS, Rates, between
from tests.server.harness import lines, served, until
from tests.server.test_api import ask, get

SQL = """
CREATE STREAM a (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', ets = 'none');
CREATE STREAM b (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', ets = 'none');
CREATE QUERY q WITH (order = 'event', fuse = 'off') AS SELECT k FROM a WHERE k > 0 UNION ALL SELECT k FROM b;
CREATE QUERY r WITH (fuse = 'off') AS SELECT k FROM a WHERE k > 5;
CREATE QUERY top AS SELECT k FROM q WHERE k > 7
"""


def graph_of(daemon):
    forks = views.forks(daemon.engine)
    return draw(forks, daemon.operators(), daemon.components()[0], daemon.rates.now())


def wanted_arcs(graph):
    return {(arc["from"], arc["to"]) for arc in graph["arcs"]}


async def feed(daemon, stream, rows):
    """So many rows, of which every tenth passes k > 0."""
    async with lines(daemon) as feeder:
        for at in range(rows):
            feeder.say(f'{{"stream": "{stream}", "tuple": {{"ts": {1_000_000 + at}, "k": {0 if at % 10 else 1}}}}}')
        await until(lambda: next(s for s in daemon.streams() if s.name == stream).tuples >= rows)
    await until(lambda: not daemon.context.connections)
    await daemon.runner.wait_drained()


def test_rates_between_two_looks():
    rate = between((10, 5, 1, 100.0, (0, 10)), (110, 30, 6, 600.0, (500_000, 10)), 2_000_000)
    assert (rate.input, rate.output, rate.executions) == (50.0, 12.5, 2.5)
    assert (rate.selectivity, rate.cost_us) == (0.25, 5.0)
    assert (rate.busy, rate.idle, rate.idle_most) == (0.00025, (0.25, 0.0), 0.25)
    nothing = between((10, 5, 1, 100.0, ()), (10, 5, 1, 100.0, ()), 1_000_000)
    assert (nothing.selectivity, nothing.cost_us, nothing.idle_most) == (None, None, 0.0)


@served(SQL)
async def test_rates_are_of_the_last_looks(daemon):
    clock = [0]
    rates = Rates(daemon.engine, lambda: clock[0])
    assert rates.now() == {}
    rates.look()
    assert rates.now() == {}  # no time has passed
    await feed(daemon, "a", 100)
    clock[0] = 4_000_000
    now = rates.now()
    assert (now["a.source"].output, now["q.filter1"].input, now["q.filter1"].selectivity) == (25.0, 25.0, 0.1)
    # What lies further back than the looks that are kept does not count any more.
    for _ in range(LOOKS):
        clock[0] += 1_000_000
        rates.look()
    clock[0] += 1_000_000
    assert rates.now()["a.source"].output == 0.0
    assert rates.now()["a.source"].seconds == LOOKS
    # The counters of an operator that is created again start again.
    await daemon.catalog.execute("DROP QUERY r; CREATE QUERY r WITH (fuse = 'off') AS SELECT k FROM a WHERE k > 5")
    assert "r.filter1" not in rates.now()
    clock[0] += 1_000_000
    rates.look()
    clock[0] += 1_000_000
    assert rates.now()["r.filter1"].input == 0.0


@served(SQL)
async def test_a_blocked_operator_waits_although_the_engine_makes_no_steps(daemon):
    rates = Rates(daemon.engine, daemon.runner.now_us)
    await feed(daemon, "a", 10)
    rates.look()
    steps, began = daemon.runner.steps, daemon.runner.now_us()
    await until(lambda: daemon.runner.now_us() - began > 20_000)
    assert daemon.runner.steps == steps
    assert rates.now()["q.union1"].idle[1] > 0.9


@served(SQL)
async def test_the_graph_as_data(daemon):
    daemon.rates.look()
    await feed(daemon, "a", 10)
    await daemon.catalog.change(SetBreak(name="q.filter1", on=True))
    graph = await get(daemon, "/api/v1/components/a/graph")
    names = [node["name"] for node in graph["operators"]]
    assert len(names) == len(set(names))
    assert {arc["from"] for arc in graph["arcs"]} | {arc["to"] for arc in graph["arcs"]} == set(names)
    fork = next(node["name"] for node in graph["operators"] if node["kind"] == "fork")
    arcs = wanted_arcs(graph)
    assert ("a.source", fork) in arcs
    assert (fork, "q.filter1") in arcs
    assert ("a.source", "q.filter1") not in arcs
    assert ("b.source", "q.union1") not in arcs or "q.project2" not in names
    assert [arc["from"] for arc in graph["arcs"] if arc["break"]] == ["q.filter1"]
    union = next(node for node in graph["operators"] if node["name"] == "q.union1")
    assert union["blocked"]
    source = next(node for node in graph["operators"] if node["name"] == "a.source")
    assert source["rate"]["output"] > 0


def parse_mermaid(text):
    """Nodes by name and arcs by names; every line must be one that mermaid's flowcharts have."""
    head, *rest = text.split("\n")
    assert head == "flowchart LR"
    ids, arcs = {}, set()
    for line in rest:
        node = re.fullmatch(r'  (n\d+)(?:\["([^"]*)"\]|\(\["([^"]*)"\]\)|\[\["([^"]*)"\]\]|\{\{"([^"]*)"\}\})', line)
        arc = re.fullmatch(r'  (n\d+) (-->|-\.->)(?:\|"([^"]*)"\|)? (n\d+)', line)
        if node:
            ids[node[1]] = next(label for label in node.groups()[1:] if label is not None).split("<br/>")[0]
        else:
            assert arc, line
            arcs.add((ids[arc[1]], ids[arc[4]]))
    return set(ids.values()), arcs


def parse_dot(text):
    quoted = r'"((?:[^"\\]|\\.)*)"'
    head, *rest, end = text.split("\n")
    assert re.fullmatch(rf"digraph {quoted} \{{", head)
    assert end == "}"
    nodes, arcs = set(), set()
    for line in rest[2:]:
        node = re.fullmatch(rf"  {quoted} \[shape=\w+, label={quoted}\];", line)
        arc = re.fullmatch(rf"  {quoted} -> {quoted} \[label={quoted}(, style=dashed)?\];", line)
        if node:
            nodes.add(node[1])
        else:
            assert arc, line
            arcs.add((arc[1], arc[2]))
    return nodes, arcs


@pytest.mark.parametrize("broken", [False, True])
@served(SQL)
async def test_every_drawing_shows_the_same_graph(daemon, broken):
    if broken:
        await daemon.catalog.change(SetBreak(name="q.filter1", on=True))
        await daemon.catalog.change(SetStrategy(name="a", strategy="rr"))
        daemon.rates.look()
        await feed(daemon, "a", 20)
    graph = graph_of(daemon)
    names, arcs = {node.name for node in graph.operators}, {(arc.from_, arc.to) for arc in graph.arcs}
    assert parse_mermaid(render(graph, "mermaid")) == (names, arcs)
    assert parse_dot(render(graph, "dot")) == (names, arcs)
    table = [line.split() for line in render(graph, "table").split("\n")]
    assert table[0] == ["operator", "kind", "strategy", "from", "queue", "in/s", "out/s", "idle", "break"]
    assert names <= {line[0] for line in table[1:]}
    assert len(table) - 1 == sum(max(1, sum(arc.to == name for arc in graph.arcs)) for name in names)
    tree = render(graph, "text").split("\n")
    told = [line.lstrip("│├└─ ").split()[0] for line in tree[1:]]
    assert set(told) == names
    # Every operator is described once, and named again for each further input.
    assert sum("(see above)" in line for line in tree) == len(graph.arcs) + 2 - len(names)
    assert any("break (rr)" in line for line in tree) == broken


@served(SQL)
async def test_drawings_are_served(daemon):
    for form in FORMS:
        said = await get(daemon, f"/api/v1/components/a/graph?format={form}")
        assert (said["component"], said["format"]) == ("a", form)
        assert "q.union1" in said["text"]
    assert (await ask(daemon, "GET", "/api/v1/components/a/graph?format=png"))[0] == 422
    assert (await ask(daemon, "GET", "/api/v1/components/x/graph"))[0] == 404


@served(SQL)
async def test_explain_analyze(daemon):
    daemon.rates.look()
    await feed(daemon, "a", 50)
    said = await get(daemon, "/api/v1/queries/q/explain?analyze=true")
    found = {operator["name"]: operator for operator in said["operators"]}
    assert {"a.source", "b.source", "q.filter1", "q.union1", "q.sink1"} <= set(found)
    assert "r.filter1" not in found
    assert found["q.filter1"]["selectivity"] == 0.1
    assert found["q.filter1"]["cost_us"] > 0
    assert found["q.filter1"]["input"] > found["q.filter1"]["output"] > 0
    assert found["q.union1"]["blocked"]
    assert 0 <= found["q.union1"]["idle"] <= 1
    assert (found["q.filter1"]["idle"], found["a.source"]["cost_us"]) == (None, None)
    assert said["state"] == "running"
    assert "the query is running" in said["text"]
    assert said["text"].startswith((await get(daemon, "/api/v1/queries/q/explain"))["text"])
    await daemon.catalog.change(PauseQuery(name="q", reason="for lunch"))
    (told,) = (await ask(daemon, "POST", "/api/v1/sql", {"sql": "explain Analyze Query q;"}))[2]["statements"]
    assert told["kind"] == "explain"
    assert "the query is paused: for lunch" in told["text"]
    assert (await ask(daemon, "POST", "/api/v1/sql", {"sql": "EXPLAIN ANALYZE qq"}))[2]["code"] == "unknown_query"


@served(SQL)
async def test_what_the_last_seconds_do_not_tell_is_told_by_the_whole_life(daemon):
    await feed(daemon, "a", 50)
    daemon.rates = Rates(daemon.engine, daemon.runner.now_us)
    daemon.rates.look()
    found = {at["name"]: at for at in (await get(daemon, "/api/v1/queries/q/explain?analyze=true"))["operators"]}
    assert (found["q.filter1"]["input"], found["q.filter1"]["selectivity"]) == (0.0, 0.1)


def test_which_texts_ask_for_an_analysis():
    assert asked_for("EXPLAIN ANALYZE q") == "q"
    assert asked_for(' explain analyze query "Q-1" ; ') == "Q-1"
    assert asked_for("EXPLAIN ANALYZE Q") == "q"
    for other in ("EXPLAIN SELECT k FROM s", "EXPLAIN ANALYZE q; DROP QUERY q", "ANALYZE q", "EXPLAIN ANALYZE"):
        assert asked_for(other) is None
