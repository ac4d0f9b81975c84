"""Every benchmark at a small size: it runs, agrees with its reference, and prints its figures."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat
from typing import Any

import httpx
import pytest

from bench import (
    aggregate,
    changing,
    durability,
    engine,
    ets,
    join,
    many,
    memory,
    nexmark,
    punctuation,
    reconfigure,
    sequence,
    sharing,
    startup,
    updates,
    wire,
)
from bench.__main__ import main
from bench.figure import Figure


@pytest.mark.parametrize("order", ["arrival", "event"])
def test_the_engine_against_numpy(order: str) -> None:
    """`throughput` itself compares the rows of the engine with numpy's."""
    figures = engine.throughput(20_000, order=order, repeats=1)
    assert [figure.unit for figure in figures] == ["ns/tuple", "ns/tuple", "times"]
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.parametrize("order", ["arrival", "event"])
def test_a_single_tuple(order: str) -> None:
    (figure,) = engine.single_tuple(20, order=order)
    assert figure.value > 0


@pytest.mark.parametrize(("kind", "rows"), [("rows", 100), ("arrow", 1000)])
def test_from_a_socket_to_a_count(kind: str, rows: int) -> None:
    """`throughput` itself counts the emitted rows."""
    speed, share = wire.throughput(kind, rows, 20_000, 1.0)
    assert speed.value > 0
    assert share.value > 0


def test_the_price_of_the_journal() -> None:
    base, *shares, size = durability.throughput("rows", 100, 10_000, 1.0, rounds=1)
    assert [share.value > 0 for share in (base, *shares, size)] == [True] * 5


def test_single_tuples_beside_the_disk() -> None:
    disk, *medians = durability.latency(0.2, [(100, "rows")])
    assert [median.value > 0 for median in (disk, *medians)] == [True] * 4


def test_a_killed_server_repeats_what_was_sent() -> None:
    ready, replay = durability.recovery(10_000)
    assert ready.value > 0
    assert replay.value > 0


def test_records_take_little_more_than_what_was_received() -> None:
    assert [figure.value > 0 for figure in durability.disk(20_000)] == [True] * 4


def test_groups_are_there_after_a_start() -> None:
    state, ready = durability.groups(1_000)
    assert state.value > 0
    assert ready.value > 0


def test_checkpoints_with_and_without_a_follower() -> None:
    (pause,) = durability.pauses(20_000, None, modes=("on",))
    assert pause.value > 0
    (share,) = durability.following(10_000, 1.0, rounds=1)
    assert share.value > 0


def test_from_a_socket_to_history() -> None:
    """`history` itself compares the rows that were archived with those that were sent."""
    speed, _ = wire.history("arrow", 1_000, 20_000, 1.0)
    assert speed.value > 0


def test_from_a_socket_to_windows() -> None:
    """`aggregate` itself compares the rows of windows with the groups that were sent; six are over."""
    (speed,) = wire.aggregate(1_000, 31_000, 1.0, window_us=50_000)
    assert speed.value > 0


def test_from_a_socket_to_pairs() -> None:
    """`join` itself compares the pairs with those that were sent."""
    (speed,) = wire.join(1_000, 20_000, 1.0, band_us=5_000)
    assert speed.value > 0


def test_windows_against_duckdb() -> None:
    """`tumbling` itself compares rows and counts with DuckDB's."""
    assert [figure.unit for figure in aggregate.tumbling(20_000, 1_000, repeats=1)] == ["ns/tuple", "ns/tuple", "times"]


@pytest.mark.parametrize("groups", [700, 3_000, 5_000])
def test_text_keys_against_integers(groups: int) -> None:
    *speeds, memory_ = aggregate.text_keys(10_000, groups, repeats=1)
    assert all(figure.value > 0 for figure in speeds)
    assert memory_.holds, memory_.line()


def test_sliding_windows_and_the_closing_of_many_groups() -> None:
    figures = aggregate.sliding(20_000, repeats=1) + aggregate.closing(20_000, 5_000)
    assert all(figure.value > 0 for figure in figures)


