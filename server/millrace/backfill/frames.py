"""Inputs that Spark reads, and a stream's rows in the columns of its lane.

Only types change here, as for Arrow frames in the daemon: Spark computes no expression of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from millrace.backfill.assign import BYTES_MARK, NULL, SEPARATOR, TEXT_MARK
from millrace.backfill.inputs import TABLE, Input, check_columns
from millrace.backfill.layout import SEQUENCE, TIME, Lane
from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import EVENT_TIME
from millrace.history.files import ARRIVED, FEED, IMPLICIT_TIME, LATE, MARK
from millrace.history.files import SEQUENCE as SEQ
from millrace.protocol import Refuse, Type
from millrace.protocol.timestamps import FIRST_US, LAST_US
from millrace.protocol.units import MICROSECONDS
from millrace.values import expression as e
from millrace.values.eventtime import MAX_TIME, MIN_TIME
from millrace.values.expression import Expression

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SPARK_TYPES: Final = {
    Type.BOOLEAN: "boolean",
    Type.BIGINT: "bigint",
    Type.DOUBLE: "double",
    Type.TEXT: "string",
    Type.BYTES: "binary",
    Type.TIMESTAMP: "bigint",
}


def read_input(session: SparkSession, one: Input, stream: StreamDefinition) -> DataFrame:
    """A table, or files of text; `reading.py` reads Parquet."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if one.format == "table":
        found = session.table(one.path.removeprefix(TABLE))
        columns = {field.name: field.type for field in to_arrow_schema(found.schema, timezone="UTC")}
        check_columns(columns, stream, one.path)
        return found
    return _text(session, one, stream)


def _text(session: SparkSession, one: Input, stream: StreamDefinition) -> DataFrame:
    """CSV or JSON lines, as `millrace run` reads them: times are numbers or ISO 8601. They become timestamps."""
    from pyspark.sql import functions as f

    kinds = {**_SPARK_TYPES, Type.TIMESTAMP: "string", Type.BYTES: "string"}
    schema = ", ".join(f"`{field.name}` {kinds[field.type]}" for field in stream.schema)
    reader = session.read.schema(schema).option("mode", "FAILFAST")
    paths = [part.path for part in one.parts]
    frame = reader.option("header", "true").csv(paths) if one.format == "csv" else reader.json(paths)
    for field in stream.schema:
        column = f.col(f"`{field.name}`")
        if field.type is Type.TIMESTAMP:
            frame = frame.withColumn(field.name, _time_of_text(field.name, stream))
        elif field.type is Type.BYTES:
            digits = f.unhex(f.regexp_replace(column, r"^\\x", ""))
            if one.format != "csv":
                digits = f.when(column.startswith("\\x"), digits).otherwise(f.unbase64(column))
            frame = frame.withColumn(field.name, digits)
    return frame


def _time_of_text(name: str, stream: StreamDefinition) -> Column:
    """A time that was written as a number or in ISO 8601, as microseconds."""
    from pyspark.sql import functions as f

    column, unit = f.col(f"`{name}`"), stream.unit_of(name)
    integer = column.rlike(r"^\s*[+-]?\d+\s*$")
    if unit is MICROSECONDS:
        return f.when(integer, column.cast("bigint")).otherwise(f.unix_micros(f.to_timestamp(column)))
    times = f.when(integer, f.timestamp_micros(counted_micros(column.cast("bigint"), "bigint", name, stream)))
    if unit.fractions:
        decimal = column.rlike(r"^\s*[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?\s*$")
        fractions = counted_micros(column.cast("double"), "double", name, stream)
        times = times.when(decimal, f.timestamp_micros(fractions))
    return times.otherwise(f.to_timestamp(column))


