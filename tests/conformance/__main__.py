"""`python -m tests.conformance`: runs every supported case, and prints why the others are not supported."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.conformance import not_yet
from tests.conformance.rows import NEXMARK, QUERIES, cases, check_case, check_nexmark


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            operation = case["query"]["op"]
            if operation in QUERIES:
                check_case(case, Path(folder))
                say(case["id"], "agrees")
            else:
                say(case["id"], f"not yet: {not_yet.OPERATIONS[operation].reason}")
        for query in NEXMARK:
            check_nexmark(query, Path(folder))
            say(f"nexmark {query}", "agrees")
        for query, (reason, _) in not_yet.NEXMARK.items():
            say(f"nexmark {query}", f"not yet: {reason}")


def say(name: str, outcome: str) -> None:
    sys.stdout.write(f"{name:32} {outcome}\n")


if __name__ == "__main__":
    main()