def test_many_groups_against_few() -> None:
    """`groups` itself counts the groups."""
    for scattered in (False, True):
        figures = aggregate.groups((100, 1_000), 2_000, scattered=scattered, repeats=1)
        assert [figure.unit for figure in figures] == ["ns/tuple", "times"] * 2


def test_windows_of_many_panes() -> None:
    figures = aggregate.many_panes(40, 1, keys=20)
    assert all(figure.value > 0 for figure in figures)


def test_an_endless_supply_of_text_keys_takes_no_more_memory() -> None:
    """Measured by the operator itself, and by all allocations of Python and numpy."""
    states, allocated = [], []
    gc.collect()
    gc.freeze()  # what other tests have left is not looked through for every window
    tracemalloc.start()
    try:
        for aggregate in memory.windows(300, 100):
            states.append(aggregate.state_bytes)
            gc.collect()
            allocated.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert max(states[6:]) <= max(states[:6])
    # A window's texts alone take 60 kB: to keep those of one would be seen. Numpy's free lists grow by about 10 kB.
    assert max(allocated[6:]) <= max(allocated[:6]) + 30_000


def test_the_memory_of_text_keys_is_measured() -> None:
    figures = memory.endless_keys(80, 20)
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.parametrize("mode", ["recent", "chronicle"])
def test_sequences_against_a_loop_over_rows(mode: sequence.Mode) -> None:
    """`throughput` itself compares the rows of the engine with the loop's."""
    figures = sequence.throughput(20_000, mode, keys=50, repeats=1) + sequence.single_tuple(20, mode)
    assert all(figure.value > 0 for figure in figures)


def test_thin_punctuation_against_all_there_is() -> None:
    """`thinning` itself compares the rows."""
    thin, thick, *costs = punctuation.thinning(3_000, repeats=1)
    assert thin.value < 3 < 900 < thick.value
    assert all(figure.value > 0 for figure in costs)


def test_update_queues_against_a_dict() -> None:
    figures = (
        updates.enqueueing(8_000, 100, 500, repeats=1) + updates.single(40, repeats=1) + updates.few_keys(repeats=1)
    )
    assert all(figure.value > 0 for figure in figures)
    assert all(figure.holds for figure in updates.many_keys(65_536))


def test_update_queues_of_windows() -> None:
    figures = updates.windows(200, (10, 40), repeats=1)
    assert [figure.unit for figure in figures] == ["us/tuple", "us/tuple", "times"] * 4
    assert all(figure.value > 0 for figure in figures)


def test_idle_connections_are_held_and_measured() -> None:
    (figure,) = wire.idle_connections(30)
    assert figure.unit == "KiB"


def test_order_on_demand_against_no_order() -> None:
    latent, internal, difference, requested = ets.order_on_demand(10)
    assert min(latent.value, internal.value, requested.value) > 0
    assert difference.bound == ets.ALLOWED_US


def test_many_feeds_of_one_stream() -> None:
    """`many_feeds` itself compares the stream's mark with the least of them all."""
    figures = ets.many_feeds(10, 5)
    assert all(figure.unit for figure in figures)


def test_a_figure_reports_whether_its_claim_holds() -> None:
    assert Figure("f", 2.0, "times", 3.0).holds
    assert not Figure("f", 2.0, "M/s", 3.0, most=False).holds
    assert Figure("f", 2.0, "us").holds is None
    assert "FALLS SHORT" in Figure("f", 4.0, "times", 3.0).line()


def test_an_unknown_benchmark_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "names: engine" in capsys.readouterr().err


def test_joins_against_a_dict_in_python() -> None:
    """`band` itself compares the rows with the dict's."""
    names = [figure.name for figure in join.band(1 << 10, ks=(64,), repeats=1)]
    assert names[0] == "4-key band join: dicts in plain Python"
    assert "4-key band join: engine, k = 64" in names
    row, kernel = join.single(join.BLOCK)
    assert row.value > kernel.value > 0


def test_joins_with_a_heavy_key_and_with_many_stored_rows() -> None:
    even, *_, heavy = join.skew(1 << 10)
    assert even.note != heavy.note
    few, many = join.size((4096, 8192), tuples=8192)
    assert "4,096 tuples a side" in few.name
    assert many.value > 0


