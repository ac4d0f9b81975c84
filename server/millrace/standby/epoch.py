"""The epoch: a number from 1 that every promotion raises. Of two servers with one history, the lower one is deposed.

Rule: an epoch travels as text, `2-<16 hexadecimal digits>`. The digits are a code of the number under the server's id,
which no route shows, so only a server that has the id can make the text of a higher epoch. Anyone may carry it: a
client shows the highest that it has seen to each server that it meets, and a server that is shown a higher one than its
own stops. Clients compare the numbers and cannot check the codes.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from millrace.protocol.epochs import epoch_number

FIRST: Final = 1
# 64 bits: nobody guesses them at the rate at which a server accepts greetings.
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
