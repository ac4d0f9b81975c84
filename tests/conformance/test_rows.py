"""Results agree with other engines and with the papers; exactly the unsupported cases are listed."""

from __future__ import annotations

import sys

import pytest

from millrace.offline.script import plan_script
from millrace.sql import SqlError
from tests.conformance import not_yet
from tests.conformance.rows import HERE, NEXMARK, QUERIES, cases, check_case, check_nexmark

CASES = cases()
RUNNABLE = [case for case in CASES if case["query"]["op"] in QUERIES]
NOT_YET = {**not_yet.OPERATIONS, **not_yet.NEXMARK}


@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case["id"])
def test_case(case, tmp_path):
    check_case(case, tmp_path)


@pytest.mark.parametrize("name", NEXMARK)
def test_nexmark(name, tmp_path):
    check_nexmark(name, tmp_path)


def test_every_kind_runs_or_is_listed_as_not_yet():
    operations = {case["query"]["op"] for case in CASES}
    assert operations == QUERIES.keys() | not_yet.OPERATIONS.keys()
    assert not QUERIES.keys() & not_yet.OPERATIONS.keys()
    queries = {path.stem for path in (HERE / "nexmark" / "expected").iterdir()}
    assert queries == NEXMARK.keys() | not_yet.NEXMARK.keys()
    assert not NEXMARK.keys() & not_yet.NEXMARK.keys()


def test_unsupported_cases_are_refused():
    for kind, (reason, statement) in NOT_YET.items():
        sys.stdout.write(f"{kind}: {reason}\n")
        with pytest.raises(SqlError):
            plan_script(f"{not_yet.STREAMS}{statement};")
