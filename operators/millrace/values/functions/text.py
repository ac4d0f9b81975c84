"""Functions of text and bytes. Positions count characters from 1, as PostgreSQL's do.

The usual ones run over the bytes of whole columns (`values/texts.py`), the others row by row over Python's strings.
Anything that depends on a constant alone (a pattern,
say) is prepared once. A dot of a pattern matches a newline too except with the flag `n`, as in PostgreSQL. The time of
a function grows with the length of its text, and no result has more than MOST_RESULT characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from millrace.protocol import Refuse, Type
from millrace.values import texts as columns
from millrace.values.batch import Batch, Values, column_of
from millrace.values.functions.faults import REASONS, Fault, RowFault
from millrace.values.functions.library import ALWAYS, NEVER, Function, Make, each_row, over_texts
from millrace.values.functions.patterns import MOST_RESULT, Pattern, PatternFault, decode, encode
from millrace.values.functions.vectors import Faults, Operand, Run, Vector, faults_where, first_fault
from millrace.values.texts import ANYWHERE, ENDS, ERRORS, STARTS, WHOLE, Texts

_TEXT, _BYTES, _BIGINT, _BOOLEAN = Type.TEXT, Type.BYTES, Type.BIGINT, Type.BOOLEAN
# Patterns in a column are compiled once each while they are in use.
_PATTERNS_KEPT = 512
# Python looks each character of a text up one by one in those to trim: more of them go into a set.
FEW_CHARACTERS = 16

# Bytes of a part that is searched for at every place.
SHORT_PART = 32

# -- plain functions ---------------------------------------------------------------------------------------------------


def bounded(length: int) -> None:
    """Refuse a row whose result would have too many characters, before it is computed."""
    if length > MOST_RESULT:
        raise RowFault(Fault.TOO_LONG)


def replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    if len(new) > len(old):
        bounded(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def substring(text: str, start: int, count: int | None = None) -> str:
    """A start before the first character uses up the count, as the standard has it."""
    if count is None:
        return text[max(start, 1) - 1 :]
    if count < 0:
        raise RowFault(Fault.BAD_ARGUMENT)
    return text[max(start, 1) - 1 : max(start + count, 1) - 1]


def position(part: str, text: str) -> int:
    return text.find(part) + 1


def strpos(text: str, part: str) -> int:
    return text.find(part) + 1


def split_part(text: str, delimiter: str, number: int) -> str:
    """The part of that number, from the end if negative; empty where there is none."""
    if number == 0:
        raise RowFault(Fault.BAD_ARGUMENT)
    if not delimiter:
        parts = [text]
    else:
        parts = text.split(delimiter, number) if number > 0 else text.split(delimiter)
        # The last of a limited split is all that is left, unless it was the last anyway.
        parts = parts[:number] if number > 0 else parts
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def left(text: str, count: int) -> str:
    return text[:count]


def right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def btrim(text: str, characters: str = " ") -> str:
    return ltrim(rtrim(text, characters), characters)


def ltrim(text: str, characters: str = " ") -> str:
    if len(characters) <= FEW_CHARACTERS:
        return text.lstrip(characters) if characters else text
    known = frozenset(characters)
    return text[next((at for at, one in enumerate(text) if one not in known), len(text)) :]


def rtrim(text: str, characters: str = " ") -> str:
    if len(characters) <= FEW_CHARACTERS:
        return text.rstrip(characters) if characters else text
    known = frozenset(characters)
    kept = next((at for at in range(len(text), 0, -1) if text[at - 1] not in known), 0)
    return text[:kept]


# -- functions of whole columns ----------------------------------------------------------------------------------------


def characters(column: Texts) -> Values:
    return column.lengths if column.is_ascii() else column.characters()


def lengths(column: Texts) -> Values:
    return column.lengths


def lower_ascii(column: Texts) -> Values | None:
    return column.folded(b"AZ") if column.is_ascii() else None


def upper_ascii(column: Texts) -> Values | None:
    return column.folded(b"az") if column.is_ascii() else None


def begins(column: Texts, part: Texts) -> Values | None:
    """Whether texts start with a constant."""
    return column.has(part.item(0).encode("utf-8", ERRORS), STARTS) if len(part) == 1 else None


def followed(column: Texts, other: Texts) -> Values | None:
    """Texts put together, if none can be too long."""
    longest = int(column.lengths.max(initial=0) + other.lengths.max(initial=0))
    return column.followed(other) if longest <= MOST_RESULT else None


# -- patterns ----------------------------------------------------------------------------------------------------------

Prepared = Callable[[str], Any]


def prepared(result: Type, prepare: Callable[..., Prepared]) -> Make:
    """A function of a text and of more that is usually constant: from that `prepare` makes the function of the text."""
    remembered = lru_cache(_PATTERNS_KEPT)(prepare)

    def row(text: str, *rest: Any) -> Any:
        return remembered(*rest)(text)

    def make(operands: Sequence[Operand]) -> Run:
        text, *rest = operands
        if all(operand.known for operand in rest):
            try:
                fixed = prepare(*(operand.value for operand in rest))
            except RowFault as error:
                raise Refuse(_complaint(error, [operand.value for operand in rest])) from None
            if isinstance(fixed, Part):
                return over_texts(result, fixed.over, fixed)([text])
            return each_row(result, fixed)([text])
        return each_row(result, row)(operands)

    return make


def _complaint(error: RowFault, values: Sequence[Any]) -> str:
    why = f": {error.detail}" if isinstance(error, PatternFault) else ""
    return f"{REASONS[error.fault]}: {', '.join(f'{value!r:.60}' for value in values)}{why}"


class Part:
    """Whether texts have a part at a place: one text, or a column."""

    def __init__(self, part: str, place: int) -> None:
        self._part = part
        self._bytes = part.encode("utf-8", ERRORS)
        self._place = place

    def __call__(self, text: str) -> bool:
        match self._place:
            case columns.WHOLE:
                return text == self._part
            case columns.STARTS:
                return text.startswith(self._part)
            case columns.ENDS:
                return text.endswith(self._part)
        return self._part in text

    def over(self, column: Texts) -> Values | None:
        # The loop compares at every place: of a long part that takes too long.
        if self._place == ANYWHERE and len(self._bytes) > SHORT_PART:
            return None
        return column.has(self._bytes, self._place)


def like(pattern: str, escape: str = "\\") -> Prepared:
    return _like(pattern, escape, fold=False)


def ilike(pattern: str, escape: str = "\\") -> Prepared:
    return _like(pattern, escape, fold=True)


def _like(pattern: str, escape: str, fold: bool) -> Prepared:
    """The usual shapes (no wildcard, or % at an end) by Python's own searches, the others piece by piece."""
    parts = _like_parts(pattern, escape)
    if fold:
        return Pattern(f"^{_like_regex(parts)}$", "is").matches
    wild = [index for index, part in enumerate(parts) if part is None or part is ANY_ONE]
    text = "".join(part for part in parts if isinstance(part, str))
    if all(parts[index] is None for index in wild):
        last = len(parts) - 1
        if not wild:
            return Part(text, WHOLE)
        if wild == [last]:
            return Part(text, STARTS)
        if wild == [0]:
            return Part(text, ENDS)
        if wild == [0, last]:
            return Part(text, ANYWHERE)
    return _like_pieces(parts)


