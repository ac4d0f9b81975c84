"""Inputs that Spark reads: tables, and the DataFrames of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.backfill.inputs import TABLE, Input, check_columns
from millrace.engine.plan import StreamDefinition
from millrace.history.files import ARRIVED, IMPLICIT_TIME, LATE, MARK
from millrace.protocol import Refuse
from millrace.values.eventtime import MAX_TIME, MIN_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_spark_table(session: SparkSession, one: Input, stream: StreamDefinition) -> DataFrame:
    """The rows of a table that Spark knows."""
    found = session.table(one.path.removeprefix(TABLE))
    check_frame(found, stream, one.path)
    return found


def check_frame(frame: DataFrame, stream: StreamDefinition, where: str) -> None:
    """Refuse a frame whose columns do not fit the stream."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = {field.name: field.type for field in to_arrow_schema(frame.schema, timezone="UTC")}
    check_columns(columns, stream, where)
    times = (*stream.schema.names, IMPLICIT_TIME, ARRIVED, MARK)
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    for field in frame.schema.fields:
        local = field.dataType.typeName() == "timestamp_ntz" and field.name in times
        if local and zone not in ("UTC", "Etc/UTC", "Z", "+00:00"):
            raise Refuse(
                f"column {field.name} has no time zone, and the time zone of the session is {zone}: set "
                "spark.sql.session.timeZone to UTC",
                code="schema",
            )


def selected(
    frame: DataFrame, names: Sequence[str], time: str, low_us: int, high_us: int, *, late: bool = False
) -> DataFrame:
    """These columns as far as the frame has them, of rows that are needed. A source of Spark's may use the bounds of
    times to read less; rows outside them are dropped later anyway."""
    from pyspark.sql import functions as f

    if LATE in frame.columns:
        frame = frame.where(f.col(LATE) if late else ~f.col(LATE))
    elif late:
        frame = frame.where(f.lit(False))
    column = f.col(f"`{time}`")
    if not late and frame.schema[time].dataType.typeName() == "timestamp":
        if low_us != MIN_TIME:
            frame = frame.where(column >= f.timestamp_micros(f.lit(low_us)))
        if high_us != MAX_TIME:
            frame = frame.where(column < f.timestamp_micros(f.lit(high_us)))
    return frame.select(*(f.col(f"`{name}`") for name in names if name in frame.columns))
