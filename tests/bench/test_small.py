"""Every benchmark at a small size: it runs, agrees with what it measures against, and says what it measured."""

from __future__ import annotations

import pytest

from bench import aggregate, engine, ets, updates, wire
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
    """`throughput` itself counts the rows that came out."""
    speed, share = wire.throughput(kind, rows, 20_000, 1.0)
    assert speed.value > 0
    assert share.value > 0


def test_windows_against_duckdb() -> None:
    """`tumbling` itself compares rows and counts with DuckDB's."""
    assert [figure.unit for figure in aggregate.tumbling(20_000, 1_000, repeats=1)] == ["ns/tuple", "ns/tuple", "times"]


def test_sliding_windows_and_the_closing_of_many_groups() -> None:
    figures = aggregate.sliding(20_000, repeats=1) + aggregate.closing(20_000, 5_000)
    assert all(figure.value > 0 for figure in figures)


def test_update_queues_beside_a_dict() -> None:
    figures = (
        updates.enqueueing(8_000, 100, 500, repeats=1) + updates.single(40, repeats=1) + updates.few_keys(repeats=1)
    )
    assert all(figure.value > 0 for figure in figures)
    assert all(figure.holds for figure in updates.many_keys(65_536))


def test_idle_connections_are_held_and_measured() -> None:
    (figure,) = wire.idle_connections(30)
    assert figure.unit == "KiB"


def test_order_on_demand_against_no_order() -> None:
    latent, internal, difference, asked = ets.order_on_demand(10)
    assert min(latent.value, internal.value, asked.value) > 0
    assert difference.bound == ets.ALLOWED_US


def test_many_feeds_of_one_stream() -> None:
    """`many_feeds` itself compares the stream's mark with the least of them all."""
    figures = ets.many_feeds(10, 5)
    assert all(figure.unit for figure in figures)


def test_a_figure_says_whether_it_holds() -> None:
    assert Figure("f", 2.0, "times", 3.0).holds
    assert not Figure("f", 2.0, "M/s", 3.0, most=False).holds
    assert Figure("f", 2.0, "us").holds is None
    assert "FALLS SHORT" in Figure("f", 4.0, "times", 3.0).line()


def test_a_name_that_is_no_benchmark_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "there are: engine" in capsys.readouterr().err
