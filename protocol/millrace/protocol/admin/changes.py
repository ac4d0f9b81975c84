"""The answers to changes: what each has done, what a plan would do, and the ledger of those that were applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millrace.protocol.admin.data import key, sparse
from millrace.protocol.admin.operators import LinkView
from millrace.protocol.admin.queries import MeasuredView, SharedView
from millrace.protocol.admin.streams import Columns

Fate = Literal["stays", "changes", "appears", "goes"]


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FateView:
    """What becomes of a stream or of a component."""

    name: str
    change: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFateView:
    """What becomes of an operator and of its state: `was` is its name before, if that differs."""

    operator: str
    was: str | None
    kind: str
    change: Fate
    state: str | None
    state_tuples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFateView:
    """What becomes of a query: `was` is its name before, if it is renamed."""

    name: str
    was: str | None
    change: Fate
    operators: Sequence[OperatorFateView]
    shared: Sequence[SharedView]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsView:
    """A component that is made of others, or becomes others."""

    component: str
    parts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRowView:
    """A row of a state table before or after a change."""

    component: str | None
    state: str
    pred: Sequence[str]
    succ: Sequence[str]
    transition: str
    chain: LinkView | None = sparse()
    break_: str | None = field(metadata=key("break"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTablesView:
    """The rows of the state tables that a change makes different."""

    before: Sequence[PlannedRowView]
    after: Sequence[PlannedRowView]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What changes would do."""

    streams: Sequence[FateView]
    queries: Sequence[QueryFateView]
    components: Sequence[FateView]
    merges: Sequence[PartsView]
    splits: Sequence[PartsView]
    table: PlannedTablesView


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedView:
    """The answer to a change that is only planned."""

    dry_run: bool
    plan: PlanView


