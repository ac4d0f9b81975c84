"""What is said between Millrace and its peers: types, frames, messages, session rules, errors."""

from millrace.protocol.codes import CODES
from millrace.protocol.errors import MillraceError, PeerError, Refuse, RowError
from millrace.protocol.frames import Body, FrameReader, frame, speaks_http, speaks_json
from millrace.protocol.messages import Head, Kind, Limits, Message, carries_tuples, decode, encode, peek
from millrace.protocol.session import Session, Side
from millrace.protocol.timestamps import TimestampError, format_timestamp, parse_timestamp
from millrace.protocol.types import GONE, MAX_INT64, MIN_INT64, Field, Schema, Type

__all__ = [
    "CODES",
    "GONE",
    "MAX_INT64",
    "MIN_INT64",
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
