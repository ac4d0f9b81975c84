"""Fork: several operators reading one arc."""

from __future__ import annotations

from typing import ClassVar

from millrace.operators.frame.buffer import Buffer
from millrace.operators.frame.layout import Layout
from millrace.operators.frame.operator import Operator


class Fork(Operator):
    """Chooses which reader of a shared buffer has the next turn, round-robin (EQG, figure 7).

    It moves no tuple: the buffer is its input and its readers' input at once, and each reader has its own head
    pointer. So it is never executed; its row in the state table sends the scheduler on to a reader that has something
    unseen.
    """

    kind: ClassVar[str] = "fork"
    layout: ClassVar[Layout] = Layout(1)

    def __init__(self, name: str, buffer: Buffer) -> None:
        super().__init__(name, (), buffer)
        self.turn = 0

    @property
    def turn(self) -> int:
        """The place of the reader whose turn it is. Each round starts with the first reader."""
        return self.output.turn

    @turn.setter
    def turn(self, turn: int) -> None:
        self.output.turn = turn

    def fresh(self) -> bool:
        return False

    def save(self) -> int:
        return self.turn

    def restore(self, data: int) -> None:
        self.turn = data
