"""ETS arcs: the path of a promise past the operators that neither need nor change it (EQG, section 4).

An arc leads from a source or an operator with registers to the next downstream operator with registers, past the
selects and maps in between. A value may take it only when the skipped operators are drained: a queued tuple might be
below the value. Backtracking alone does not ensure that under batching, break points or round robin, so it is checked;
otherwise punctuation passes through the operators.
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
        """Whether no tuple is on its way to the register."""
        return all(reader.drained for reader in self.between)


def announce(value_us: int, output: Buffer, arcs: Iterable[Arc]) -> bool:
    """Carry a promise to the registers at the ends of the arcs; say whether any of them has a use for it."""
    useful = blocked = False
    for arc in arcs:
        if arc.register.promise >= value_us:
            continue
        if arc.drained():
            useful |= arc.register.set_register(value_us)
        else:
            blocked = True
    if blocked:
        useful |= output.punctuate(value_us)
    return useful
