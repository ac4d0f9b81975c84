"""The error codes that cross the wire, each with its meaning in one line.

Rule: programs read codes, so a published code never changes its meaning. Add a code here and to the table of
`docs/protocol.md`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

CODES: Mapping[str, str] = {
    # The bytes are wrong: the connection ends.
    "frame_too_large": "a frame or a line announces, or has, more bytes than the limit",
    "bad_frame": "the bytes are not a frame of this protocol: a broken length or broken msgpack",
    "bad_message": "well-formed msgpack or JSON that is not a message: unknown kind, wrong fields, wrong types",
    "unexpected_message": "a message that its sender may not send in this state",
    "channel_used": "the channel number in OPEN or SUBSCRIBE is not above every earlier one of the connection",
    "wrong_port": "HTTP arrived at the port for streams, or the reverse; the text names the other port",
    "unsupported_protocol": "HELLO names a protocol number that this server does not support",
    "unauthorised": "the server requires a token, and the client sent none or a wrong one",
    "memory": "the server is short of memory, and this connection buffered most; connect again later",
    "too_slow": "the peer did not read, answer, or complete a line or HELLO in time and was disconnected",
    "silent": "no complete frame arrived for 60 seconds, nor for 30 more after PING",
    "too_many_connections": "the server has as many connections as its limit allows; connect again later",
    "standby": "this server follows another one and serves no clients; the text names that server",
    "superseded": "another server of a higher epoch has replaced this one; connect to that server",
    # The frame is refused whole, its sequence numbers are used up, the connection stays.
    "bad_row": "a row does not fit the schema: wrong number of values or a wrong type",
    "bad_value": "a value has the right type but is not allowed: NaN, an infinity, an integer beyond 64 bits, a time "
    "outside the years 1 to 9999 or in another unit than the stream's",
    # The frame is refused whole and its sequence numbers are not used up; the connection stays.
    "not_open": "the channel is not an open feed or subscription: not open yet, or the request was refused",
    "out_of_order": "DATA leaves a gap: its sequence number is above the next one expected",
    "no_credit": "DATA, or RESULT, has more tuples than the channel has credit for",
    # The request is refused, the channel is not opened; the connection stays.
    "not_permitted": "the client's token or certificate does not have the role that this needs; the text names it",
    "unknown_stream": "no stream has this name",
    "unknown_query": "no query has this name",
    "schema_mismatch": "the fingerprint in OPEN, or the columns of an Arrow stream, do not match the stream's schema",
    "already_open": "this feed (stream and producer) is already open on this connection",
    "too_many_channels": "the connection has as many open channels as the limit allows",
    "not_retained": "the server does not retain the rows from this number on, or it belongs to another history",
    "lost": "the client has rows, or acknowledgements, of an older epoch that a promotion has lost",
    # Why a channel (CLOSED) or a connection (BYE) ended.
    "closed": "the peer closed the channel",
    "dropped": "the stream or the query was dropped, or the query has other columns now: subscribe again",
    "failed": "the query failed; the text says why",
    "no_deadline": "neither the query nor one that it reads has an edge LATEST USING DEADLINE for a refresh interval",
    "altered": "the stream's `time_unit` was changed or a column renamed; open the feed again",
    "taken_over": "another connection opened the same feed (stream and producer)",
    "shutting_down": "the server is shutting down; reconnect later",
    # Anything else.
    "refused": "a valid request that the server cannot carry out now; the text suggests an alternative",
    "internal": "an internal error of the server; the text says where to look",
}
