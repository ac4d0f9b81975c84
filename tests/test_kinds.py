"""Every function that looks at what kind of operator it has decides every kind.

It is read from the source: the kinds that a `match` names, and those that fall to its default. A new kind fails here
until each function names it, or until its default is written down as decided.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from millrace.backfill import keys, margins
from millrace.engine.graph import editing
from millrace.engine.plan import Node
from millrace.operators import build, spec
from millrace.operators.frame.buffer import Buffer, Gauge
from millrace.operators.frame.operator import StepClock
from millrace.protocol import Schema
from millrace.sql import updates

ROOT = Path(__file__).parent.parent
ROOMS = (
    "operators/millrace/operators",
    "operators/millrace/engine",
    "operators/millrace/sql",
    "server/millrace/backfill",
)
ARC = Buffer(Schema(()), ordered=False)
KINDS = {kind.__name__: kind for kind in spec.Spec.__subclasses__()}

# The kinds for which the default applies, per function; each of them has been reviewed.
#
# A default must be the cautious answer: nothing known of time, all columns used, everything before needed, no key.
DEFAULTS: Mapping[str, str] = {
    # No operator has a progressing column that is not listed; a gate or a sample is never planned.
    "sql/progress.py:lags_of": "GateSpec SampleSpec",
    # Not known to be a bound of a window.
    "sql/ranked.py:_is_bound": "GateSpec RetimeSpec SampleSpec SequenceSpec TopSpec UnionSpec",
    # Nothing to change: it emits every row anyway.
    "sql/updates.py:_every": (
        "GateSpec JoinSpec MapSpec RetimeSpec SampleSpec SelectSpec SequenceSpec SortSpec UnionSpec WindowSpec"
    ),
    # Described by their kind alone; joins and sequences are described with the names of their inputs.
    "sql/explain.py:_spec_words": "GateSpec JoinSpec SampleSpec SequenceSpec",
    "sql/explain.py:spec_words": (
        "AggregateSpec FilterSpec GateSpec MapSpec RetimeSpec SampleSpec SelectSpec SortSpec TopSpec UnionSpec "
        "WindowSpec"
    ),
    # Calls the visitor that raises.
    "engine/graph/editing.py:_replace_each_other": (
        "FilterSpec GateSpec JoinSpec RetimeSpec SequenceSpec SortSpec UnionSpec WindowSpec"
    ),
    # All columns are used.
    "backfill/columns.py:_used": "FilterSpec GateSpec RetimeSpec SampleSpec TopSpec",
    # Everything before is needed.
    "backfill/margins.py:_reaches": "FilterSpec GateSpec SampleSpec",
    # Words for an operator that has no key.
    "backfill/keys.py:_no_key_because": (
        "FilterSpec GateSpec MapSpec RetimeSpec SampleSpec SelectSpec SortSpec UnionSpec"
    ),
    # Not known in the input, so no key.
    "backfill/keys.py:_above": "GateSpec SampleSpec",
}

# These make a claim, so they must raise for an unknown kind.
RAISING: Mapping[str, Any] = {
    "operators/build.py:gives_order": lambda kind: build.gives_order(kind, [True]),
    "sql/updates.py:_drops": updates._drops,
    "sql/updates.py:_reads_all": updates._reads_all,
    "engine/graph/editing.py:_takes_current_rows": editing._takes_current_rows,
    "backfill/margins.py:unbounded_because": lambda kind: margins.unbounded_because(Node("q.N", kind, ("s.source",))),
    "backfill/keys.py:_spec_keys": lambda kind: keys._spec_keys(Node("q.N", kind, ("s.source",)), []),
    "operators/build.py:build": lambda kind: build.build("q.N", kind, [ARC.attach()], Gauge(), StepClock()),
}


@dataclass(frozen=True)
class Unknown(spec.Spec):
    """A kind that no function handles."""

    kind = "unknown"


def _named(function: ast.AST) -> set[str]:
    """The kinds that its `match` statements name."""
    return {
        pattern.cls.id
        for pattern in ast.walk(function)
        if isinstance(pattern, ast.MatchClass) and isinstance(pattern.cls, ast.Name) and pattern.cls.id in KINDS
    }


@cache
def visitors() -> Mapping[str, frozenset[str]]:
    return dict(_visitors())


def _visitors() -> Iterator[tuple[str, frozenset[str]]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef) and (named := _named(function)):
                    short = path.relative_to(ROOT / room).as_posix()
                    yield f"{Path(room).name}/{short}:{function.name}", frozenset(named)


def test_the_functions_are_found() -> None:
    assert len(visitors()) >= 15
    assert set(DEFAULTS) <= set(visitors())
    assert set(RAISING) <= set(visitors())
    assert not set(DEFAULTS) & set(RAISING)


@pytest.mark.parametrize("visitor", sorted(visitors()))
def test_every_function_decides_every_kind(visitor: str) -> None:
    defaults = set(DEFAULTS.get(visitor, "").split())
    named = visitors()[visitor]
    assert not defaults & named, "a kind that is named has no default"
    assert defaults | named == set(KINDS), "decide these: name them in the function, or write their default down here"


@pytest.mark.parametrize("visitor", sorted(RAISING))
def test_functions_that_make_a_claim_raise_for_unknown_kinds(visitor: str) -> None:
    with pytest.raises(AssertionError, match="Unknown"):
        RAISING[visitor](Unknown())
