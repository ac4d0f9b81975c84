"""ETS arcs: the way of a promise past the operators that neither need nor change it (EQG, section 4).

An arc leads from a source or an operator with registers to the next operator with registers below it, past the
selects and maps in between. A value may take it only when the skipped operators are drained: a tuple still under way
to the register might be below the value by the time it arrives. Backtracking alone does not make sure of that under
batching, break points or round robin, so it is checked, and what is not drained gets punctuation through the
operators instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.inlet import Inlet
from millrace.operators.frame.operator import Operator


@dataclass(frozen=True, slots=True)
class Arc:
    """The register at the end, the operator that has it, and the readers of the operators in between."""

    register: Inlet
    target: Operator
    between: tuple[Inlet, ...]

    def drained(self) -> bool:
        """Whether nothing is under way to the register."""
        return all(reader.drained for reader in self.between)


def announce(value_us: int, output: Buffer, arcs: Iterable[Arc]) -> bool:
    """Carry a promise to the registers at the ends of the arcs; say whether it told any of them anything of use."""
    told = blocked = False
    for arc in arcs:
        if arc.register.promise >= value_us:
            continue
        if arc.drained():
            told |= arc.register.set_register(value_us)
        else:
            blocked = True
    if blocked:
        told |= output.punctuate(value_us)
    return told
