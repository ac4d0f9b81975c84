"""The classes of errors for people and programs.

Rule: the text has the expected form, the received one and the place. The code is for programs and never changes once
published; `codes.py` lists those that cross the wire. Internal errors are assertions, not classes of this module.
"""

from __future__ import annotations


class MillraceError(Exception):
    """An error that Millrace reports, with a code for programs and a text for people."""

    code = "error"

    def __init__(self, text: str, *, code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code


class PeerError(MillraceError):
    """The peer violated the protocol: report the code, then close.

    `expected`, `got` and `where` are parts of the text, for the fields of ERROR and for programs.
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
    """A valid request that cannot be carried out now: the text says how to proceed, and the connection stays."""

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
