"""The kinds of error that a person or a program meets.

Rule: the text says what was expected, what came and where; the code is for programs and never
changes once published (`codes.py` lists those that cross the wire). Our own mistakes are
assertions, not classes of this file.
"""

from __future__ import annotations


class MillraceError(Exception):
    """Anything Millrace says no to, with a code for programs and a text for people."""

    code = "error"

    def __init__(self, text: str, *, code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code


class PeerError(MillraceError):
    """The peer broke the protocol: send it the code, then close.

    `expected`, `got` and `where` are the parts of the text, for ERROR's fields and for programs.
    """

    code = "protocol"

    def __init__(
        self,
        text: str,
        *,
        code: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        where: str | None = None,
        row: int | None = None,
    ) -> None:
        super().__init__(text, code=code)
        self.expected = expected
        self.got = got
        self.where = where
        self.row = row

    @classmethod
    def at(cls, where: str, *, expected: str, got: str, code: str, row: int | None = None) -> PeerError:
        """The usual form: `OPEN, field stream: expected text, got an integer`."""
        text = f"{where}: expected {expected}, got {got}"
        return cls(text, code=code, expected=expected, got=got, where=where, row=row)


class Refuse(MillraceError):  # noqa: N818 - not an error: an answer
    """A fair wish at the wrong moment, or one that cannot be met: say what would work, and stay."""

    code = "refused"


def row_place(row: int) -> str:
    """The place of a row in a text for people, who count from 1. Fields and indexes count from 0."""
    return f"row {row + 1}"


class RowError(Refuse):
    """A frame refused whole because a row does not fit: the row's index (from 0), expected, got.

    The text starts with `row_place(row)`.
    """

    code = "bad_row"

    def __init__(self, text: str, *, row: int, expected: str, got: str, code: str | None = None) -> None:
        super().__init__(text, code=code)
        self.row = row
        self.expected = expected
        self.got = got

    @property
    def fault(self) -> str:
        """The text without the row's place: `, field k: expected bigint, got 'x'` or `: missing field k`."""
        return self.text.removeprefix(row_place(self.row))