def _like_regex(parts: Sequence[Any]) -> str:
    return "".join(".*" if part is None else "." if part is ANY_ONE else _quoted(part) for part in parts)


def _quoted(letter: str) -> str:
    return f"\\{letter}" if letter in SPECIAL else letter


def _like_pieces(parts: Sequence[Any]) -> Prepared:
    """Pieces between % in turn, each at the first place after the previous one: a later place is never better, so there
    is no backtracking. The first and the last piece are anchored at the ends of the text."""
    pieces: list[list[Any]] = [[]]
    for part in parts:
        if part is None:
            pieces.append([])
        else:
            pieces[-1].append(part)
    if any(ANY_ONE in piece for piece in pieces[1:-1]):
        return Pattern(f"^{_like_regex(parts)}$").matches
    first, last = _piece(pieces[0]), _piece(pieces[-1])
    middle = ["".join(piece) for piece in pieces[1:-1]]
    least, tail = sum(map(len, pieces)), len(pieces[-1])

    def matches(value: str) -> bool:
        end = len(value) - tail
        if len(value) < least or not (first(value, 0) and last(value, end)):
            return False
        at = len(pieces[0])
        for piece in middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches if len(pieces) > 1 else lambda value: len(value) == least and first(value, 0)


def _piece(parts: Sequence[Any]) -> Callable[[str, int], bool]:
    """Whether consecutive characters, some of which may be any (`_`), are at a place."""
    if ANY_ONE not in parts:
        text = "".join(parts)
        return lambda value, at: value.startswith(text, at)
    known = [(at, part) for at, part in enumerate(parts) if part is not ANY_ONE]
    return lambda value, at: all(value[at + offset] == letter for offset, letter in known)


