"""Every kind of operator reads its saved states of this version and of the one before, and continues identically."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

from millrace import operators
from millrace.engine import saving
from millrace.engine.engine import Engine
from millrace.operators.fork.fork import Fork
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator
from millrace.operators.project.map import Map
from millrace.protocol import Refuse
from tests.engine.graphs import Bench, path
from tests.engine.states import CUT, END, QUERIES, Play, recorded, states
from tests.engine.states import path as file_of

RECORD = "record it: python -m tests.engine.states"


def is_base(kind: type[Operator]) -> bool:
    """Whether a class lacks a method that each kind has."""
    return any(getattr(getattr(kind, name), "__isabstractmethod__", False) for name in dir(kind))


@cache
def kinds() -> list[type[Operator]]:
    """The classes of operators that are saved; a fork's turn is saved with the graph."""
    for module in walk_packages(operators.__path__, "millrace.operators."):
        import_module(module.name)
    found: dict[type[Operator], None] = {}
    waiting = Operator.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("millrace.") and not is_base(kind) and hasattr(kind, "layout"):
            found[kind] = None
    return sorted(found.keys() - {Fork}, key=lambda kind: kind.__name__)


@cache
def cut(query: str) -> tuple[bytes, list[Any], bytes]:
    """A query's engine at the cut, its rows after that, and its state at the end."""
    play = Play(query)
    play.feed(0, CUT)
    saved, before = play.engine.save(), len(play.delivered)
    play.feed(CUT, END)
    return saved, play.delivered[before:], play.engine.save()


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_states_of_this_version_and_of_the_one_before_are_read(kind: type[Operator]) -> None:
    layout = kind.layout
    assert (layout.version > 1) == (layout.upgrade is not None), f"{kind.__name__}: a first version has no upgrade"
    for version in range(max(1, layout.version - 1), layout.version + 1):
        assert file_of(kind, version).exists(), f"no state of {kind.__name__} {version}: {RECORD}"
        for (query, operator), state in recorded(kind, version).items():
            saved, rows, end = cut(query)
            play = Play(query)
            play.now_us = CUT
            play.engine = Engine.restore(_with_state(saved, operator, state))
            play.feed(CUT, END)
            assert play.delivered == rows, (query, operator, version)
            assert play.engine.save() == end, (query, operator, version)


def _with_state(saved: bytes, operator: str, state: list[Any]) -> bytes:
    """A saved engine in which an operator's state is a recorded one."""
    data = saving.unpack(saved)
    for name, parts in data["operators"]:
        if name == operator:
            parts[-1] = state
    return saving.pack(data)


@pytest.mark.parametrize("query", QUERIES)
def test_recorded_states_are_those_of_today(query: str) -> None:
    """Whoever changes what a kind saves raises its version."""
    play = Play(query)
    play.feed(0, CUT)
    for operator, (kind, state) in states(play.engine).items():
        known = recorded(kind, kind.layout.version)
        if (query, operator) in known:
            assert saving.pack(known[query, operator]) == saving.pack(state), (
                f"{kind.__name__} saves something else: raise its version, say how to upgrade, and {RECORD} "
                "(or delete its file before that, if no release has written this version)"
            )


# -- versions --------------------------------------------------------------------------------------------------------


def test_a_state_of_the_version_before_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    saved = bench.engine.save()
    upgraded = []
    monkeypatch.setattr(Map, "layout", Layout(2, lambda operator, state: upgraded.append((operator.name, state))))
    Engine.restore(saved)
    assert upgraded == [("q.Q1", None)]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(3, lambda _, state: state), "reads versions 2 and 3: restore it with an older Millrace, and save it"),
        (Layout(0), "has version 1, and this Millrace reads version 0: restore it with a newer Millrace"),
    ],
)
def test_a_state_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, layout: Layout, words: str) -> None:
    bench = Bench("s")
    bench.query(path("q", 1))
    saved = bench.engine.save()
    monkeypatch.setattr(Map, "layout", layout)
    with pytest.raises(Refuse, match=r"the saved state of operator q\.Q1 \(map\) has version 1") as refused:
        Engine.restore(saved)
    assert words in refused.value.text
