"""`kafka://host:port/topic`: a topic of Kafka, each partition a part, its offsets the positions.

A task reads a partition from one offset to another. Consumers commit nothing, because Spark's log of offsets is the
record. Only committed messages of transactions are read, up to the last stable offset, so that a repetition reads the
same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlencode

from millrace.engine.plan import StreamDefinition
from millrace.history.files import words
from millrace.protocol import Refuse
from millrace.spark.inputs.reader import End, Numbered, Piece, Portion, Position, refuse_option, table_of, whole_number
from millrace.spark.inputs.values import FORMATS, decoder_of

# Messages that are decoded together.
MESSAGES: Final = 16_384
# How long a broker may take to answer before anything has started.
FIRST_SECONDS: Final = 5
# How long a running job waits for a broker that is being restarted, if the input does not say.
PATIENCE_SECONDS: Final = 60
# How long to wait for messages before looking at the clock again.
WAIT_SECONDS: Final = 0.2
SETTING: Final = "kafka."
# Offsets that stand for the start and the end of a partition.
EARLIEST, LATEST = -2, -1


def kafka(brokers: str, topic: str, **options: str | int) -> str:
    """The text of an input that reads a topic: `kafka("broker:9092", "packets", format="msgpack")`."""
    return f"kafka://{brokers}/{topic}" + (f"?{urlencode(options)}" if options else "")


@dataclass(frozen=True)
class KafkaReader(Numbered):
    """A topic.

    since     earliest or latest: where a new job starts
    settings  further ones of the Kafka client
    """

    brokers: str
    topic: str
    format: str
    since: str
    patience: int
    settings: tuple[tuple[str, str], ...] = field(repr=False)  # among them may be a password

    options: ClassVar[Mapping[str, str]] = {
        "format": "json",
        "from": "latest",
        "patience": "60",
        "config": "client.properties",
        f"{SETTING}*": "a setting of the Kafka client",
    }

    @classmethod
    def parsed(cls, stream: StreamDefinition, source: str, options: Mapping[str, str], most: int | None) -> Self:
        brokers, slash, topic = source.removeprefix("//").partition("/")
        if not source.startswith("//") or not brokers or not slash or not topic or "/" in topic:
            raise Refuse(f"kafka:{source}: expected kafka://host:port/topic", code="bad_input")
        value_format, since = options.get("format", "json"), options.get("from", "earliest")
        if value_format not in FORMATS:
            raise refuse_option("format", value_format, ", ".join(FORMATS))
        if since not in ("earliest", "latest"):
            raise refuse_option("from", since, "earliest or latest")
        patience = whole_number(options, "patience", PATIENCE_SECONDS)
        assert patience is not None
        settings = _settings(options["config"]) if "config" in options else {}
        settings |= {name.removeprefix(SETTING): value for name, value in options.items() if name.startswith(SETTING)}
        return cls(stream, most, brokers, topic, value_format, since, patience, tuple(settings.items()))

    @property
    def identity(self) -> str:
        return f"topic {self.topic}"

    @property
    def _where(self) -> str:
        return f"kafka://{self.brokers}/{self.topic}"

    # -- what is there -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        k = self._library()
        try:
            self._partitions(FIRST_SECONDS)
        except k.KafkaException as error:
            raise self._unreachable(_reason(error), FIRST_SECONDS) from None

    def first(self) -> Mapping[str, Position]:
        return self._offsets(EARLIEST if self.since == "earliest" else LATEST, whole=True)

    def look(self, parts: Mapping[str, Position]) -> dict[str, End]:
        found = self._offsets(LATEST)
        for part, position in parts.items():
            if part in found and found[part] < position:
                raise Refuse(
                    f"{self._where}: partition {_number(part)} ends at offset {found[part]}, and it has been read up "
                    f"to {position}: was the topic deleted and created again? Start with a new checkpoint",
                    code="bad_input",
                )
        return {part: End(position) for part, position in found.items()}

    def _offsets(self, which: int, *, whole: bool = False) -> dict[str, int]:
        """The first or the last offset of each partition that has a leader; of all if `whole`. A broker may be starting
        again."""
        k = self._library()
        until = time.monotonic() + self.patience
        while True:
            try:
                wanted = [k.TopicPartition(self.topic, number, which) for number in self._partitions(self.patience)]
                found = self._asking.offsets_for_times(wanted, timeout=FIRST_SECONDS)
                reached = {self._part(one.partition): one.offset for one in found if one.error is None}
                if not whole or len(reached) == len(wanted):
                    return reached
                if time.monotonic() > until:
                    raise self._unreachable("some partitions have no leader", self.patience)
            except k.KafkaException as error:
                if time.monotonic() > until:
                    raise self._unreachable(_reason(error), self.patience) from None
            except Refuse:  # one that has just started knows no topics
                if time.monotonic() > until:
                    raise
            self._asking.poll(WAIT_SECONDS)

    def _partitions(self, seconds: int) -> list[int]:
        """The numbers of the topic's partitions."""
        topics = self._asking.list_topics(timeout=min(seconds, FIRST_SECONDS)).topics
        topic = topics.get(self.topic)
        if topic is None or topic.error is not None:
            there = sorted(name for name in topics if not name.startswith("__"))
            raise Refuse(
                f"{self._where}: the topic does not exist (the broker has: {', '.join(there[:10]) or 'none'}"
                f"{', ...' if len(there) > 10 else ''})",
                code="bad_input",
            )
        return sorted(topic.partitions)

    def _unreachable(self, reason: str, seconds: int) -> Refuse:
        return Refuse(
            f"{self._where}: no answer from the broker within {seconds} s ({reason}): check the address and whether "
            "it is running",
            code="unreachable",
        )

    def _part(self, number: int) -> str:
        return f"{self.topic}-{number}"

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, piece: Piece) -> Iterator[Portion]:
        start, end = piece.rows
        if start >= end:
            return
        decode = decoder_of(self.stream, self.format)
        partition = _number(piece.part)
        for messages in self._messages(partition, start, end):
            batch = decode([message.value() for message in messages], partial(self._place, messages))
            yield Portion(table_of(batch, self.stream, piece.at_us), messages[0].offset())

    def _place(self, messages: Sequence[Any], at: int) -> str:
        return f"{self._where}, partition {messages[at].partition()}, offset {messages[at].offset()}"

    def _messages(self, partition: int, start: int, end: int) -> Iterator[Sequence[Any]]:
        """The messages from one offset to another, in order. Not every offset has one."""
        k = self._library()
        consumer = self._consumer()
        try:
            consumer.assign([k.TopicPartition(self.topic, partition, start)])
            at = start
            until = time.monotonic() + self.patience
            while at < end:
                found = consumer.consume(min(MESSAGES, end - at), WAIT_SECONDS)
                events = [message for message in found if message.error() is not None]
                messages = [message for message in found if message.error() is None] if events else found
                if messages:
                    at = messages[-1].offset() + 1
                    if at > end:
                        messages = [message for message in messages if message.offset() < end]
                for event in events:
                    if event.error().code() != k.KafkaError._PARTITION_EOF:
                        raise self._unread(event.error(), partition, start, end)
                    at = max(at, event.offset())
                if messages:
                    yield messages
                if found:
                    until = time.monotonic() + self.patience
                elif time.monotonic() > until:
                    raise self._unreachable(f"partition {partition} was read up to offset {at}", self.patience)
        finally:
            consumer.close()

    def _unread(self, error: Any, partition: int, start: int, end: int) -> Refuse:
        k = self._library()
        if error.code() in (k.KafkaError._AUTO_OFFSET_RESET, k.KafkaError.OFFSET_OUT_OF_RANGE):
            return Refuse(
                f"{self._where}: offsets {start} to {end - 1} of partition {partition} are not there any more: the "
                "broker has deleted messages that the job had not read. Raise the topic's retention",
                code="bad_input",
            )
        return Refuse(f"{self._where}: partition {partition} cannot be read: {error.str()}", code="bad_input")

    # -- the client ----------------------------------------------------------------------------------------------------

    def _library(self) -> ModuleType:
        try:
            import confluent_kafka
        except ImportError:
            raise Refuse(
                "reading from Kafka needs a package that is not installed: pip install 'millrace[kafka]'",
                code="no_kafka",
            ) from None
        return confluent_kafka

    @property
    def _asking(self) -> Any:
        key = self.brokers, self.settings
        if key not in _ASKING:
            _ASKING[key] = self._consumer()
        return _ASKING[key]

    def _consumer(self) -> Any:
        k = self._library()
        try:
            return k.Consumer(
                {
                    "log_level": 0,  # errors are raised
                    # Messages above the end are fetched for nothing, and waiting for a full queue to drain costs time.
                    "queued.min.messages": MESSAGES,
                    "fetch.queue.backoff.ms": 5,
                    **dict(self.settings),
                    "bootstrap.servers": self.brokers,
                    "group.id": "millrace",  # required, and never joined
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                }
            )
        except k.KafkaException as error:
            raise Refuse(f"{self._where}: {_reason(error)}", code="bad_input") from None


# By settings, the consumer with which this process asks for offsets again and again.
_ASKING: Final[dict[object, Any]] = {}


def _number(part: str) -> int:
    return int(part.rpartition("-")[2])


def _reason(error: Any) -> str:
    return str(error.args[0].str())


def _settings(path: str) -> dict[str, str]:
    """The settings in a file with a name, `=` and a value per line."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refuse(f"{path}: {words(error)}", code="bad_path") from None
    settings = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals:
                raise Refuse(f"{path}, line {number}: expected name=value", code="bad_input")
            settings[name.strip()] = value.strip()
    return settings
