"""Functions of text and bytes. Positions count characters from 1, as PostgreSQL's do.

They run row by row: Python's strings are what the columns hold. What depends on a constant alone (a pattern, say) is
prepared once. Patterns are Python's regular expressions; a dot matches a newline too unless the flag `n` is given, as
in PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from millrace.operators.batch import Batch, object_array
from millrace.operators.functions.faults import REASONS, Fault, RowFault
from millrace.operators.functions.library import ALWAYS, NEVER, Function, Make, each_row
from millrace.operators.functions.vectors import Faults, Operand, Run, Vector, first_fault
from millrace.protocol import Refuse, Type

_TEXT, _BYTES, _BIGINT, _BOOLEAN = Type.TEXT, Type.BYTES, Type.BIGINT, Type.BOOLEAN
# Patterns that come from a column are compiled once each while they are in use.
_PATTERNS_KEPT = 512

# -- plain functions ---------------------------------------------------------------------------------------------------


def octet_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


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
    parts = text.split(delimiter) if delimiter else [text]
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def left(text: str, count: int) -> str:
    return text[:count]


def right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def btrim(text: str, characters: str = " ") -> str:
    return text.strip(characters) if characters else text


def ltrim(text: str, characters: str = " ") -> str:
    return text.lstrip(characters) if characters else text


def rtrim(text: str, characters: str = " ") -> str:
    return text.rstrip(characters) if characters else text


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
            return each_row(result, fixed)([text])
        return each_row(result, row)(operands)

    return make


def _complaint(error: RowFault, values: Sequence[Any]) -> str:
    return f"{REASONS[error.fault]}: {', '.join(f'{value!r:.60}' for value in values)}"


def like(pattern: str, escape: str = "\\") -> Prepared:
    return _like(pattern, escape, fold=False)


def ilike(pattern: str, escape: str = "\\") -> Prepared:
    return _like(pattern, escape, fold=True)


def _like(pattern: str, escape: str, fold: bool) -> Prepared:
    """The usual shapes (no wildcard, or % at an end) by Python's own searches, the others by a regular expression."""
    parts = _like_parts(pattern, escape)
    wild = [index for index, part in enumerate(parts) if part is None or part is ANY_ONE]
    text = "".join(part for part in parts if isinstance(part, str))
    if not fold and all(parts[index] is None for index in wild):
        last = len(parts) - 1
        if not wild:
            return text.__eq__
        if wild == [last]:
            return lambda value: value.startswith(text)
        if wild == [0]:
            return lambda value: value.endswith(text)
        if wild == [0, last]:
            return lambda value: text in value
    regex = "".join(".*" if part is None else "." if part is ANY_ONE else re.escape(str(part)) for part in parts)
    match = re.compile(regex, re.DOTALL | (re.IGNORECASE if fold else 0)).fullmatch
    return lambda value: match(value) is not None


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


def _regex(pattern: str, flags: str) -> re.Pattern[str]:
    options = re.DOTALL
    for flag in flags:
        match flag:
            case "i":
                options |= re.IGNORECASE
            case "c":
                options &= ~re.IGNORECASE
            case "n" | "m":
                options = (options | re.MULTILINE) & ~re.DOTALL
            case "s":
                options |= re.DOTALL
            case "x":
                options |= re.VERBOSE
            case _:
                raise RowFault(Fault.BAD_ARGUMENT)
    try:
        return re.compile(pattern, options)
    except (re.error, OverflowError, RecursionError):
        raise RowFault(Fault.BAD_PATTERN) from None


def regexp_like(pattern: str, flags: str = "") -> Prepared:
    search = _regex(pattern, flags).search
    return lambda text: search(text) is not None


def regexp_substr(pattern: str, start: int = 1, number: int = 1, flags: str = "", group: int = 0) -> Prepared:
    """The match of that number at or after a position, or one of its groups; null if there is none."""
    regex = _regex(pattern, flags)
    if start < 1 or number < 1 or not 0 <= group <= regex.groups:
        raise RowFault(Fault.BAD_ARGUMENT)
    if start == 1 and number == 1:
        search = regex.search

        def first(text: str) -> str | None:
            match = search(text)
            return match[group] if match else None

        return first

    def nth(text: str) -> str | None:
        for count, match in enumerate(regex.finditer(text, min(start - 1, len(text))), 1):
            if count == number:
                return match[group]
        return None

    return nth


def regexp_replace(pattern: str, replacement: str, flags: str = "") -> Prepared:
    """The first match replaced, or all with the flag `g`. `\\1` is a group and `\\&` the whole match."""
    regex = _regex(pattern, flags.replace("g", ""))
    parts = _replacement_parts(replacement, regex.groups)
    count = 0 if "g" in flags else 1

    def expand(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)

    return lambda text: regex.sub(expand, text, count=count)


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
    """All arguments one after another; a null is an empty text, which is what its filler is."""
    runs = [operand.run for operand in operands]

    def run(batch: Batch) -> Vector:
        faults: Faults | None = None
        columns = []
        for one in runs:
            values, _, failed = one(batch)
            columns.append(values.tolist())
            faults = first_fault(faults, failed)
        return object_array(["".join(row) for row in zip(*columns, strict=True)]), None, faults

    return run


def _joined(operands: Sequence[Operand]) -> Run:
    return each_row(operands[0].type, lambda a, b: a + b)(operands)


# -- the table ---------------------------------------------------------------------------------------------------------


def _plain(name: str, arguments: tuple[Type, ...], result: Type, compute: Callable[..., Any]) -> Function:
    return Function(name, arguments, result, each_row(result, compute))


def _pattern(name: str, extra: tuple[Type, ...], result: Type, prepare: Callable[..., Prepared]) -> Function:
    nullable = ALWAYS if prepare is regexp_substr else any
    return Function(name, (_TEXT, *extra), result, prepared(result, prepare), nullable=nullable)


FUNCTIONS: Sequence[Function] = (
    Function("||", (_TEXT, _TEXT), _TEXT, _joined),
    Function("||", (_BYTES, _BYTES), _BYTES, _joined),
    Function("concat", (_TEXT,), _TEXT, concat, variadic=True, nullable=NEVER),
    *(_plain(name, (_TEXT,), _BIGINT, len) for name in ("length", "char_length", "character_length")),
    _plain("length", (_BYTES,), _BIGINT, len),
    _plain("octet_length", (_TEXT,), _BIGINT, octet_length),
    _plain("octet_length", (_BYTES,), _BIGINT, len),
    _plain("lower", (_TEXT,), _TEXT, str.lower),
    _plain("upper", (_TEXT,), _TEXT, str.upper),
    _plain("replace", (_TEXT, _TEXT, _TEXT), _TEXT, replace),
    *(_plain(name, (_TEXT, _BIGINT), _TEXT, substring) for name in ("substring", "substr")),
    *(_plain(name, (_TEXT, _BIGINT, _BIGINT), _TEXT, substring) for name in ("substring", "substr")),
    _plain("position", (_TEXT, _TEXT), _BIGINT, position),
    _plain("strpos", (_TEXT, _TEXT), _BIGINT, strpos),
    _plain("split_part", (_TEXT, _TEXT, _BIGINT), _TEXT, split_part),
    _plain("starts_with", (_TEXT, _TEXT), _BOOLEAN, str.startswith),
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