# -- what a change has done --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStreamReply:
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReply:
    """The policies of a stream that have changed, and its new columns."""

    stream: str
    changed: Sequence[str]
    added: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnReply:
    """A renamed column, and the queries whose texts have changed with it."""

    stream: str
    column: str
    previous: str
    rewritten: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDropReply:
    stream: str
    dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueryReply:
    """A new query, and its component."""

    query: str
    component: str | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceReply:
    """A replaced query: the operators that continue with their state, those that are new, and those that are gone."""

    query: str
    kept: Sequence[str]
    new: Sequence[str]
    gone: Sequence[str]
    component: str | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameReply:
    query: str
    was: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDropReply:
    query: str
    dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseReply:
    """A paused query, and the reason."""

    query: str
    paused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReply:
    """A query that runs again, and the tuples that it skipped."""

    query: str
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshareReply:
    """The operators that a query does not share any more."""

    query: str
    operators: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReply:
    """The order of each join of a query."""

    query: str
    orders: Mapping[str, str]
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDropReply:
    sink: str
    dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyReply:
    component: str
    strategy: str
    operator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReply:
    component: str
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakReply:
    operator: str
    break_: bool = field(metadata=key("break"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReply:
    """The queue of an input, and the tuples that the change has superseded and shed."""

    operator: str
    input: int
    kind: str
    superseded: int
    shed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertReply:
    """A new operator, and the input that it is in front of."""

    operator: str
    before: str
    input: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeReply:
    """A replaced operator, and the tuples of its state that are forgotten."""

    operator: str
    forgotten: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReply:
    operator: str
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReply:
    """A query whose history is not read any more; one that is live already stays."""

    query: str
    cancelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesView:
    """Changes that were applied as one: their number in the ledger, and the answer of each."""

    dry_run: bool
    number: int | None
    outcomes: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoView:
    """A change that was undone, the changes that undo it, and what they do not bring back: applied under `number`, or
    only planned."""

    dry_run: bool
    undoes: int
    text: str
    lost: str | None
    changes: Sequence[Mapping[str, Any]]
    plan: PlanView | None = sparse()
    number: int | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntryView:
    """Changes that were applied as one: their number, when, and by whom: the name of a token, and its client's address.

    text       a sentence
    inverse    the changes that undo it; None if nothing does
    lost       why nothing does, or what undoing it does not bring back
    undoes     the number of the change that it has undone, and `undone_by` of the one that has undone it
    """

    number: int
    at_us: int
    author: str
    text: str
    changes: Sequence[Mapping[str, Any]]
    inverse: Sequence[Mapping[str, Any]] | None
    lost: str | None
    undoes: int | None
    undone_by: int | None
    client: str = ""


# -- completion --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionItemView:
    """A text that can stand at the cursor: its kind (`keyword`, `stream`, `query`, `sink`, `column`, `function` or
    `option`), and a word about it."""

    text: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionView:
    """The items, and where the text begins that they replace."""

    from_: int = field(metadata=key("from"))
    items: Sequence[CompletionItemView]


# -- statements --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnView:
    """A column in DESCRIBE."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementView:
    """The outcome of a statement. Only those fields are there that apply to its kind.

    was                the name before RENAME
    renamed            by former name, the name of a column
    added, changes     of ALTER STREAM; `rewritten` are the queries whose texts it has changed
    unchanged          whether an object of this definition was there already; `reason` says so
    of                 the kind of the object that DESCRIBE shows, with `columns`, `options`, `reads`
    text               of EXPLAIN and SHOW CREATE; of a running query also the fields of its plan
    temporary, limit   of a SELECT
    rows, late         of INSERT
    items              of SHOW, as the API lists them
    before, after      the object's definition on the server and in a file that is all that the server is to define
    """

    kind: str
    name: str
    was: str | None = sparse()
    renamed: Mapping[str, str] | None = sparse()
    added: Sequence[str] | None = sparse()
    rewritten: Sequence[str] | None = sparse()
    changes: Mapping[str, Any] | None = sparse()
    fields: Columns | None = sparse()
    replaces: bool | None = sparse()
    unchanged: bool | None = sparse()
    of: str | None = sparse()
    columns: Sequence[ColumnView] | None = sparse()
    options: Mapping[str, Any] | None = sparse()
    reads: Sequence[str] | None = sparse()
    query: str | None = sparse()
    text: str | None = sparse()
    sql: str | None = sparse()
    shared: Sequence[SharedView] | None = sparse()
    state: str | None = sparse()
    reason: str | None = sparse(nullable=True)
    warnings: Sequence[str] | None = sparse()
    temporary: bool | None = sparse()
    limit: int | None = sparse(nullable=True)
    seconds: float | None = sparse()
    operators: Sequence[MeasuredView] | None = sparse()
    rows: int | None = sparse()
    late: int | None = sparse()
    items: Sequence[Mapping[str, Any]] | None = sparse()
    before: str | None = sparse(nullable=True)
    after: str | None = sparse(nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlView:
    """The outcomes of statements, and what they would do if they are only planned."""

    dry_run: bool
    statements: Sequence[StatementView]
    plan: PlanView | None = sparse()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """Why statements cannot be applied, and where their text has an error."""

    code: str
    detail: str
    line: int | None
    column: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """What statements would do, or why they cannot be applied."""

    problem: FaultView | None
    statements: Sequence[StatementView]
    plan: PlanView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewInputView:
    """The tuples of a stream that a preview is made of, and when the first and the last arrived."""

    stream: str
    tuples: int
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceView:
    """What a query cost in its preview: processor time per tuple, and its state after so many tuples."""

    tuples: int
    us_per_tuple: float | None
    state_tuples: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    """The newest rows of a query over the newest tuples of its streams, or why there are none.

    `emitted` counts all rows; the last `open` of them would wait for later tuples. `failed`
    rows could not be computed, for a `reason` such as the last. `cut` says which bound ended it early.
    """

    problem: FaultView | None
    query: str | None = None
    columns: Sequence[Mapping[str, str]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    emitted: int = 0
    open: int = 0
    inputs: Sequence[PreviewInputView] = ()
    failed: int = 0
    reason: str | None = None
    cut: str | None = None
    price: PriceView | None = None
