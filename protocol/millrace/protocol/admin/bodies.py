"""The bodies of requests that are not changes of one object: `changes/` has those.

Rule: the metadata of a field has its description and its bounds. The server checks them with pydantic, which reads them
from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Final

from millrace.protocol.admin.data import key

# pydantic refuses a body with other keys.
STRICT: Final[Mapping[str, Any]] = {"extra": "forbid"}
TEXT_LENGTH: Final = 1_000_000
# A text in an editor.
EDITED_LENGTH: Final = 100_000
PATH_LENGTH: Final = 10_000
NAME_LENGTH: Final = 1_000
SPAN_LENGTH: Final = 100
MOST_CHANGES: Final = 1_000
DRY_RUN: Final = "Plan and check everything, change nothing."
# The forms of a condition for reverting a trial.
FORMS: Final = (
    "'p99 > 200ms' (also mean, p50, max), 'queue > 1000' (also peak-queue), 'idle-wait > 20%', 'steps > 5000' (a "
    "second); with >, >=, < or <=; 'p99 > 1.5x' means 1.5 times the value before; join several with 'or'"
)


def given(description: str, default: Any = MISSING, **more: Any) -> Any:
    """A field of a body, of exactly this type and within these bounds."""
    return field(default=default, metadata={"description": description, "strict": True, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRequest:
    """Statements to plan, and to apply unless `dry_run` is true."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    sql: str = given("One or more statements, separated by semicolons.", max_length=TEXT_LENGTH)
    dry_run: bool = given("Plan and check everything, apply nothing.", default=False)
    idempotent: bool = given(
        "CREATE of an object that exists with the same definition succeeds unchanged.", default=False
    )
    prune: bool = given("The statements are all that the server is to define: the rest is dropped.", default=False)
    temporary: bool = given(
        "A SELECT at the end becomes a temporary query, which ends when its reader leaves.", default=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRequest:
    """A text that somebody is writing, and the place of the cursor."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    sql: str = given("The text.", max_length=EDITED_LENGTH)
    offset: int = given("The characters before the cursor.", ge=0, le=EDITED_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Statements to plan while a person writes them."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    sql: str = given("One or more statements, separated by semicolons, perhaps unfinished.", max_length=TEXT_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRequest:
    """Statements whose last query is tried on the newest tuples of its streams."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    sql: str = given("One or more statements, separated by semicolons.", max_length=EDITED_LENGTH)
    rows: int = given("Rows to return at the most: the newest.", default=100, ge=1, le=1_000)
    wait: float = given("Seconds to wait for the first tuple of each stream.", default=1.0, ge=0, le=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """Changes to apply as one: all of them, or none."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    changes: list[dict[str, Any]] = given(  # noqa: RUF009 - it returns a field
        "Each with `change`, the kind, and the fields of that kind.", min_length=1, max_length=MOST_CHANGES
    )
    dry_run: bool = given(DRY_RUN, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoRequest:
    """The change to undo."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    number: int | None = given(
        "The number of the change. Null: the newest that is not undone.", default=None, ge=1, le=2**62
    )
    dry_run: bool = given(DRY_RUN, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """A query that starts with the history of its streams."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    sql: str = given("CREATE QUERY with a new name, and optionally CREATE SINK for it.", max_length=TEXT_LENGTH)
    margin_us: int | None = given(
        "The total look-back and look-ahead of its operators. The server reads history from this far before the marks "
        "(watermarks) of the streams. Null: from the start of history.",
        default=None,
        ge=0,
        le=2**62,
    )
    out: str | None = given("The folder for the rows before its seam.", default=None, max_length=PATH_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillProgress:
    """The progress of computing the rows before the seam."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    history_us: int | None = given("All rows before this time are written.", default=None, ge=-(2**63), lt=2**63)
    done: bool = given("All rows before the seam are written.", default=False)
    out: str | None = given(
        "The folder of these rows; a different folder than before is refused.",
        default=None,
        max_length=PATH_LENGTH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """A strategy to try, the duration of the trial, and the condition for reverting it."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    strategy: str = given("dfs, bfs, rr or chain, also with (k).", max_length=SPAN_LENGTH)
    operator: str | None = given("Try it only for this operator's row.", default=None, max_length=NAME_LENGTH)
    for_: str = given("How long to try it, for example 30s.", max_length=SPAN_LENGTH, **key("for"))
    before: str | None = given(
        "How long to measure before the trial. Default: as long as `for`.", default=None, max_length=SPAN_LENGTH
    )
    revert_if: str | None = given(f"When to revert: {FORMS}.", default=None, max_length=NAME_LENGTH)
    revert: bool = given("Revert in any case.", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardRequest:
    """What a standby has on its disk: its answer to a ping."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    standby: str = given("The name that the standby has invented for itself.", min_length=1, max_length=64)
    ping: int = given("The number of the ping.", ge=0, le=2**63 - 1)
    lsn: int = given("The newest record on its disk.", ge=0, le=2**63 - 1)
    epoch: str | None = given("The epoch of a standby that was promoted.", None, max_length=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRequest:
    """Make a standby the primary."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    force: bool = given("Also while the other server still works: there are two primaries then.", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """The login of a browser."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = STRICT
    token: str = given("A token of this server.", max_length=NAME_LENGTH)