def counted_micros(column: Column, kind: str, name: str, stream: StreamDefinition) -> Column:
    """Numbers of a stream's time field as microseconds, by the arithmetic of `TimeUnit.micros`."""
    from pyspark.sql import functions as f

    unit = stream.unit_of(name)
    if unit.denominator > 1:
        number = column.cast("bigint")
        rest = f.pmod(number, f.lit(unit.denominator))
        down = f.when((number < 0) & (rest != 0), 1).otherwise(0)
        return f.call_function("div", number, f.lit(unit.denominator)) - down
    refusal = f.concat(
        f.lit(f"stream {stream.name}, field {name}: expected {EVENT_TIME}, got "),
        column.cast("string"),
        f.lit(f" {unit.words}"),
    )
    if kind in ("double", "float"):
        inside = column.between(FIRST_US / unit.numerator, LAST_US / unit.numerator)
        whole = f.when(column < 0, f.ceil(column)).otherwise(f.floor(column)).cast("bigint")
        micros = whole * unit.numerator + f.rint((column - whole) * unit.numerator).cast("bigint")
    else:
        inside = column.between(-(-FIRST_US // unit.numerator), LAST_US // unit.numerator)
        micros = column.cast("bigint") * unit.numerator
    return f.when(column.isNull(), None).when(inside, micros).otherwise(f.raise_error(refusal).cast("bigint"))


# -- a stream's rows ---------------------------------------------------------------------------------------------------


def lane_rows(lane: Lane, origin: StreamDefinition, frame: DataFrame, low_us: int, high_us: int) -> DataFrame:
    """A stream's rows between two times: those that were on time, or of a side stream those that were late.

    `origin` is the stream whose rows the frame holds, also if its late ones are wanted.
    """
    from pyspark.sql import functions as f

    stream = lane.stream
    late = stream.name != origin.name
    if LATE in frame.columns:
        frame = frame.where(f.col(LATE) if late else ~f.col(LATE))
    elif late:
        kinds = {TIME: "bigint", SEQUENCE: "bigint"}
        kinds |= {slot: _SPARK_TYPES[field.type] for slot, field in zip(lane.slots, lane.fields, strict=True)}
        nothing = frame.where(f.lit(False))
        return nothing.select(*(f.lit(None).cast(kind).alias(name) for name, kind in kinds.items()))
    if SEQ not in frame.columns:
        frame = _numbered(frame)
    time = _micros(frame, ARRIVED if late else stream.time or IMPLICIT_TIME, origin)
    if low_us != MIN_TIME:
        frame = frame.where(time >= f.lit(low_us))
    if high_us != MAX_TIME:
        frame = frame.where(time < f.lit(high_us))
    columns = {TIME: time, SEQUENCE: f.col(SEQ).cast("bigint")}
    for at, slot in zip(lane.positions, lane.slots, strict=True):
        field = stream.schema.fields[at]
        columns[slot] = _late_fact(frame, stream, origin, at) if late else _value(frame, field.name, field.type, origin)
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def _numbered(frame: DataFrame) -> DataFrame:
    """The rows with numbers of their own, in the order in which Spark reads them."""
    from pyspark.sql import functions as f

    return frame.withColumn(SEQ, f.monotonically_increasing_id())


def key_number(key: Sequence[Expression], slots: Mapping[int, str], tasks: int) -> Column | None:
    """The task of a row by its key, as `assign.key_numbers` has it, if the key's columns are spelled alike by Spark.

    Computed keys have none: only the engine evaluates expressions.
    """
    from pyspark.sql import functions as f

    if not key:
        return f.pmod(f.col(TIME), f.lit(tasks)).cast("int")
    parts: list[Column] = []
    for expression in key:
        if not isinstance(expression, e.Column) or expression.position not in slots:
            return None
        column = f.col(slots[expression.position])
        match expression.type:
            case Type.BIGINT | Type.TIMESTAMP:
                spelled = column.cast("string").cast("binary")
            case Type.BOOLEAN:
                spelled = column.cast("int").cast("string").cast("binary")
            case Type.TEXT:
                spelled = f.concat(f.lit(bytearray(TEXT_MARK)), column.cast("binary"))
            case Type.BYTES:
                spelled = f.concat(f.lit(bytearray(BYTES_MARK)), column)
            case _:
                return None
        parts += [f.lit(bytearray(SEPARATOR)), f.coalesce(spelled, f.lit(bytearray(NULL)))]
    return (f.crc32(f.concat(*parts[1:])) % tasks).cast("int")


def _late_fact(frame: DataFrame, stream: StreamDefinition, origin: StreamDefinition, at: int) -> Column:
    """A column of a side stream: the tuple's own, or how late, against which mark, of which feed, and when."""
    from pyspark.sql import functions as f

    own = len(origin.schema)
    if at < own:
        field = stream.schema.fields[at]
        return _value(frame, field.name, field.type, origin)
    name = ("late_by_us", MARK, FEED, ARRIVED)[at - own]
    if name == FEED:
        return f.col(FEED)
    if name != "late_by_us":
        return _micros(frame, name, origin)
    return _micros(frame, MARK, origin) - _micros(frame, origin.time or IMPLICIT_TIME, origin)


def _value(frame: DataFrame, name: str, type_: Type, stream: StreamDefinition) -> Column:
    from pyspark.sql import functions as f

    if name not in frame.columns:
        return f.lit(None).cast(_SPARK_TYPES[type_])  # the stream got it later
    if type_ is Type.TIMESTAMP:
        return _micros(frame, name, stream)
    return f.col(f"`{name}`").cast(_SPARK_TYPES[type_])


def _micros(frame: DataFrame, name: str, stream: StreamDefinition) -> Column:
    """A time as integer microseconds. Numbers of the stream's time field count in its unit."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    kind = frame.schema[name].dataType.typeName()
    if kind == "timestamp":
        return f.unix_micros(column)
    if kind == "timestamp_ntz":
        zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
        if zone not in ("UTC", "Etc/UTC", "Z", "+00:00"):
            raise Refuse(
                f"column {name} has no time zone, and the time zone of the session is {zone}: set "
                "spark.sql.session.timeZone to UTC",
                code="schema",
            )
        return f.unix_micros(column.cast("timestamp"))
    if stream.unit_of(name) is not MICROSECONDS:
        return counted_micros(column, kind, name, stream)
    return column.cast("bigint")
