"""A step of the engine as a record, and back.

Rule: a record has all that a step depends on: the clock, the budget and the events. Replaying the records on the engine
that they were made with has the same effects. Tuples of row frames stay the bytes that arrived; those of lines and
Arrow frames are columns, which take less than their lines. `note` is the driver's: what it did outside the engine when
commands of the step were obeyed. What nondeterministic functions returned is in the record, so that a replay doesn't
call them.

A new kind of event is saved without a change here, as long as its fields are plain data or definitions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast, get_args

import msgpack
import numpy as np

from millrace.changes.effects import Effect
from millrace.engine import events, saving
from millrace.engine.digests import Digest
from millrace.engine.engine import Engine
from millrace.engine.events import Arrived, Change, Command, CommandBody, Event
from millrace.formats.decoder import StreamDecoder
from millrace.journal.disk import Buffer
from millrace.protocol import Refuse, Schema, Type
from millrace.protocol.words import counted
from millrace.sql import SinkDefinition
from millrace.values.batch import DTYPES, TEXTS, Batch, Bools, Values, constant_int64
from millrace.values.functions.tape import Result, Results
from millrace.values.texts import Texts, as_texts

# Records of another form are refused.
FORM: Final = 1

# The kinds of records, each the first element of its record.
STEP, START, MARK = 0, 1, 2

# The classes that a record names, in addition to the definitions of plans. Names of events and effects differ.
_EVENTS: Final = {kind.__name__: kind for kind in (*get_args(Event), *get_args(CommandBody))}
_EFFECTS: Final = {f"effect {kind.__name__}": kind for kind in get_args(Effect)}
_CLASSES: Final[Mapping[str, type]] = {**_EVENTS, **_EFFECTS, "SinkDefinition": SinkDefinition}
_NAMES: Final = {kind: name for name, kind in _CLASSES.items()}
# Bytes from which a value becomes a part of its record that is not copied.
_LARGE: Final = 2**14
# What a frame takes in addition to its own bytes: its length, and some for frames that are a little larger.
_FRAME_BYTES: Final = 16
# What precedes bytes in msgpack ("bin 32").
_BYTES, _BYTES_HEAD = 0xC6, struct.Struct(">BI")
# Extensions of saving.py have small numbers.
_OBJECT, _TUPLE = 64, 65


class Step(NamedTuple):
    """A step that was taken. `note` is plain data, None in nearly every step; `results` are those of its
    nondeterministic functions, none in nearly every step."""

    now_us: int
    budget: int
    events: Sequence[Event]
    note: Any = None
    results: Results = MappingProxyType({})


class Start(NamedTuple):
    """A server started: from here on the engine has these limits. `epochs` is plain data about promotions, None before
    the first."""

    version: str
    limits: Mapping[str, int]
    epochs: Any = None


class Mark(NamedTuple):
    """What the state was between two steps. `checkpoint`: a follower saves its state here."""

    digests: Sequence[Digest]
    checkpoint: bool


def pack(value: Any) -> bytes:
    """Plain data, events, effects and definitions as bytes."""
    packed: bytes = msgpack.packb(value, default=_extend, strict_types=True)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(data, ext_hook=_restore, strict_map_key=False)


def _extend(value: Any) -> msgpack.ExtType:
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, pack(list(value)))
    name = _NAMES.get(type(value)) if is_dataclass(value) else None
    if name is None:
        return saving.extend(value)
    return msgpack.ExtType(_OBJECT, pack([name, *[getattr(value, one.name) for one in fields(value)]]))


def _restore(code: int, data: bytes) -> Any:
    match code:
        case 64:
            name, *values = unpack(data)
            return _CLASSES[name](*values)
        case 65:
            return tuple(unpack(data))
    return saving.restore_extension(code, data)


# -- steps -------------------------------------------------------------------------------------------------------------


def encode(step: Step) -> list[Buffer]:
    """The parts of the record, which must not change until they are written."""
    record = _Record()
    record.begin_array(6 if step.results else 5)
    record.add(STEP, step.now_us, step.budget, step.note)
    record.begin_array(len(step.events))
    for event in step.events:
        if type(event) is Arrived:
            _add_arrived(record, event)
        else:
            record.add(event)
    if step.results:
        record.add({key: [_result(one) for one in results] for key, results in step.results.items()})
    return record.end()


class _Record:
    """A record in the making."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._packer = _packer()

    def begin_array(self, size: int) -> None:
        self._packer.pack_array_header(size)

    def add(self, *values: Any) -> None:
        for value in values:
            self._packer.pack(value)

    def add_frames(self, frames: Sequence[bytes | memoryview]) -> None:
        """An array of frames. Those of a feed are mostly of one size."""
        size = len(frames) * (len(frames[0]) + _FRAME_BYTES)
        if size < _LARGE:
            self._packer.pack(list(frames))
            return
        packer = _packer(size)
        packer.pack(list(frames))
        self._parts += [self._taken(), packer.getbuffer()]

    def add_bytes(self, data: memoryview) -> None:
        if len(data) < _LARGE:
            self._packer.pack(data)
        else:
            self._parts += [self._taken() + _BYTES_HEAD.pack(_BYTES, len(data)), data]

    def _taken(self) -> bytes:
        packed: bytes = self._packer.bytes()
        self._packer.reset()
        return packed

    def end(self) -> list[Buffer]:
        return [*self._parts, self._packer.bytes()]


def _packer(room: int = 256) -> msgpack.Packer:
    return msgpack.Packer(default=_extend, strict_types=True, autoreset=False, buf_size=room)


