"""Names as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.engine.plan import QueryPlan, current_name, origin_of
from millrace.sql.errors import similar_name

# How many names a hint lists: a line or two on a terminal.
TOLD: Final = 8


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint to end a sentence with: the name that was probably meant, or those that exist.

    Side streams of late tuples are listed only if one of them was meant: most streams have one.
    """
    close = similar_name(name, known)
    if close is not None:
        return f"; did you mean {close}?"
    told = sorted(one for one in known if origin_of(one) is None)
    if not told:
        return "; there are none yet"
    more = f" and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return f"; there {'is' if len(told) == 1 else 'are'} {', '.join(told[:TOLD])}{more}"


def formerly(operator: str, queries: Mapping[str, QueryPlan]) -> str:
    """A hint for the name of an operator that does not exist, if one was called so when names were made of kinds."""
    plan = queries.get(operator.partition(".")[0])
    name = operator if plan is None else current_name(plan, operator)
    if plan is None or name == operator or name not in (node.name for node in plan.nodes):
        return ""
    return f"; names are made of SQL's words now, and it is called {name}"
