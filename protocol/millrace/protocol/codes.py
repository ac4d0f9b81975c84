"""The error codes that cross the wire, each with its one-line meaning.

Rule: a code is for programs and never changes its meaning once published. A new one is added here
and in the table of `docs/protocol.md` (a test compares the two).
"""

from __future__ import annotations

from collections.abc import Mapping

CODES: Mapping[str, str] = {
    # The bytes are wrong: the connection ends.
    "frame_too_large": "a frame or a line claims, or has, more bytes than the limit",
    "bad_frame": "the bytes are not a frame of this protocol: a broken length or broken msgpack",
    "bad_message": "well-formed msgpack or JSON that is not a message: unknown kind, wrong fields, wrong types",
    "unexpected_message": "a message that its side may not send in this state",
    "channel_used": "OPEN and SUBSCRIBE must take a channel number above every earlier one of the connection",
    "wrong_port": "HTTP came where streams are fed and read, or the other way round; the text names the other port",
    "unsupported_protocol": "HELLO named a protocol number that this server does not speak",
    "unauthorised": "a token is required and the one given, if any, is not it",
    "too_slow": "the peer did not read, answer, or complete a line or HELLO in time and was disconnected",
    "silent": "nothing whole arrived for 60 seconds, and nothing for 30 more after PING",
    "too_many_connections": "the server has as many connections as it may; connect again later",
    # The frame is refused whole, its sequence numbers are used up, the connection stays.
    "bad_row": "a row does not fit the schema: wrong number of values or a wrong type",
    "bad_value": "a value has the right type but is not allowed: NaN, an infinity, an integer beyond 64 bits, a time "
    "outside the years 1 to 9999 or in another unit than microseconds",
    # The frame is refused whole and its sequence numbers are not used up; the connection stays.
    "not_open": "the channel is not an open feed or subscription (not yet, or the wish for it was refused)",
    "out_of_order": "DATA leaves a gap: its sequence is above the number of the next tuple expected",
    "no_credit": "DATA, or RESULT, has more tuples than the channel has credit for",
    # The wish is refused, the channel is not opened; the connection stays.
    "unknown_stream": "no stream of this name exists",
    "unknown_query": "no query of this name exists",
    "schema_mismatch": "the fingerprint in OPEN, or the columns of an Arrow stream, are not the stream's schema",
    "already_open": "this feed (stream and producer) is already open on this connection",
    "too_many_channels": "the connection has as many open channels as the limit allows",
    "not_retained": "the server does not retain the rows from this number on, or it is one of another history",
    # Why a channel (CLOSED) or a connection (BYE) ended.
    "closed": "the channel was closed at the peer's wish",
    "dropped": "the stream or the query was dropped; or the query has other columns now: subscribe again",
    "failed": "the query failed; the text says why",
    "taken_over": "another connection opened the same feed (stream and producer)",
    "shutting_down": "the server is ending; reconnect later",
    # Anything else.
    "refused": "a fair wish that cannot be met now; the text says what would work",
    "internal": "the server made a mistake of its own; the text names where to look",
}
