"""Why a row can fail, and the sentence that says so.

The operator that computes a failed row drops and counts it; the other rows continue. The numbers travel in arrays of
one byte and never leave the process; users see the sentences. A new fault needs a number and a sentence
here and a line in `docs/sql/errors.md`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Fault(IntEnum):
    """The kind of a row's failure. 0 means no failure."""

    BIGINT_RANGE = 1
    DOUBLE_RANGE = 2
    TIMESTAMP_RANGE = 3
    INTERVAL_RANGE = 4
    DIVISION_BY_ZERO = 5
    DOMAIN = 6
    NOT_BOOLEAN = 7
    NOT_BIGINT = 8
    NOT_DOUBLE = 9
    NOT_TIMESTAMP = 10
    NOT_INTERVAL = 11
    NOT_BYTES = 12
    BAD_PATTERN = 13
    BAD_ARGUMENT = 14
    USER_FUNCTION = 15
    TOO_LONG = 16
    TOO_MUCH = 17


# The most characters of an exception in a sentence.
MOST_TEXT: Final = 300

# The sentence of USER_FUNCTION changes (`user_fault`).
REASONS: Final[dict[Fault, str]] = {
    Fault.BIGINT_RANGE: "bigint out of range: the result does not fit 64 bits",
    Fault.DOUBLE_RANGE: "double out of range: the result is not a finite number",
    Fault.TIMESTAMP_RANGE: "timestamp out of range: the result does not fit 64 bits of microseconds",
    Fault.INTERVAL_RANGE: "interval out of range: the result does not fit 64 bits of microseconds",
    Fault.DIVISION_BY_ZERO: "division by zero",
    Fault.DOMAIN: "the function is not defined for this argument",
    Fault.NOT_BOOLEAN: "cast failed: the text is not a boolean",
    Fault.NOT_BIGINT: "cast failed: the text is not a bigint",
    Fault.NOT_DOUBLE: "cast failed: the text is not a finite double",
    Fault.NOT_TIMESTAMP: "cast failed: the text is not a timestamp",
    Fault.NOT_INTERVAL: "cast failed: the text is not an interval",
    Fault.NOT_BYTES: "cast failed: the text after \\x is not pairs of hexadecimal digits",
    Fault.BAD_PATTERN: "the pattern is not valid",
    Fault.BAD_ARGUMENT: "an argument is outside the range of the function",
    Fault.USER_FUNCTION: "a user function failed",
    Fault.TOO_LONG: "the result is too long: a text has at most 16777216 characters",
    Fault.TOO_MUCH: "the pattern would take too long for this text: shorten the text, or look for fewer matches",
}


def user_fault(called: str, told: str) -> Fault:
    """The fault of a user's function, and from now on what its sentence says.

    The operator that counts failed rows reads the sentence in the same execution, so it belongs to one of them.
    """
    text = f"{called} failed: {told}"
    REASONS[Fault.USER_FUNCTION] = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
    return Fault.USER_FUNCTION


def told(error: BaseException) -> str:
    """The exception of a user's function, in one line."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # str() of the user's exception may fail too
        return name
    return f"{name}: {text}" if text else name


class RowFault(Exception):  # noqa: N818 - it marks a row, not an error of the program
    """Raised by a function that computes one row at a time, for the row at hand."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(REASONS[fault])
        self.fault = fault
