"""The tables and bytes of docs/protocol.md match the code."""

import inspect
import re
from pathlib import Path

import pytest

from millrace.client import AsyncClient, AsyncFeed, AsyncSubscription
from millrace.protocol import CODES, FrameReader, Schema
from millrace.protocol.fields import MAX_COLUMNS, MAX_TEXT
from millrace.protocol.jsonlines import LINE_BYTES, parse
from millrace.protocol.messages import LAYOUT, PROTOCOL, Limits, decode
from tests.protocol.vectors import EXAMPLES, MESSAGES

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "protocol.md").read_text()


def section(title):
    """The text under a heading, up to the next heading of its level or a higher one."""
    level = len(title) - len(title.lstrip("#"))
    rest = DOCUMENT.split(f"\n{title}\n", 1)[1]
    return re.split(rf"\n#{{1,{level}}} ", rest)[0]


def table(text):
    """The rows of the first table, without its header, as lists of cells."""
    lines = [line for line in text.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("message", LAYOUT, ids=lambda message: message.__name__)
def test_each_message_has_its_table(message):
    kind, items = LAYOUT[message]
    rows = table(section(f"### {int(kind)} {kind.name}"))
    assert [row[:2] for row in rows] == [[item.name, item.expects] for item in items]


def test_the_table_of_codes_is_complete():
    assert table(section("## Error codes")) == [[f"`{code}`", meaning] for code, meaning in CODES.items()]


def hex_blocks(text=DOCUMENT):
    """The bytes of each example: the text before two spaces."""
    blocks = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    return [bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for block in blocks]


def test_the_examples_are_the_vectors():
    assert [block.hex() for block in hex_blocks()] == [vector["frame"] for vector in MESSAGES]


def test_the_examples_have_the_captions_of_the_vectors():
    captions = re.findall(r"\n([^\n]+):\n\n```hex", DOCUMENT)
    assert [caption.lower() for caption in captions] == [vector["says"].lower() for vector in MESSAGES]


def test_the_examples_are_one_stream_of_frames():
    reader = FrameReader()
    reader.feed(b"".join(hex_blocks()))
    assert [decode(body) for body in reader.bodies()] == EXAMPLES


def test_numbers_in_the_text():
    limits = Limits()
    expected = {
        "frame_bytes": limits.frame_bytes,
        "nesting": limits.nesting,
        "array_items": limits.array_items,
        "channels": limits.channels,
    }
    assert {name: int(value.replace(",", "")) for name, value, _ in table(section("## Limits"))} == expected
    for words in (
        f"Protocol number {PROTOCOL}.",
        f"{LINE_BYTES:,} bytes",
        f"{MAX_COLUMNS:,} values",
        f"{MAX_TEXT:,} bytes",
    ):
        assert words in DOCUMENT


def test_the_fingerprint_of_the_text():
    text = "\n".join(re.findall(r"^    (ts timestamp|k bigint not null|name text)$", DOCUMENT, re.MULTILINE))
    schema = next(example.schema for example in EXAMPLES if isinstance(getattr(example, "schema", None), Schema))
    assert "\n".join(map(str, schema)) == text
    assert f"`{schema.fingerprint()}`" in DOCUMENT


def test_the_json_lines_of_the_text_are_lines():
    [block] = re.findall(r"```json\n(.*?)```", section("## JSON lines"), re.DOTALL)
    for line in block.splitlines():
        parse(line)


def test_the_client_page_names_all_public_members():
    text = (DOCS / "client.md").read_text()
    for thing in (AsyncClient, AsyncFeed, AsyncSubscription):
        public = [name for name in vars(thing) if not name.startswith("_")]
        inner = {"loop", "say", "credit", "writable", "write_tuples", "writable_again", "forget", "received", "broken"}
        inner |= {"has"}
        inner |= {"frame_room", "connect", "disconnect", "receive", "fail", "opened", "pump", "start", "ask_again"}
        missing = [name for name in public if name not in inner and f"`{name}" not in text and f".{name}" not in text]
        assert not missing


def test_the_client_examples_are_python():
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "client.md").read_text(), re.DOTALL):
        compile(block, "client.md", "exec", flags=0x2000)  # top-level await allowed


@pytest.mark.parametrize("method", ["__init__", "open", "subscribe"])
def test_the_client_page_has_a_row_for_each_parameter(method):
    """With its default, as Python prints it; `reconnect` shows the defaults of Backoff."""
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", (DOCS / "client.md").read_text(), re.MULTILINE))
    for name, parameter in list(inspect.signature(getattr(AsyncClient, method)).parameters.items())[1:]:
        if parameter.default is not parameter.empty:
            assert rows[name].replace('"', "'") == repr(parameter.default)