def test_a_plain_join_is_counted_in_rows() -> None:
    figures = join.by_rows(1 << 9, repeats=1)
    assert {figure.unit for figure in figures} == {"ns/tuple"}


def test_changes_leave_the_rest_as_it_is() -> None:
    """`under_load` itself compares the rows of untouched queries, and the catalog around refused changes."""
    same, made, *_, refused = reconfigure.under_load(2, 60, 40, rounds=2)
    assert same.value > 10_000
    assert made.value > 0
    assert refused.holds


def test_each_kind_of_change() -> None:
    figures = changing.one_change(5, repeats=1)
    assert len(figures) > 40
    assert all(figure.value > 0 for figure in figures)


ROW = {"pred": ["s.source"], "transition": "DFS-NOS"}


def looks(*tables: dict[str, Any], states: Sequence[str] = ()) -> reconfigure.Admin:
    """An admin who sees these tables of one component, and states of one query; all changes are refused."""
    queries = chain(states, repeat("running", len(tables) - len(states)))
    every: Iterator[reconfigure.Everything] = iter(
        [({}, [("b", state)], [("dfs", list(table.items()))]) for table, state in zip(tables, queries, strict=True)]
    )
    admin = reconfigure.Admin.__new__(reconfigure.Admin)
    admin._draw, admin.refused = random.Random(1), Counter()
    admin.everything = lambda: next(every)  # type: ignore
    admin._http = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(400)), base_url="http://s")
    return admin


def test_a_merge_between_two_looks_is_not_a_refused_change() -> None:
    apart, merged = {"a.filter1": ROW, "b.filter1": ROW}, {"a.filter1": ROW, "a.fork1": ROW}
    with closing(looks(apart, merged, merged, merged)) as admin:
        admin.invalid()
        assert admin.refused.total() == 1
    with closing(looks(*[apart, merged] * 10)) as endless, pytest.raises(AssertionError, match="changed something"):
        endless.invalid()


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"a.filter1": ROW}, {"a.filter1": {**ROW, "transition": "BFS-NOS"}}),
        ({"a.filter1": ROW}, {"a.filter1": ROW, "b.filter1": ROW}),
        ({"a.filter1": ROW, "c.filter1": ROW}, {"a.filter1": ROW, "b.filter1": ROW}),
    ],
)
def test_a_refused_change_of_the_table_is_noticed(was: dict[str, Any], now: dict[str, Any]) -> None:
    with closing(looks(was, now, now, now)) as admin, pytest.raises(AssertionError, match="changed something"):
        admin.invalid()


def test_a_refused_change_of_a_query_is_noticed() -> None:
    tables = {"a.filter1": ROW, "b.filter1": ROW}, {"a.filter1": ROW}
    with closing(looks(*tables, states=("running", "paused"))) as admin, pytest.raises(AssertionError, match="paused"):
        admin.invalid()


def test_queries_that_share_a_filter() -> None:
    """`filters` itself counts the rows of each way."""
    figures = sharing.filters(20_000, queries=3, repeats=1)
    assert [figure.unit for figure in figures] == ["ns/tuple", "ns/tuple", "ns/tuple", "times"]


def test_events_with_disorder_against_events_in_order() -> None:
    """`disorder` itself counts the rows of both."""
    figures = nexmark.disorder(400)
    assert [figure.unit for figure in figures] == ["us/event", "us/event", "times"] * len(nexmark.QUERIES)


def test_many_queries_with_their_own_filters() -> None:
    """`queries` itself counts the rows; twenty filters have an index."""
    figures = many.queries((3, 20), frames=2, repeats=1)
    assert [figure.unit for figure in figures] == ["s", "us", "us", "us"] * 2
    assert all(figure.value > 0 for figure in figures)


def test_starting() -> None:
    figures = startup.start_up(repeats=1)
    assert [figure.unit for figure in figures[:6]] == ["s"] * 6
    assert all(figure.value > 0 for figure in figures)
    assert len(figures) == 6 + startup.SLOWEST_IMPORTS
