"""Imports run one way, and the engine has no code that waits. The rules are checked on the sources.

    protocol <- values <- operators <- engine <- sql <- formats <- history <- the daemon, offline
    <- backfill <- spark <- cli
    protocol <- client         values <- functions <- sql        sql <- changes <- the daemon
    formats, changes <- journal <- the daemon, offline

The daemon consists of seven rooms: net, http, run, store, observe, standby, access. They may use each other; the other
drivers do not use them. A new room needs a row in `MAY_IMPORT`, a root in `ROOTS` and a line in `pyproject.toml`.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("server", "operators", "protocol")

DAEMON = {"net", "http", "run", "store", "observe", "standby", "access"}
CORE = {"protocol", "values", "operators", "engine", "functions", "sql"}
MAY_IMPORT = {
    "protocol": set(),
    "client": {"protocol"},
    "values": {"protocol"},
    "operators": {"protocol", "values"},
    "engine": {"protocol", "values", "operators"},
    "functions": {"protocol", "values"},
    "sql": {"protocol", "values", "operators", "engine", "functions"},
    "changes": CORE,
    "formats": CORE,
    "history": CORE | {"formats"},
    "journal": CORE | {"changes", "formats"},
    **dict.fromkeys(DAEMON, CORE | {"changes", "formats", "history", "journal"} | DAEMON),
    "offline": CORE | {"formats", "journal"},
    "backfill": CORE | {"formats", "history", "offline"},
    "spark": CORE | {"formats", "history", "offline", "backfill", "client"},
    "cli": CORE | {"changes", "formats", "history", "journal", "offline", "backfill", "spark", "client"} | DAEMON,
}

# The engine is a function of its events: no clock, no chance, no input or output, no waiting.
DETERMINISTIC = ("values", "operators", "engine", "sql", "changes")
WAITING = {"asyncio", "concurrent", "multiprocessing", "select", "selectors", "signal", "socket", "subprocess"}
THREADS = {"_thread", "threading"}
WORLD = {"os", "random", "secrets", "time"}
CLOCKS = {"now", "utcnow", "today"}

# A program that feeds a server carries the standard library and msgpack, nothing else.
LIGHT = ("protocol", "client")
LIGHT_LIBRARIES = sys.stdlib_module_names | {"msgpack", "millrace"}
# Only a program that passes Arrow batches to the client needs pyarrow, so the import is deferred.
ON_DEMAND = {"client": {"pyarrow"}}

NOT_SHIPPED = {"tests", "bench", "examples"}


@dataclass(frozen=True)
class Import:
    """One imported module, `a.b` for both `import a.b` and `from a import b`."""

    line: int
    module: str
    only_for_types: bool
    deferred: bool  # inside a function


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import of a file, including those inside functions."""
    typing_blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and is_type_checking(node.test)]
    for_types = {id(node) for block in typing_blocks for part in block.body for node in ast.walk(part)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    deferred = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            prefix = ""
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + f"{node.module or ''}."
        else:
            continue
        for name in node.names:
            yield Import(node.lineno, prefix + name.name, id(node) in for_types, id(node) in deferred)


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Chance and clocks reached through an attribute: `np.random`, `datetime.now`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rsplit(".", 1)[-1]
            if node.attr == "random" and owner in ("np", "numpy"):
                yield node.lineno, "numpy.random"
            if node.attr in CLOCKS and owner in ("datetime", "date", "dt"):
                yield node.lineno, f"{owner}.{node.attr}"


def objection(room: str, imported: Import) -> str | None:
    """Why this room may not have this import."""
    if imported.module.startswith("."):
        return "write the full name instead of a relative import"
    top, _, rest = imported.module.partition(".")
    if top in NOT_SHIPPED:
        return f"{top}/ is not part of the package"
    if top == "millrace":
        other = rest.split(".")[0]
        if other != room and other not in MAY_IMPORT[room]:
            return f"{room} may import {', '.join(sorted(MAY_IMPORT[room])) or 'no other room'}"
    if room in DETERMINISTIC and (top in WAITING | THREADS | WORLD or imported.module.startswith("numpy.random")):
        return "the engine is a function of its events: let a driver do this, outside"
    if room in LIGHT and top not in LIGHT_LIBRARIES and not imported.only_for_types:
        if imported.deferred and top in ON_DEMAND.get(room, ()):
            return None
        return "protocol and client have the standard library and msgpack alone"
    return None


def violations(repository: Path) -> list[str]:
    """A line for each violation in a repository."""
    problems = []
    for root in ROOTS:
        if (repository / root / "millrace/__init__.py").exists():
            problems.append(f"{root}/millrace/__init__.py hides the other two roots: remove it")
        for path in sorted((repository / root / "millrace").glob("*/**/*.py")):
            where = path.relative_to(repository)
            room = where.parts[2]
            if room not in MAY_IMPORT:
                problems.append(f"{where}: {room} is not a known room: add a row to MAY_IMPORT")
                continue
            tree = ast.parse(path.read_text(), filename=str(where))
            problems.extend(
                f"{where}:{imported.line} imports {imported.module}: {reason}"
                for imported in imports(tree)
                if (reason := objection(room, imported))
            )
            if room in DETERMINISTIC:
                problems.extend(
                    f"{where}:{line} uses {name}: the engine has no clock and no chance" for line, name in uses(tree)
                )
    return problems


def test_imports_run_one_way():
    assert violations(REPOSITORY) == []


def test_the_rule_reads_the_real_sources():
    """A rule that looks into the wrong folder finds nothing wrong."""
    rooms = {
        path.relative_to(REPOSITORY).parts[2] for root in ROOTS for path in (REPOSITORY / root).glob("millrace/*/*.py")
    }
    assert {"protocol", "operators"} <= rooms


def test_the_client_loads_nothing_but_msgpack():
    """The imports of the sources, from a fresh interpreter."""
    modules = [
        ".".join(path.relative_to(REPOSITORY / "protocol").with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((REPOSITORY / "protocol").glob("millrace/*/**/*.py"))
    ]
    code = f"""
import sys
before = set(sys.modules)
import {", ".join(modules)}
new = [module for name, module in sys.modules.items() if name not in before]
print(*{{spec.name.partition(".")[0] for module in new if (spec := getattr(module, "__spec__", None))}})
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) - LIGHT_LIBRARIES == set()


def test_a_server_loads_large_libraries_when_it_needs_them():
    """Patterns, quantiles and Arrow take 2 to 30 MB each, which most servers would carry in vain."""
    code = "import sys, millrace.run.daemon, millrace.http.web; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"re2", "datasketches", "pyarrow", "pandas"} & set(loaded) == set()


ENGINE = "operators/millrace/engine/x.py"
CLIENT = "protocol/millrace/client/x.py"


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("operators/millrace/__init__.py", "", "hides the other two roots"),
        ("operators/millrace/novel/x.py", "", "not a known room"),
        (
            "operators/millrace/operators/x.py",
            "import millrace.engine.graph",
            "imports millrace.engine.graph",
        ),
        ("operators/millrace/operators/deep/x.py", "from millrace import engine", "imports millrace.engine"),
        ("operators/millrace/sql/x.py", "from millrace.run.config import Config", "sql may import engine"),
        ("protocol/millrace/protocol/x.py", "from millrace.client import Client", "no other room"),
        ("server/millrace/run/x.py", "import millrace.cli.main", "imports millrace.cli.main"),
        ("server/millrace/run/x.py", "from tests.oracles import union", "not part of the package"),
        ("server/millrace/offline/x.py", "import millrace.run.runner", "imports millrace.run.runner"),
        ("server/millrace/history/x.py", "import millrace.observe.logs", "history may import engine"),
        (ENGINE, "from . import graph", "relative"),
        (ENGINE, "def f():\n    import time", "x.py:2 imports time"),
        (ENGINE, "import os.path", "imports os.path"),
        (ENGINE, "from threading import Lock", "imports threading.Lock"),
        (ENGINE, "from numpy import random", "imports numpy.random"),
        (ENGINE, "import numpy as np\nx = np.random.default_rng()", "x.py:2 uses numpy.random"),
        (ENGINE, "import datetime\nx = datetime.datetime.now()", "uses datetime.now"),
        (CLIENT, "import numpy", "msgpack alone"),
        (CLIENT, "import pyarrow", "msgpack alone"),
        (CLIENT, "def f():\n    import pandas", "msgpack alone"),
        ("protocol/millrace/protocol/x.py", "def f():\n    import pyarrow", "msgpack alone"),
    ],
)
def test_a_violation_is_noticed(tmp_path, path, source, message):
    write(tmp_path, path, source)
    (line,) = violations(tmp_path)
    assert message in line


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (ENGINE, "import heapq\nimport numpy as np\nfrom millrace.values.batch import Batch"),
        (CLIENT, "import asyncio\nimport msgpack\nfrom millrace.protocol import frames"),
        (CLIENT, "def f():\n    import pyarrow"),
        (CLIENT, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("server/millrace/cli/x.py", "import os\nimport typer\nfrom millrace.client import Client"),
    ],
)
def test_allowed_imports_pass(tmp_path, path, source):
    write(tmp_path, path, source)
    assert violations(tmp_path) == []


def write(repository: Path, path: str, source: str) -> None:
    target = repository / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source)


OPERATORS = REPOSITORY / "operators" / "millrace"
# The private fields of an input, and those that only it sets.
INLET = {"buffer", "_segment", "_offset"}
SET_BY_INLET = {"arc", "position"}
INLET_FILES = {"operators/frame/inlet.py", "operators/queues/inlet.py", "operators/frame/buffer.py"}
# A queue has pages and buffers, but never sees an input.
QUEUES = "operators/queues/"


def test_nobody_reaches_into_an_input() -> None:
    """Only an input and its arc know how it reads: nothing else moves it."""
    texts = {
        str(path.relative_to(OPERATORS)): path.read_text("utf-8")
        for room in ("operators", "engine", "sql")
        for path in sorted((OPERATORS / room).rglob("*.py"))
    }
    blind = {path for path, text in texts.items() if path.startswith(QUEUES) and "Inlet" not in text}
    assert len(blind) >= 8
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, text in texts.items()
        if path not in INLET_FILES | blind
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "paging")
        if node.attr in INLET or (node.attr in SET_BY_INLET and not isinstance(node.ctx, ast.Load))
    ]
    assert found == []


# Nodes that are never executed: a source's arc is filled when tuples arrive, a sink is emptied.
WITHOUT_FRAME = {"operators/source/source.py", "operators/sink/sink.py"}
BY_FRAME = re.compile(r"(output\.(put|punctuate)|counts\.(input_tuples|output_tuples|executions|errors)|\.gauge)$")


def test_only_the_frame_counts_and_fills_arcs() -> None:
    """An operator takes from its inputs and emits rows; the frame around it counts, gauges and promises."""
    found = [
        f"{path.relative_to(OPERATORS)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted((OPERATORS / "operators").rglob("*.py"))
        if path.parent.name not in ("frame", "queues") and str(path.relative_to(OPERATORS)) not in WITHOUT_FRAME
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and BY_FRAME.search(ast.unparse(node))
    ]
    assert found == []
