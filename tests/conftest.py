"""Settings that every test shares."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

import millrace.engine.engine  # noqa: F401 (loads the compiled modules)
from millrace.values import kernels
from tests.depth import DEEP, examples

# Durations belong to bench/: a slow machine must not fail a test.
# Every run has the same examples, derived from the tests' source. New examples: `make fuzz`.
settings.register_profile("millrace", deadline=None, derandomize=True, max_examples=examples(100))
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile("fuzz" if DEEP else "millrace")

# pytest imports readline, which sets 80 columns in the environment of new processes (workers among them), regardless of
# their terminals.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)


def pytest_configure() -> None:
    if outdated := kernels.outdated():
        pytest.exit(f"compiled before their sources were edited: {', '.join(outdated)}; run `make setup`", returncode=2)


MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, for tests that sync it thousands of times."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as found:
        yield Path(found)


# Files run on all cores at once (`make test`). Those that take longest start first, so that no core ends long before
# the others; Spark's follow one another on one core and share a session.
LONGEST_FIRST = (
    "simulation/test_simulation",
    "spark/test_spark",
    "spark/",
    "end_to_end/test_documents",
    "cli/test_cli",
    "bench/",
    "end_to_end/",
    "server/",
    "cli/",
    "sql/test_limits",
    "sql/test_cuts",
    "engine/test_fairness",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.nodeid.removeprefix("tests/")
        return next((number for number, name in enumerate(LONGEST_FIRST) if path.startswith(name)), len(LONGEST_FIRST))

    items.sort(key=rank)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The simulator's fresh worlds, whatever became of them: each with the command that plays it again."""
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if getattr(report, "when", "") == "call":
            for name, value in report.user_properties:
                if name == "fresh world":
                    terminalreporter.write_line(f"{name}, {report.outcome}: {value}")
