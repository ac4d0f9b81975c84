"""The names in a PromQL expression, for tests: enough of the grammar to find metrics and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<grouping>\b(?:by|on|without|ignoring|group_left|group_right)\b\s*\([^)]*\))"""
    r"""|(?P<selector>\{(?:[^}"]|"(?:[^"\\]|\\.)*")*\})|(?P<range>\[[^\]]*\])|(?P<name>[A-Za-z_:][\w:]*)|(?P<other>\S)""",
    re.VERBOSE,
)
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
WORDS = frozenset({"and", "or", "unless", "bool", "offset"})


class ExpressionNames(NamedTuple):
    """The series that an expression reads, each with the labels that select it, and the labels for grouping."""

    series: tuple[tuple[str, frozenset[str]], ...]
    groups: frozenset[str]


def names_in(expression: str) -> ExpressionNames:
    """The names in an expression. A name before a parenthesis is a function; any other name is a series."""
    series: list[tuple[str, frozenset[str]]] = []
    groups: set[str] = set()
    tokens = list(TOKEN.finditer(expression))
    for at, token in enumerate(tokens):
        after = tokens[at + 1] if at + 1 < len(tokens) else None
        if token.lastgroup == "grouping":
            groups |= set(re.findall(r"\w+", token[0].partition("(")[2]))
        elif token.lastgroup == "name" and token[0] not in WORDS and not _calls(after):
            labels = LABEL.findall(after[0]) if after is not None and after.lastgroup == "selector" else []
            series.append((token[0], frozenset(labels)))
    return ExpressionNames(tuple(series), frozenset(groups))


def _calls(after: re.Match[str] | None) -> bool:
    return after is not None and (after[0] == "(" or after.lastgroup == "grouping")


def samples(families: object) -> Iterator[tuple[str, frozenset[str]]]:
    """The series of a registry's families, with their labels."""
    for family in families:  # type: ignore[attr-defined]
        labels = frozenset(family._labelnames)
        match family.type:
            case "counter":
                yield f"{family.name}_total", labels
            case "histogram":
                yield f"{family.name}_bucket", labels | {"le"}
                yield f"{family.name}_count", labels
                yield f"{family.name}_sum", labels
            case _:
                yield family.name, labels


def unknown(expression: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """A sentence for each unknown name in the expression."""
    names = names_in(expression)
    problems = [f"the series {name} does not exist" for name, _ in names.series if name not in known]
    there = [(name, labels) for name, labels in names.series if name in known]
    problems += [f"{name} has no label {label}" for name, labels in there for label in labels - known[name]]
    grouped = frozenset().union(*(known[name] for name, _ in there))
    return problems + [f"nothing here has the label {label}" for label in names.groups - grouped]
