"""The epoch: a number from 1 that every promotion raises. Of two servers with one history, the lower one is deposed.

Rule: an epoch travels as text, `2-<16 hexadecimal digits>`. The digits are a code of the number under the server's id,
which no route shows, so only a server that has the id can make the text of a higher epoch. Anyone may carry it: a
client shows the highest that it has seen to each server that it meets, and a server that is shown a higher one than its
own stops. Clients compare the numbers and cannot check the codes.
"""

from __future__ import annotations

import hmac
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.protocol import Refuse
from millrace.protocol.epochs import epoch_number

FIRST: Final = 1
# 64 bits cannot be guessed at the rate at which a server accepts greetings.
CODE_BYTES: Final = 8


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    number: int = FIRST

    def proof(self, server_id: bytes) -> str:
        """The text that proves the epoch to servers with this id."""
        code = hmac.digest(server_id, b"epoch %d" % self.number, "sha256")[:CODE_BYTES]
        return f"{self.number}-{code.hex()}"

    @property
    def next(self) -> Epoch:
        return Epoch(self.number + 1)

    @staticmethod
    def parse(text: str, server_id: bytes) -> Epoch | None:
        """The epoch that a text proves; None: it proves nothing to this server."""
        number = epoch_number(text)
        if number is None:
            return None
        epoch = Epoch(number)
        return epoch if hmac.compare_digest(text, epoch.proof(server_id)) else None


class Lost(Refuse):
    """A client has rows, or acknowledgements of tuples, that a promotion has lost: those from `sequence` on."""

    code = "lost"

    def __init__(self, text: str, sequence: int) -> None:
        super().__init__(text)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epoch of a server, and where the epochs after the first began.

    `began` has, by epoch and history of rows, the number of the first row of that epoch. A reader of an older epoch may
    have got rows from that number on which the promotion has lost.
    """

    newest: Epoch = Epoch()
    began: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def raised(self, numbers: Mapping[str, int]) -> Epochs:
        """After a promotion; `numbers` are the next row numbers by history."""
        newest = self.newest.next
        return Epochs(newest, {**self.began, newest.number: dict(numbers)})

    def lost_from(self, seen: int, history: str) -> int | None:
        """The first row that a reader of epoch `seen` may have in another form; None: it has what this server has."""
        later = [began[history] for number, began in self.began.items() if number > seen and history in began]
        return min(later, default=None)

    def check_rows(self, query: str, history: str, wanted: int | None, seen: int | None) -> None:
        """Refuse a reader that has rows which a promotion has lost: it must learn which ones."""
        lost = None if seen is None else self.lost_from(seen, history)
        if wanted is not None and lost is not None and wanted > lost:
            rows = f"row {lost}" if wanted - lost == 1 else f"rows {lost} to {wanted - 1}"
            text = f"{rows} of query {query}, read in epoch {seen}, were lost when epoch {self.newest.number} took over"
            raise Lost(f"{text}: drop what you made of them, and subscribe from {lost}", lost)

    def check_tuples(self, producer: str, taken: int, sequence: int | None, seen: int | None) -> None:
        """Refuse a producer with acknowledgements for tuples that a promotion has lost: it must send them again."""
        if sequence is not None and sequence > taken and seen is not None and seen < self.newest.number:
            tuples = f"tuple {taken}" if sequence - taken == 1 else f"tuples {taken} to {sequence - 1}"
            text = f"{tuples} of producer {producer}, acknowledged in epoch {seen}, were lost when epoch"
            raise Lost(
                f"{text} {self.newest.number} took over: open the feed again and send them from {taken} on", taken
            )

    def without(self, histories: Container[str]) -> Epochs:
        """The same without histories that have ended; `histories` are the present ones."""
        kept = {
            number: {history: at for history, at in began.items() if history in histories}
            for number, began in self.began.items()
        }
        return Epochs(self.newest, kept)

    def to_data(self) -> dict[str, Any] | None:
        """Plain data; None in the first epoch."""
        if self.newest.number == FIRST:
            return None
        return {"number": self.newest.number, "began": {number: dict(began) for number, began in self.began.items()}}

    @staticmethod
    def from_data(data: Mapping[str, Any] | None) -> Epochs:
        return Epochs() if data is None else Epochs(Epoch(data["number"]), data["began"])


class Fence:
    """What a server knows about epochs: its own, and whether a higher one has deposed it."""

    def __init__(self, server_id: bytes, epoch: Epoch) -> None:
        self.epoch = epoch
        self.superseded: Epoch | None = None
        self._server_id = server_id

    @property
    def proof(self) -> str:
        return self.epoch.proof(self._server_id)

    def show(self, text: str) -> bool:
        """A peer shows an epoch; whether that is a higher one than this server's, which must then stop."""
        shown = Epoch.parse(text, self._server_id)
        if shown is not None and shown > (self.superseded or self.epoch):
            self.superseded = shown
        return self.superseded is not None
