"""Answers to clients that connect to the wrong port, in the protocol that they speak.

Rule: only the first bytes are examined, and the connection ends.
"""

from __future__ import annotations

import json

from millrace.protocol import encode, frame, speaks_json
from millrace.protocol.messages import Error

CODE = "wrong_port"


def to_http(admin: str) -> bytes:
    """The answer to HTTP at the port for streams: a problem, as in the API."""
    text = f"this port is for feeds and subscribers (frames or JSON lines); the HTTP API is at {admin}"
    problem = {"type": f"urn:millrace:{CODE}", "title": "Wrong port", "status": 400, "detail": text, "code": CODE}
    body = json.dumps(problem).encode()
    head = (
        "HTTP/1.1 400 Bad Request",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


def to_streams(first: int, listen: str) -> bytes:
    """The answer to JSON lines or frames at the port of the API."""
    text = f"this port is for the HTTP API; feeds and subscribers are served at {listen}"
    if speaks_json(first):
        return json.dumps({"error": {"code": CODE, "text": text, "line": 1}}).encode() + b"\n"
    return frame(encode(Error(CODE, text)))
