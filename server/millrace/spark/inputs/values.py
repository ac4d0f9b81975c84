"""Messages of a topic as rows of a stream: each is one row, as JSON, msgpack or a line of CSV.

Rule: a message that is not a row is refused, and the error names it by its place. Nothing is skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from millrace.engine.plan import StreamDefinition
from millrace.formats.decoder import StreamDecoder
from millrace.formats.linecolumns import LineColumns, newlines
from millrace.offline.files import located, read_object, read_opened
from millrace.protocol import Refuse, RowError
from millrace.values.batch import Batch

# The messages, and the place of each by its index, for errors.
Decode = Callable[[Sequence[bytes | None], Callable[[int], str]], Batch]


def decoder_of(stream: StreamDefinition, format: str) -> Decode:  # noqa: A002 - the option's name
    """A function from messages to rows."""
    return FORMATS[format](stream)


def _refuse_empty(messages: Sequence[bytes | None], place: Callable[[int], str]) -> None:
    if (at := next((at for at, message in enumerate(messages) if not message), None)) is not None:
        raise Refuse(f"{place(at)}: expected a row, got a message without a value", code="bad_row")


def _json(stream: StreamDefinition) -> Decode:
    source = StreamDecoder(stream)
    columns = LineColumns(lambda _: source, bare=True)
    columns.learn(stream.name)

    def decode(messages: Sequence[bytes | None], place: Callable[[int], str]) -> Batch:
        _refuse_empty(messages, place)
        lines = b"\n".join([*messages, b""])  # type: ignore[list-item]
        if newlines(lines) == len(messages):  # an object may have line ends between its keys
            batch = columns.read_all(lines)
            if batch is not None and len(batch) == len(messages):
                return batch
        rows = []
        for at, message in enumerate(messages):
            assert message is not None
            values = read_object(message, place(at))
            with located(place(at)):
                source.from_objects([values])
            rows.append(values)
        return source.from_objects(rows)

    return decode


def _msgpack(stream: StreamDefinition) -> Decode:
    source = StreamDecoder(stream)
    read = msgspec.msgpack.Decoder()

    def decode(messages: Sequence[bytes | None], place: Callable[[int], str]) -> Batch:
        """Each message is a row: an array in the order of the columns, or a map by name."""
        _refuse_empty(messages, place)
        try:
            return source.decode_many([b"\x91" + message for message in messages if message])
        except RowError:
            return source.from_objects([one(message or b"", place(at)) for at, message in enumerate(messages)])

    def one(message: bytes, where: str) -> Mapping[str, object]:
        try:
            values = read.decode(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refuse(f"{where}: expected msgpack, got something else ({error})", code="bad_row") from None
        with located(where):
            if isinstance(values, dict) and all(isinstance(name, str) for name in values):
                source.from_objects([values])
                return values
            source.decode(b"\x91" + message)
        return dict(zip(stream.schema.names, values, strict=True))

    return decode


def _csv(stream: StreamDefinition) -> Decode:
    """Lines without a header, with the columns in the stream's order."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(stream.schema.names)
    head = out.getvalue().encode()

    def decode(messages: Sequence[bytes | None], place: Callable[[int], str]) -> Batch:
        _refuse_empty(messages, place)
        try:
            batch = rows([message or b"" for message in messages])
            if len(batch) == len(messages):
                return batch
        except Refuse:
            pass
        for at, message in enumerate(messages):  # which one is it?
            try:
                if len(rows([message or b""])) != 1:
                    raise Refuse("line 2: expected one row", code="bad_row")
            except Refuse as error:
                text = error.text.removeprefix("message").removeprefix(", line 2")
                raise Refuse(f"{place(at)}{text}", code=error.code) from None
        raise AssertionError("messages are rows one by one and not together")

    def rows(messages: Sequence[bytes]) -> Batch:
        data = io.BytesIO(head + b"\n".join(message.rstrip(b"\r\n") for message in messages) + b"\n")
        batches = list(read_opened(data, "message", stream, lambda _: None, "csv"))
        return Batch.concat(batches) if batches else Batch.empty(stream.schema)

    return decode


FORMATS: Final[Mapping[str, Callable[[StreamDefinition], Decode]]] = {"json": _json, "msgpack": _msgpack, "csv": _csv}
