"""Digests of operators, to compare two engines that have taken the same steps.

Rule: equal states have equal digests, because equal states are saved as equal bytes. A digest of a whole state takes as
long as saving it. One without the state covers what the operator has done so far: its counts, and the tuples that wait
for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.engine import saving
from millrace.operators.frame.operator import Operator
from millrace.operators.sink.sink import Sink
from millrace.operators.source.source import Source

if TYPE_CHECKING:
    from millrace.engine.engine import Engine

# Of two different states, one pair in 18,000,000,000,000,000,000 has the same digest.
DIGEST_BYTES: Final = 8
# What a feed of a source takes when it is saved.
_FEED_BYTES: Final = 200
# More versions than the state of any operator will have.
_FORMS: Final = 1_000
# In the place of an operator: the engine's clock, and how many operators there are and have been.
ENGINE: Final = ""


class Digest(NamedTuple):
    """A digest of an operator.

    whole  of its whole state, otherwise of its counts
    form   the version of the saved state, 0 if the operator does not exist; digests of two versions cannot be compared
    """

    operator: str
    whole: bool
    form: int
    value: bytes


def digest(engine: Engine, name: str, *, whole: bool) -> Digest:
    """The digest of one operator, between two steps; empty if it does not exist or cannot be saved."""
    form = _FORMS * saving.VERSION
    if name == ENGINE:
        own = [engine.clock.now_us, engine.turn, engine.last_id, len(engine.graph.operators)]
        return Digest(name, whole, form, _hash(own))
    engine.graph.settle()
    operator = engine.graph.operators.get(name)
    if operator is None:
        return Digest(name, whole, 0, b"")
    form += operator.layout.version
    try:
        return Digest(name, whole, form, _hash(saving.save_operator(operator) if whole else _passage(operator)))
    except Exception:  # `saving.collect` notes it as a fault of the operator
        return Digest(name, whole, form, b"")


def _hash(state: Any) -> bytes:
    return blake2b(saving.pack(state), digest_size=DIGEST_BYTES).digest()


def _passage(operator: Operator) -> list[Any]:
    waiting = [reader.waiting for reader in operator.inputs]
    return [operator.counts.save(), waiting, 0 if isinstance(operator, Sink) else operator.output.end]


def all_digests(engine: Engine) -> list[Digest]:
    """The whole state of every operator, and the engine itself."""
    return [digest(engine, name, whole=True) for name in (ENGINE, *engine.graph.operators)]


def differing(engine: Engine, digests: Iterable[Digest]) -> list[str]:
    """The operators of which this engine has another digest, each with one of its queries. States of another
    version are not compared."""
    return [described(engine, one.operator) for one in digests if _differs(engine, one)]


def _differs(engine: Engine, expected: Digest) -> bool:
    found = digest(engine, expected.operator, whole=expected.whole)
    return found.value != expected.value and found.form in (0, expected.form)


def described(engine: Engine, name: str) -> str:
    """An operator, for people: what has another state than it should."""
    if name == ENGINE:
        return "the engine's clock and graph"
    operator = engine.graph.operators.get(name)
    owners = [] if operator is None else [query.plan.name for query in engine.owners(operator)]
    if isinstance(operator, Source):
        return f"stream {operator.stream}, operator {name}"
    return f"query {owners[0]}, operator {name}" if owners else f"operator {name}"


def size_of(operator: Operator) -> int:
    """About how many bytes the saved operator has, without saving it."""
    size = operator.state_bytes
    size += sum(operator.queue_tuples(at) * reader.arc.width for at, reader in enumerate(operator.inputs))
    if isinstance(operator, Source):
        size += _FEED_BYTES * len(operator.feeds.by_name)
    if not isinstance(operator, Sink):
        arc = operator.output
        size += arc.width * max((reader.waiting for reader in arc.readers), default=0)
    return size
