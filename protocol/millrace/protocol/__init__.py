"""The wire protocol: types, frames, messages, session rules, errors.

Rule: names are imported from their modules on first use, so a command that only reports an error does not load the
messages.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.protocol.codes import CODES
    from millrace.protocol.errors import MillraceError, PeerError, Refuse, RowError
    from millrace.protocol.frames import Body, FrameReader, frame, speaks_http, speaks_json
    from millrace.protocol.messages import Head, Kind, Limits, Message, carries_tuples, decode, encode, peek
    from millrace.protocol.session import Session, Side
    from millrace.protocol.timestamps import TimestampError, format_timestamp, parse_timestamp
    from millrace.protocol.types import DELETED, GONE, MAX_INT64, MIN_INT64, TOMBSTONE_NAMES, Field, Schema, Type

__all__ = [
    "CODES",
    "DELETED",
    "GONE",
    "MAX_INT64",
    "MIN_INT64",
    "TOMBSTONE_NAMES",
    "Body",
    "Field",
    "FrameReader",
    "Head",
    "Kind",
    "Limits",
    "Message",
    "MillraceError",
    "PeerError",
    "Refuse",
    "RowError",
    "Schema",
    "Session",
    "Side",
    "TimestampError",
    "Type",
    "carries_tuples",
    "decode",
    "encode",
    "format_timestamp",
    "frame",
    "parse_timestamp",
    "peek",
    "speaks_http",
    "speaks_json",
]

_MODULES = {
    "codes": "CODES",
    "errors": "MillraceError PeerError Refuse RowError",
    "frames": "Body FrameReader frame speaks_http speaks_json",
    "messages": "Head Kind Limits Message carries_tuples decode encode peek",
    "session": "Session Side",
    "timestamps": "TimestampError format_timestamp parse_timestamp",
    "types": "DELETED GONE MAX_INT64 MIN_INT64 TOMBSTONE_NAMES Field Schema Type",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
