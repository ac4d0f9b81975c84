"""What the changes of single operators have in common: the rows that an operator keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple
from zlib import crc32

from pydantic import Field

from millrace.changes.change import Change
from millrace.changes.restoring import restored
from millrace.changes.state import ControlState
from millrace.engine.engine import Engine
from millrace.operators.filter.spec import SelectSpec
from millrace.operators.frame.spec import Spec
from millrace.operators.sample.spec import SampleSpec
from millrace.protocol import Refuse, Schema
from millrace.sql import condition
from millrace.values.expression import Expression

# On the command line: the options that choose rows, and words for their values.
ROW_CHOICES: Final = ("where", "sample")
ROW_METAVARS: Final = {"where": "CONDITION", "sample": "SHARE"}
ROW_NEEDS: Final = {"seed": "sample"}


class EditFacts(NamedTuple):
    """The columns at the operator's place, or the refusal of that place, and the query without this edit."""

    schema: Schema | Refuse
    inverse: tuple[Change, ...]


class RowChoice(Change):
    """The rows that an operator passes: by a condition, or a random share."""

    where: Annotated[
        str | None,
        Field(max_length=100_000, description="A condition over the columns of the input, as after WHERE."),
    ] = None
    sample: Annotated[
        float | None,
        Field(gt=0, lt=1, allow_inf_nan=False, description="The share of rows that pass, drawn at random."),
    ] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**32, description="The seed of the random numbers.")] = None

    def spec(self, state: ControlState, facts: EditFacts, place: str) -> Spec:
        """The operator."""
        if isinstance(facts.schema, Refuse):
            raise facts.schema
        schema = facts.schema
        if self.seed is not None and self.sample is None:
            raise Refuse("seed: only a sample draws at random", code="bad_edit")
        return row_spec(self.where, self.sample, self.seed, place, lambda where: condition(where, schema, state.limits))


def row_spec(
    where: str | None, sample: float | None, seed: int | None, place: str, bind: Callable[[str], Expression]
) -> Spec:
    """The operator that keeps these rows; `bind` plans a condition. Two samples must not draw the same lots; the same
    one draws the same ones wherever it is."""
    if (where is None) == (sample is None):
        raise Refuse("expected either a condition (where) or a share (sample)", code="bad_edit")
    if where is not None:
        return SelectSpec(bind(where))
    assert sample is not None
    return SampleSpec(sample, crc32(place.encode()) if seed is None else seed)


def edit_facts(engine: Engine, operator: str, schema: Any) -> EditFacts:
    """The facts at an operator's place; `schema` finds its columns."""
    try:
        columns: Schema | Refuse = schema()
    except Refuse as refused:
        columns = refused
    return EditFacts(columns, restored(engine, operator.partition(".")[0]))