SPECIAL = frozenset("\\.+*?()|[]{}^$")
ANY_ONE = object()


def _like_parts(pattern: str, escape: str) -> list[Any]:
    """The pattern's characters: None for %, ANY_ONE for _, itself for any other; neighbouring % are one."""
    if len(escape) > 1:
        raise RowFault(Fault.BAD_ARGUMENT)
    parts: list[Any] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            following = next(letters, None)
            if following is None:
                raise RowFault(Fault.BAD_PATTERN)
            parts.append(following)
        elif letter == "%":
            if not (parts and parts[-1] is None):
                parts.append(None)
        else:
            parts.append(ANY_ONE if letter == "_" else letter)
    return parts


def regexp_like(pattern: str, flags: str = "") -> Prepared:
    return Pattern(pattern, flags).matches


def regexp_substr(pattern: str, start: int = 1, number: int = 1, flags: str = "", group: int = 0) -> Prepared:
    """The match of that number at or after a position, or one of its groups; null if there is none."""
    regex = Pattern(pattern, flags)
    if start < 1 or number < 1 or not 0 <= group <= regex.groups:
        raise RowFault(Fault.BAD_ARGUMENT)

    def nth(text: str) -> str | None:
        encoded = encode(text)
        at = len(encode(text[: start - 1])) if start > 1 else 0
        found = next(islice(regex.every(encoded, at), number - 1, None), None)
        if found is None:
            return None
        low, high = found.span(group)
        return None if low < 0 else decode(encoded[low:high])

    return nth


def regexp_replace(pattern: str, replacement: str, flags: str = "") -> Prepared:
    """The first match replaced, or all with the flag `g`. `\\1` is a group and `\\&` the whole match."""
    regex = Pattern(pattern, flags.replace("g", ""))
    parts = [encode(part) if isinstance(part, str) else part for part in _replacement_parts(replacement, regex.groups)]
    most = None if "g" in flags else 1

    def replaced(text: str) -> str:
        encoded = encode(text)
        made: list[bytes] = []
        length = at = 0
        for match in islice(regex.every(encoded), most):
            low, high = match.span()
            pieces = [encoded[at:low], *(_part(encoded, match, part) for part in parts)]
            made += pieces
            length += sum(map(len, pieces))
            bounded(length)
            at = high
        return decode(b"".join((*made, encoded[at:])))

    return replaced


def _part(text: bytes, match: Any, part: bytes | int) -> bytes:
    if isinstance(part, bytes):
        return part
    low, high = match.span(part)
    return text[low:high] if low >= 0 else b""


def _replacement_parts(replacement: str, groups: int) -> list[str | int]:
    """Texts and numbers of groups."""
    parts: list[str | int] = []
    for text, escaped in re.findall(r"([^\\]+)|\\(.?)", replacement, re.DOTALL):
        if text:
            parts.append(text)
        elif escaped == "&":
            parts.append(0)
        elif escaped.isdecimal() and escaped.isascii() and escaped != "0":
            if int(escaped) > groups:
                raise RowFault(Fault.BAD_ARGUMENT)
            parts.append(int(escaped))
        else:
            parts.append(escaped or "\\")
    return parts


# -- concat: the one that takes null for nothing -----------------------------------------------------------------------


def concat(operands: Sequence[Operand]) -> Run:
    """All arguments one after another; a null is an empty text, like its filler."""
    runs = [operand.run for operand in operands]

    def run(batch: Batch) -> Vector:
        faults: Faults | None = None
        columns = []
        for one in runs:
            values, _, failed = one(batch)
            columns.append(values.tolist())
            faults = first_fault(faults, failed)
        made = ["".join(row) if sum(map(len, row)) <= MOST_RESULT else None for row in zip(*columns, strict=True)]
        if None in made:
            long = np.array([one is None for one in made])
            faults = first_fault(faults, faults_where(long, Fault.TOO_LONG))
            made = ["" if one is None else one for one in made]
        return column_of(_TEXT, made), None, faults

    return run


