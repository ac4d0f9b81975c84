"""An error in SQL: the problem, its place, and the probable intention."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from millrace.protocol import Refuse

# What the search for a similar name may cost: characters of the wrong name times those of each known one. Most of a
# thousand names of twelve characters are compared, or a dozen of the longest: 20 ms at the most.
COMPARED: Final = 200_000


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
    name = similar_name(wrong, known)
    return "" if name is None else f"; did you mean {name}?"


def similar_name(wrong: str, known: Iterable[str]) -> str | None:
    """The known name that differs in its case alone, or is most similar; None if none of those that are compared is."""
    names, folded = list(dict.fromkeys(known)), wrong.lower()
    same = next((name for name in names if len(name) == len(wrong) and name.lower() == folded), None)
    if same is not None:
        return same
    costs = accumulate(len(wrong) * len(name) for name in names)
    compared = [name for name, cost in zip(names, costs, strict=True) if cost <= COMPARED]
    return next(iter(difflib.get_close_matches(wrong, compared, n=1)), None)
