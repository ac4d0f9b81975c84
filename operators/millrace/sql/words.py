"""Syntax errors in plain words: the actual word and the expected ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from millrace.sql.dialects import REFUSED, find_phrase, guided
from millrace.sql.errors import SqlError, did_you_mean

_SIGNS = {
    "LPAR": "'('", "RPAR": "')'", "COMMA": "','", "DOT": "'.'", "SEMICOLON": "';'", "LSQB": "'['", "RSQB": "']'",
    "EQUAL": "'='", "STAR": "'*'", "STRING": "a text in quotes", "NUMBER": "a number", "$END": "the end",
}  # fmt: skip
_NAMES = {"IDENTIFIER", "QUOTED"}
# Terminals that continue an expression. Listing each would hide the word that matters.
_OPERATORS = {
    "AND", "OR", "IS", "IN", "BETWEEN", "LIKE", "ILIKE", "NOT", "COMPARISON", "EQUAL", "PLUS", "MINUS", "STAR", "SLASH",
    "PERCENT", "CONCAT", "__ANON_0",
}  # fmt: skip
# Terminals that can start an expression, in addition to a name.
_BEGINNINGS = {"NUMBER", "STRING", "CASE", "CAST", "NULL", "TRUE", "FALSE", "INTERVAL", "TIMESTAMP"}
_SHOWN = 8
_SHOWN_OF_A_WORD = 60
_ANALYZE = re.compile(r"\bEXPLAIN\s+ANALYZE\s+(QUERY\s+)?\Z", re.IGNORECASE)
# Words that start a statement, which are never misspelt forms of others.
_HEADS = frozenset(("CREATE", "ALTER", "DROP", "SELECT", "INSERT", "SHOW", "DESCRIBE", "EXPLAIN"))
# The main words of a statement: an alias similar to one of these is probably a misspelt word.
_CLAUSES = [
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "UNION",
    "SELECT",
    "JOIN",
    "FOLLOWED",
    "LATEST",
    "WITH",
    "AND",
    "OR",
    "NOT",
    "BETWEEN",
]


def explain_unexpected(text: str, error: UnexpectedInput) -> SqlError:
    """A parser's error as a sentence."""
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            elsewhere = find_phrase(text, len(text.rstrip()))
            if elsewhere is not None:
                return SqlError(text, *elsewhere)
            return SqlError(text, len(text.rstrip()), f"expected {_list_terminals(error.accepts)} here, got the end")
        at = error.token.start_pos or 0
        elsewhere = find_phrase(text, at)
        if elsewhere is not None:
            return SqlError(text, *elsewhere)
        if text.startswith("/*", at):
            return SqlError(text, at, "this comment is never closed: expected */")
        sentence = _sentence(_plannable(str(error.token)), error.accepts or ())
        has_hint = "did you mean" in sentence
        hint = _advice(text, at)
        return SqlError(text, at, hint or (sentence if has_hint else sentence + _misspelt_before(text[:at])))
    if isinstance(error, UnexpectedEOF):
        return SqlError(text, len(text), "the statement ends too early")
    at = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters):
        letter = text[at : at + 1]
        if letter in "'\"":
            return SqlError(text, at, f"this quote is never closed: expected another {letter}")
        elsewhere = find_phrase(text, at)
        if elsewhere is not None:
            return SqlError(text, *elsewhere)
        return SqlError(text, at, f"expected {_list_terminals(error.allowed or ())}, got {_word_at(text, at)}")
    return SqlError(text, at, "this is not SQL that Millrace understands")


def _advice(text: str, at: int) -> str:
    """Advice for a word that has a meaning in other SQL systems, or in another place, but not here."""
    statement, word = text[:at].rpartition(";")[2], _word_at(text, at).upper()
    if word == "USING":
        if not text[at + len(word) :].lstrip().startswith("("):
            return "USING names the queue of LATEST: expected LATEST before it, as in LATEST USING FIFO"
        *before, table = re.split(r"\b(?:JOIN|FOLLOWED\s+BY)\b", statement, flags=re.IGNORECASE)
        if before and table.strip() and not re.search(r"\bON\b", table, re.IGNORECASE):
            return guided("USING is not supported: write ON and the equality of the columns, such as ON a.k = b.k")
    if word in ("SELECT", "WITH") and _ANALYZE.search(statement):
        return "EXPLAIN ANALYZE measures a query that runs: write its name, or remove ANALYZE for the plan of a SELECT"
    return ""


def _misspelt_before(text: str) -> str:
    """A misspelt keyword that the parser read as an alias: `SELECT a FRM s` fails at s."""
    word = re.search(r"(\w+)\Z", text.rstrip()[-_SHOWN_OF_A_WORD:])
    if word is None or word[1].upper() in _CLAUSES:
        return ""
    near = difflib.get_close_matches(word[1].upper(), _CLAUSES, n=1, cutoff=0.7)
    return f"; did you mean {near[0]} instead of {word[1]}?" if near else ""


def _plannable(word: str) -> str:
    return word if len(word) <= _SHOWN_OF_A_WORD else word[:_SHOWN_OF_A_WORD] + "..."


def _sentence(got: str, accepts: Iterable[str]) -> str:
    accepts = _suggestions(accepts)
    words = [word.strip("_") for word in accepts if word not in _SIGNS and word not in _NAMES]
    near = "" if got.upper() in _HEADS else did_you_mean(got.upper(), words)
    return f"expected {_list_terminals(accepts)}, got {got}{near}"


def _suggestions(accepts: Iterable[str]) -> set[str]:
    """The terminals without those that the planner refuses. ORDER is valid only in OVER, where LIMIT is not."""
    accepts = set(accepts)
    refused = REFUSED | {"ORDER"} if "LIMIT" in accepts else REFUSED
    return {word for word in accepts if word.strip("_") not in refused}


def _list_terminals(accepts: Iterable[str]) -> str:
    """The terminals as a list for people, with the parts of an expression under one word."""
    accepts = _suggestions(accepts)
    shown: list[str] = []
    if accepts >= _NAMES:
        if accepts >= _BEGINNINGS:
            shown.append("an expression")
            accepts -= _BEGINNINGS | {
                "LITERALS",
                "MINUS",
                "PLUS",
                "LPAR",
                "NOT",
                "POSITION",
                "SUBSTRING",
                "TRIM",
                "EXTRACT",
            }
        else:
            shown.append("a name")
            accepts = {terminal for terminal in accepts if terminal in _SIGNS or terminal.startswith("_")}
        accepts -= _NAMES
        accepts = {terminal for terminal in accepts if terminal in _SIGNS or terminal.startswith("_")}
    if accepts >= {"PLUS", "AND"} or accepts >= {"PLUS", "STAR"}:
        shown.append("an operator")
        accepts -= _OPERATORS
    words = sorted({_spell(terminal) for terminal in accepts if not terminal.startswith("__")})
    shown = words[: _SHOWN - len(shown)] + shown
    return " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0] if shown else "nothing more"


def _spell(terminal: str) -> str:
    return _SIGNS.get(terminal, terminal.strip("_"))


def _word_at(text: str, at: int) -> str:
    end = at
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return _plannable(text[at : max(end, at + 1)]) or "the end"