def encode_start(start: Start) -> bytes:
    promoted = [] if start.epochs is None else [start.epochs]
    return pack([START, FORM, start.version, dict(start.limits), *promoted])


def is_step(record: bytes) -> bool:
    """Whether a record is a step, found out without decoding it."""
    return record[1] == STEP


def time_of(step: bytes) -> int:
    """The clock of a recorded step."""
    now_us: int = unpack(step)[1]
    return now_us


def encode_mark(mark: Mark) -> bytes:
    return pack([MARK, mark.checkpoint, [list(digest) for digest in mark.digests]])


def _add_arrived(record: _Record, event: Arrived) -> None:
    """Tuples as plain data: the frames that they came in, or their columns."""
    batch = event.batch
    record.begin_array(6 if event.wire is not None else 7)
    record.add(event.stream, event.feed, len(batch.columns), event.at_us, len(batch.ts))
    if event.wire is not None:
        record.add_frames(event.wire)
        return
    record.begin_array(len(batch.columns))
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if field.type in TEXTS:
            record.add(_column(field.type, values))
        else:
            record.add_bytes(np.ascontiguousarray(values).data.cast("B"))
    record.add([_bits(mask) for mask in batch.valid])


def _result(result: Result) -> list[Any]:
    faults = None if result.faults is None else result.faults.tobytes()
    values = _column(result.type, result.values)
    return [str(result.type), len(result.values), values, _bits(result.valid), faults, result.sentence]


def _bits(mask: Bools | None) -> bytes | None:
    return None if mask is None else np.packbits(mask).tobytes()


def _column(type: Type, values: Values) -> Any:
    return as_texts(values, type is Type.BYTES).save() if type in TEXTS else values.tobytes()


class StepReader:
    """Decodes records next to the engine that they are replayed on: it knows the streams' schemas at that time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._decoders: dict[tuple[str, int], StreamDecoder] = {}

    def read(self, record: bytes | memoryview) -> Step | Start | Mark:
        kind, *rest = unpack(record)
        if kind == MARK:
            checkpoint, digests = rest
            return Mark([Digest(*digest) for digest in digests], checkpoint)
        if kind == START:
            form, version, limits, *promoted = rest
            if form != FORM:
                raise Refuse(f"the journal was written by another Millrace (records of form {form})", code="bad_state")
            return Start(version, limits, *promoted)
        now_us, budget, note, written, *more = rest
        results = {key: [_read_result(one) for one in found] for key, found in more[0].items()} if more else {}
        return Step(now_us, budget, [self._event(event) for event in written], note, results)

    def _event(self, event: Any) -> Event:
        if type(event) is not list:
            return cast(Event, event)
        stream, feed, width, at_us, count, columns, *masks = event
        decoder = self._decoder(stream, width)
        if not masks:
            return Arrived(stream, feed, decoder.decode_many(columns), at_us)
        fields = zip(decoder.schema, columns, strict=True)
        valid = [_mask(mask, count) for mask in masks[0]]
        return Arrived(stream, feed, _timed(decoder, [_values(one.type, data) for one, data in fields], valid), at_us)

    def _decoder(self, name: str, width: int) -> StreamDecoder:
        definition = self._engine.stream(name).definition
        found = self._decoders.get((name, width))
        if found is None or found.stream.schema.fields != definition.schema.fields[:width]:
            narrow = replace(definition, schema=Schema(definition.schema.fields[:width]))
            found = self._decoders[name, width] = StreamDecoder(narrow)
        return found


def _values(type: Type, data: Any) -> Values:
    return cast(Values, Texts.restore(data)) if type in TEXTS else np.frombuffer(data, DTYPES[type])


def _read_result(data: Sequence[Any]) -> Result:
    name, count, values, valid, faults, sentence = data
    type = Type(name)
    failed = None if faults is None else np.frombuffer(faults, np.uint8)
    return Result(type, np.asarray(_values(type, values)), _mask(valid, count), failed, sentence)


def _mask(data: bytes | None, count: int) -> Bools | None:
    if data is None:
        return None
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count).astype(np.bool_)


def _timed(decoder: StreamDecoder, columns: Sequence[Values], valid: Sequence[Bools | None]) -> Batch:
    time = decoder.stream.time_position
    ts = constant_int64(0, len(columns[0])) if time is None else columns[time]
    return Batch(decoder.schema, ts, columns, valid)


# -- for people --------------------------------------------------------------------------------------------------------


def described(record: bytes) -> str:
    """One line about a record, for `millrace journal show`."""
    try:
        kind, *rest = unpack(record)
    except Exception:  # whatever it is, its number and its size are known
        return "not a step of this version"
    if kind == START:
        promoted = f", epoch {rest[3]['number']}" if len(rest) > 3 else ""
        return f"start of Millrace {rest[1]}{promoted}"
    if kind == MARK:
        return f"{'checkpoint, ' if rest[0] else ''}digests of {counted(len(rest[1]), 'operator')}"
    _, _, _, written, *_ = rest
    parts = [_described(event) for event in written]
    return ", ".join(part for part in parts if part) or "work"


def _described(event: Any) -> str:
    match event:
        case [stream, feed, _, _, count, *_]:
            return f"{count} of {stream} from {feed}"
        case Command(body=Change(commands)):
            return "change: " + " + ".join(type(command).__name__ for command in commands)
        case Command(body=body):
            return type(body).__name__
        case events.Punctuated() | events.FeedOpened() | events.FeedClosed() | events.Answered():
            return f"{type(event).__name__} {event.stream} {event.feed}"
        case _:
            return ""


Describe = Callable[[bytes], str]
