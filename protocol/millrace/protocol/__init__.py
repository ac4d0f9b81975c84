"""What is said between Millrace and its peers: types, frames, messages, session rules, errors."""

from millrace.protocol.errors import MillraceError, PeerError, Refuse, RowError
from millrace.protocol.types import MAX_INT64, MIN_INT64, Field, Schema, Type

__all__ = ["MAX_INT64", "MIN_INT64", "Field", "MillraceError", "PeerError", "Refuse", "RowError", "Schema", "Type"]
