"""What a program that uses the client may catch. All are MillraceError and carry a code and a text."""

from __future__ import annotations

from millrace.protocol import MillraceError
from millrace.protocol.messages import Closed, Error


class ServerError(MillraceError):
    """The server refused something, or ended a channel. `code` is one of the protocol's.

    For refused rows `sequence` is the number of the frame's first tuple, `row` the place of the bad one in the frame
    and `expected` / `got` what was wrong with it. `others` are further refusals that nobody had asked for yet.
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
        """The server ended a channel on its own."""
        return ServerError(Error(closed.code, closed.text or f"the server ended this channel ({closed.code})"))


class ConnectionLost(MillraceError, ConnectionError):  # noqa: N818 - the name people look for
    """The server cannot be reached, or could not be reached again; what was not acknowledged may not have arrived."""

    code = "connection_lost"


class Ended(MillraceError):  # noqa: N818 - not the program's error in every case
    """This client, feed or subscription was closed by this program."""

    code = "ended"
