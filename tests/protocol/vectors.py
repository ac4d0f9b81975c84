"""Reads the byte vectors of tests/conformance/protocol."""

import json
from pathlib import Path

from millrace.protocol import Schema, messages
from millrace.protocol.messages import Limits

FOLDER = Path(__file__).parents[1] / "conformance" / "protocol"


def read(name):
    return json.loads((FOLDER / name).read_text())


def plain(data):
    """JSON as values of msgpack: `{"bytes": hex}` means bin."""
    if isinstance(data, dict):
        return bytes.fromhex(data["bytes"])
    return [plain(item) for item in data] if isinstance(data, list) else data


def message(vector):
    """The message with the fields of a vector."""
    fields = [_field(vector["message"], item) for item in vector["data"][1:]]
    return getattr(messages, vector["message"])(*fields)


def _field(name, item):
    if not isinstance(item, list):
        return plain(item)
    if item and all(isinstance(value, str) for value in item):
        return tuple(item)
    if name == "Welcome":
        return Limits(*item)
    if name in ("Opened", "Subscribed"):
        return Schema.from_data(item)
    rows = [tuple(row) for row in plain(item)]
    return tuple(rows) if name in ("Punctuation", "EtsRequest", "Ets") else rows


MESSAGES = read("messages.json")["messages"]
REFUSED = read("refused.json")["refused"]
ACCEPTED = read("accepted.json")["accepted"]
LINES = read("lines.json")["lines"]
EXAMPLES = [message(vector) for vector in MESSAGES]
