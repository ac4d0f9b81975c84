"""Every kind of operator answers every fact itself; each missing fact is named, with the file where it belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import getsourcefile, isabstract
from pathlib import Path
from typing import Any

import pytest

from millrace.operators.frame.spec import Spec
from millrace.operators.kinds import kinds

ROOT = Path(__file__).parent.parent
# The operators that the engine itself creates, and the index over the filters of an arc.
STRUCTURE = {"fork", "gate", "sink", "source"}
INDEX = "millrace.operators.filter.routing"
# The files of the planner that plan a clause. All others treat every operator alike.
PLANNER_RULES = {
    "arcs",
    "current_joins",
    "deduplicated",
    "edges",
    "grouped",
    "groupwise",
    "joint",
    "joins",
    "keeping",
    "ordering",
    "ranked",
    "retimed",
    "sequences",
    "unfolded",
    "unions",
    "updates",
    "windowed",
}
FACTS = sorted(Spec.__abstractmethods__)


def specs(kind: type[Spec] = Spec) -> set[type[Spec]]:
    """Every class of specs that is defined, abstract ones too."""
    return {kind}.union(*(specs(one) for one in kind.__subclasses__()))


def missing(kind: type[Any]) -> list[str]:
    """A line for each fact that a kind lacks."""
    where = Path(getsourcefile(kind) or "").resolve().relative_to(ROOT)
    lacking = [name for name in FACTS if getattr(kind, name) is getattr(Spec, name)]
    lacking += [name for name in ("kind", "word") if not vars(kind).get(name)]
    return [f"{where}: {kind.__name__} does not define {name}" for name in lacking]


def test_every_kind_answers_every_fact() -> None:
    assert len(kinds()) >= 13
    families = {"Spec", "RowSpec", "PassingSpec"}
    assert [line for kind in specs() if kind.__name__ not in families for line in missing(kind)] == []


def test_every_kind_is_in_the_folder_of_its_operator() -> None:
    homes = {kind.__name__: kind.__module__.split(".") for kind in kinds()}
    assert {
        name: home for name, home in homes.items() if home[:2] != ["millrace", "operators"] or home[-1] != "spec"
    } == {}


def test_a_kind_that_lacks_facts_is_named_and_cannot_be_planned() -> None:
    class UnknownSpec(Spec):
        kind = word = "unknown"

    assert isabstract(UnknownSpec)
    assert f"{Path(__file__).relative_to(ROOT)}: UnknownSpec does not define gives_order" in missing(UnknownSpec)
    assert len(missing(UnknownSpec)) == len(FACTS)
    with pytest.raises(TypeError, match="gives_order"):
        UnknownSpec()  # type: ignore[abstract]


def test_nothing_else_asks_for_kinds_one_by_one() -> None:
    """A `match` over three kinds or more is a fact that lives outside of the operators."""
    found = []
    for room in ("operators/millrace/engine", "operators/millrace/sql", "server/millrace"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if len({kind.__name__ for kind in kinds() if f"case {kind.__name__}(" in text}) >= 3:
                found.append(path.relative_to(ROOT))
    assert found == []


def imported(room: str) -> Iterator[tuple[Path, str, str]]:
    """The names that the files of a room import from the folders of operators: file, module, name."""
    folders = {kind.__module__.split(".")[2] for kind in kinds()} - STRUCTURE
    for path in sorted((ROOT / "operators/millrace" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, name.name, "*") for name in node.names if set(name.name.split(".")[2:3]) & folders)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for name in node.names:
                    module = (*node.module.split("."), name.name)
                    if module[:2] == ("millrace", "operators") and module[2] in folders:
                        yield path, node.module, name.name


def test_the_engine_names_no_kind() -> None:
    named = [(path.name, module, name) for path, module, name in imported("engine")]
    assert [line for line in named if f"{line[1]}.{line[2]}" != INDEX] == []


def test_only_rules_of_the_planner_name_kinds() -> None:
    specs = {kind.__name__ for kind in kinds()}
    assert {path.stem for path, _, name in imported("sql") if name in specs or name == "*"} == PLANNER_RULES
