"""An error in SQL: the problem, its place, and the probable intention."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from millrace.protocol import Refuse


class SqlError(Refuse):
    """A statement that cannot be parsed or cannot run. The text shows the line with a caret under the place.

    at             the place in the text
    line, column   counted from 1
    source         the line that contains the place
    message        the sentence without the place
    """

    code = "sql"

    def __init__(self, sql: str, at: int, message: str) -> None:
        self.at = at = max(0, min(at, len(sql)))
        begin = sql.rfind("\n", 0, at) + 1
        end = sql.find("\n", at)
        self.message = message
        self.line = sql.count("\n", 0, at) + 1
        self.column = at - begin + 1
        self.source = sql[begin : end if end >= 0 else len(sql)].rstrip()
        super().__init__(f"line {self.line}, column {self.column}: {message}\n{self.pointer}")

    @property
    def pointer(self) -> str:
        """The line and, under it, the caret. A long line is shortened around the place; tabs are kept."""
        before = self.source[: self.column - 1]
        cut = max(0, len(before) - 80)
        shown, before = self.source[cut : cut + 120], before[cut:]
        blank = "".join("\t" if letter == "\t" else " " for letter in before)
        return f"  {shown}\n  {blank}^"


class WrongField(Refuse):
    """A statement that cannot run because of one of its names; `field` says which."""

    code = "sql"

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing if no known name is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    if not near:
        folded = {name.lower(): name for name in names}
        near = [folded[wrong.lower()]] if wrong.lower() in folded else []
    return f"; did you mean {near[0]}?" if near else ""