def _join(one: Any, other: Any) -> Any:
    bounded(len(one) + len(other))
    return one + other


# -- the table ---------------------------------------------------------------------------------------------------------


def _plain(name: str, arguments: tuple[Type, ...], result: Type, compute: Callable[..., Any]) -> Function:
    return Function(name, arguments, result, each_row(result, compute))


def _pattern(name: str, extra: tuple[Type, ...], result: Type, prepare: Callable[..., Prepared]) -> Function:
    nullable = ALWAYS if prepare is regexp_substr else any
    return Function(name, (_TEXT, *extra), result, prepared(result, prepare), nullable=nullable)


FUNCTIONS: Sequence[Function] = (
    Function("||", (_TEXT, _TEXT), _TEXT, over_texts(_TEXT, followed, _join)),
    Function("||", (_BYTES, _BYTES), _BYTES, over_texts(_BYTES, followed, _join)),
    Function("concat", (_TEXT,), _TEXT, concat, variadic=True, nullable=NEVER),
    *(
        Function(name, (_TEXT,), _BIGINT, over_texts(_BIGINT, characters, len))
        for name in ("length", "char_length", "character_length")
    ),
    Function("length", (_BYTES,), _BIGINT, over_texts(_BIGINT, lengths, len)),
    Function("octet_length", (_TEXT,), _BIGINT, over_texts(_BIGINT, lengths)),
    Function("octet_length", (_BYTES,), _BIGINT, over_texts(_BIGINT, lengths)),
    Function("lower", (_TEXT,), _TEXT, over_texts(_TEXT, lower_ascii, str.lower)),
    Function("upper", (_TEXT,), _TEXT, over_texts(_TEXT, upper_ascii, str.upper)),
    _plain("replace", (_TEXT, _TEXT, _TEXT), _TEXT, replace),
    *(_plain(name, (_TEXT, _BIGINT), _TEXT, substring) for name in ("substring", "substr")),
    *(_plain(name, (_TEXT, _BIGINT, _BIGINT), _TEXT, substring) for name in ("substring", "substr")),
    _plain("position", (_TEXT, _TEXT), _BIGINT, position),
    _plain("strpos", (_TEXT, _TEXT), _BIGINT, strpos),
    _plain("split_part", (_TEXT, _TEXT, _BIGINT), _TEXT, split_part),
    Function("starts_with", (_TEXT, _TEXT), _BOOLEAN, over_texts(_BOOLEAN, begins, str.startswith)),
    _plain("left", (_TEXT, _BIGINT), _TEXT, left),
    _plain("right", (_TEXT, _BIGINT), _TEXT, right),
    *(
        _plain(name, (_TEXT,), _TEXT, compute)
        for name, compute in (("btrim", btrim), ("ltrim", ltrim), ("rtrim", rtrim))
    ),
    *(
        _plain(name, (_TEXT, _TEXT), _TEXT, compute)
        for name, compute in (("btrim", btrim), ("ltrim", ltrim), ("rtrim", rtrim))
    ),
    _pattern("like", (_TEXT,), _BOOLEAN, like),
    _pattern("like", (_TEXT, _TEXT), _BOOLEAN, like),
    _pattern("ilike", (_TEXT,), _BOOLEAN, ilike),
    _pattern("ilike", (_TEXT, _TEXT), _BOOLEAN, ilike),
    _pattern("regexp_like", (_TEXT,), _BOOLEAN, regexp_like),
    _pattern("regexp_like", (_TEXT, _TEXT), _BOOLEAN, regexp_like),
    _pattern("regexp_substr", (_TEXT,), _TEXT, regexp_substr),
    _pattern("regexp_substr", (_TEXT, _BIGINT), _TEXT, regexp_substr),
    _pattern("regexp_substr", (_TEXT, _BIGINT, _BIGINT), _TEXT, regexp_substr),
    _pattern("regexp_substr", (_TEXT, _BIGINT, _BIGINT, _TEXT), _TEXT, regexp_substr),
    _pattern("regexp_substr", (_TEXT, _BIGINT, _BIGINT, _TEXT, _BIGINT), _TEXT, regexp_substr),
    _pattern("regexp_replace", (_TEXT, _TEXT), _TEXT, regexp_replace),
    _pattern("regexp_replace", (_TEXT, _TEXT, _TEXT), _TEXT, regexp_replace),
)
