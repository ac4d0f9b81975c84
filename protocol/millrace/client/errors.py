"""Exceptions of the client. All are MillraceError and have a code and a text."""

from __future__ import annotations

from millrace.protocol import MillraceError
from millrace.protocol.messages import Closed, Error


class ServerError(MillraceError):
    """The server refused a request or rows, or ended a channel. `code` is a code of the protocol.

    For refused rows, `sequence` is the sequence number of the frame's first tuple, `row` the index of the bad row in
    the frame (from 0; the text counts from 1), and `expected` and `got` describe the fault. `others` holds further
    refusals that were not raised yet.
    """

    def __init__(self, error: Error) -> None:
        super().__init__(error.text, code=error.code)
        self.sequence = error.sequence
        self.row = error.row
        self.expected = error.expected
        self.got = error.got
        self.others: tuple[ServerError, ...] = ()

    @staticmethod
    def ended(closed: Closed) -> ServerError:
        """The server ended a channel without a request of the client."""
        return ServerError(Error(closed.code, closed.text or f"the server ended this channel ({closed.code})"))


class ConnectionLost(MillraceError, ConnectionError):  # noqa: N818 - the name people look for
    """The server cannot be reached, or not again. Unacknowledged rows may not have arrived."""

    code = "connection_lost"


class Ended(MillraceError):  # noqa: N818 - not the program's error in every case
    """This program closed the client, feed or subscription."""

    code = "ended"
