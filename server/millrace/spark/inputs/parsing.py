"""Texts of inputs: `packets=kafka://broker:9092/packets?format=json`, a folder, `archive:DIR`, `rate:1000`, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import parse_qsl

from millrace.engine.plan import StreamDefinition
from millrace.protocol import Refuse
from millrace.spark.inputs.archive import ArchiveReader
from millrace.spark.inputs.files import FilesReader
from millrace.spark.inputs.kafka import KafkaReader
from millrace.spark.inputs.rate import RateReader
from millrace.spark.inputs.reader import MOST_ROWS, Reader, whole_number
from millrace.spark.inputs.server import ServerReader

# By the word before the colon.
KINDS: Final[Mapping[str, type[Reader]]] = {
    "archive": ArchiveReader,
    "kafka": KafkaReader,
    "millrace": ServerReader,
    "rate": RateReader,
}
# An option of every kind: how many rows an epoch reads at the most.
MOST: Final = "most"
WITH_OPTIONS: Final = re.compile(r"(.+)\?(\w+=\w*)")


def parse_input(text: str, stream: StreamDefinition) -> Reader:
    """The reader of a stream that a text describes, with or without `stream=` before it; Refuse if the text is wrong,
    or if what it names cannot be read."""
    source = text.removeprefix(f"{stream.name}=")
    scheme, colon, _ = source.partition(":")
    if colon and scheme.isalnum():
        if scheme not in KINDS:
            known = ", ".join(f"{name}:" for name in KINDS)
            raise Refuse(
                f"input {source}: expected the path of files or one of {known}, got {scheme}:", code="bad_input"
            )
        kind = KINDS[scheme]
        place, _, query = source.removeprefix(f"{scheme}:").partition("?")
    else:
        kind = FilesReader
        # A path may be a pattern with a question mark.
        place, query = match.groups("") if (match := WITH_OPTIONS.fullmatch(source)) else (source, "")
    options = dict(parse_qsl(query, keep_blank_values=True))
    allowed = [MOST, *kind.options]
    if unknown := [name for name in options if not any(fnmatchcase(name, pattern) for pattern in allowed)]:
        raise Refuse(
            f"input {source.partition('?')[0]}: it has no option {unknown[0]}; its options are {', '.join(allowed)}",
            code="bad_input",
        )
    reader = kind.parsed(stream, place, options, whole_number(options, MOST, MOST_ROWS))
    reader.check()
    return reader
