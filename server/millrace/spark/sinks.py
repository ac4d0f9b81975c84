"""Where the rows of a live job go after the commit of their epoch.

A sink gets an epoch at least once, and the same rows in the same order each time: after a kill it may get the last one
again. What it does with them must be the same whether it gets them once or twice. Tasks stage rows as hidden Parquet
files in a folder that the sink names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.backfill.layout import OWN_TIME, result_schema
from millrace.client import Client, Feed
from millrace.client.errors import ConnectionLost, ServerError
from millrace.formats.arrow import arrow_schema
from millrace.formats.durable import ASIDE, make_folder, sync_folder
from millrace.protocol import DELETED, Refuse, Schema
from millrace.protocol.words import counted
from millrace.spark.checkpoint import STAGED, Checkpoint
from millrace.spark.records import RowFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE, MILLRACE, KAFKA = "file:", "millrace://", "kafka://"
# How long a broker may take to answer before a job starts, and to take an epoch's rows.
FIRST_SECONDS, BROKER_SECONDS = 5, 120
# Rows that are sent to a server before the sink waits for it.
SENT_ROWS: Final = 65_536


@dataclass(frozen=True)
class Delivery:
    """An epoch's rows of one query.

    first    the number of the first row, counting all rows of the query
    folder   where the files are
    files    in the order in which their rows are numbered
    """

    job: str
    query: str
    schema: Schema
    epoch: int
    first: int
    folder: Path
    files: Sequence[RowFile]

    def table(self) -> Any:
        """All rows, in order of their own time: rows of several buckets are in no order yet."""
        schema = arrow_schema(result_schema(self.schema))
        tables = [pq.read_table(self.folder / one.file, partitioning=None) for one in self.files]
        whole = pa.concat_tables(tables) if tables else schema.empty_table()
        order = pc.sort_indices(
            whole.append_column("place", pa.array(range(whole.num_rows), pa.int64())),
            sort_keys=[(OWN_TIME, "ascending"), ("place", "ascending")],
        )
        return whole.take(order)


class Sink(ABC):
    """The destination of a query's rows. `text` names it in records and messages."""

    text: str

    def staging(self, checkpoint: Checkpoint, query: str) -> Path:
        """The folder where tasks write rows. Its files are this job's alone."""
        return checkpoint.path / STAGED

    def check(self, query: str, schema: Schema) -> None:
        """Refuse what can be seen to be wrong before anything starts."""

    @abstractmethod
    def publish(self, delivery: Delivery, session: SparkSession | None) -> None:
        """Deliver an epoch's rows. May be called again for the last epoch."""


@dataclass
class FileSink(Sink):
    """A folder of Parquet files, `QUERY/epoch-0000812-task-03.parquet`, which are hidden until their epoch is
    committed. An epoch without rows has no file."""

    folder: Path
    text: str = ""

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self.text = f"{FILE}{self.folder}"

    def staging(self, checkpoint: Checkpoint, query: str) -> Path:
        # A name must not move to another file system, and a folder of files that stay is slow to list.
        return staged_folder(self.folder, checkpoint.id)

    def check(self, query: str, schema: Schema) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise Refuse(f"sink {self.text}: expected a folder, got a file", code="bad_path")

    def publish(self, delivery: Delivery, session: SparkSession | None) -> None:
        folder = self.folder / quote(delivery.query, safe="")
        if delivery.files:
            make_folder(folder)
        for one in delivery.files:
            staged = delivery.folder / one.file
            if staged.exists():  # else it has its name already
                staged.rename(folder / published_name(delivery.epoch, one.task))
        if delivery.files:
            sync_folder(folder)


def staged_folder(folder: Path, job: str) -> Path:
    """Where rows of a job wait for the commit of their epoch."""
    return folder / f"{ASIDE}staged-{job}"


def published_name(epoch: int, task: int) -> str:
    return f"epoch-{epoch:07}-task-{task:02}.parquet"


@dataclass
class FunctionSink(Sink):
    """A Python function of a DataFrame and the number of its epoch. It may get the last epoch again."""

    function: Callable[[DataFrame, int], object]
    text: str = "a Python function"

    def publish(self, delivery: Delivery, session: SparkSession | None) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        assert session is not None, "a function gets a DataFrame"
        schema = from_arrow_schema(arrow_schema(result_schema(delivery.schema)))
        paths = [str(delivery.folder / one.file) for one in delivery.files]
        frame = session.read.schema(schema).parquet(*paths) if paths else session.createDataFrame([], schema)
        self.function(frame, delivery.epoch)


@dataclass
class ServerSink(Sink):
    """A stream of a Millrace server. Rows carry their numbers, so the server drops those that it has."""

    address: str
    stream: str
    text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.text = f"{MILLRACE}{self.address}/{self.stream}"

    def check(self, query: str, schema: Schema) -> None:
        """Refuse a server that cannot be reached, and a stream that the rows do not fit."""
        try:
            with Client(self.address, reconnect=None) as client, client.open(self.stream) as feed:
                self._check_columns(query, schema, feed.schema)
        except (ConnectionLost, ServerError) as error:
            raise self._failed(error) from None

    def _check_columns(self, query: str, schema: Schema, expected: Schema) -> None:
        own = {one.name: one for one in result_schema(schema)}
        for one in expected:
            found = own.get(one.name)
            if found is None and not one.nullable:
                raise Refuse(f"sink {self.text}: query {query} has no column {one.name}, which the stream requires")
            if found is not None and found.type is not one.type:
                raise Refuse(
                    f"sink {self.text}: column {one.name} is {found.type} in query {query} and {one.type} in the stream"
                )
        if extra := [name for name in own if name not in {*expected.names, OWN_TIME, DELETED}]:
            raise Refuse(f"sink {self.text}: the stream has no column {extra[0]}, which query {query} emits")

    def publish(self, delivery: Delivery, session: SparkSession | None) -> None:
        if not delivery.files:
            return
        table = delivery.table()
        try:
            with (
                Client(self.address) as client,
                client.open(self.stream, producer=f"{delivery.job}/{delivery.query}") as feed,
            ):
                self._check_next(feed.next_sequence, delivery, table.num_rows)
                names = [name for name in feed.schema.names if name in table.schema.names]
                rest = table.select(names).slice(feed.next_sequence - delivery.first).combine_chunks()
                for batch in rest.to_batches(max_chunksize=SENT_ROWS):
                    feed.send_arrow(batch)
                feed.flush()
                _flush_to_disk(feed)
        except (ConnectionLost, ServerError) as error:
            raise self._failed(error) from None

    def _check_next(self, next_row: int, delivery: Delivery, rows: int) -> None:
        if not delivery.first <= next_row <= delivery.first + rows:
            raise Refuse(
                f"sink {self.text}: the server has {counted(next_row, 'row')} of query {delivery.query}, and epoch "
                f"{delivery.epoch} starts with row {delivery.first}: the server lost rows or got this sink later; "
                "restore the server, or start a job with a new checkpoint",
                code="sink",
            )

    def _failed(self, error: Exception) -> Refuse:
        return Refuse(f"sink {self.text}: {error}", code="sink")


def _flush_to_disk(feed: Feed) -> None:
    """Wait until rows survive a power cut of the server, if it has a data directory."""
    try:
        feed.flush(durable=True)
    except ServerError as error:
        if error.code != "refused":  # it keeps nothing on its disk
            raise


@dataclass
class KafkaSink(Sink):
    """A topic of Kafka. Values are JSON. Headers name the job, query, epoch and bucket of a row and its place among
    these, so that readers can drop the rows of an epoch that is sent again."""

    brokers: str
    topic: str
    text: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.text = f"{KAFKA}{self.brokers}/{self.topic}"

    def check(self, query: str, schema: Schema) -> None:
        """Refuse a broker that cannot be reached, and a topic that does not exist."""
        kafka = self._library()
        try:
            found = self._producer(kafka).list_topics(timeout=FIRST_SECONDS).topics
        except kafka.KafkaException as error:
            raise self._failed(error.args[0].str()) from None
        if self.topic not in found:
            raise self._failed("the topic does not exist")

    def publish(self, delivery: Delivery, session: SparkSession | None) -> None:
        if not delivery.files:
            return
        kafka = self._library()
        producer = self._producer(kafka)
        failures: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error.str())

        for value, headers in messages(delivery):
            while not failures:
                try:
                    producer.produce(self.topic, value, headers=headers, on_delivery=delivered)
                    break
                except BufferError:  # its queue is full
                    producer.poll(1)
            producer.poll(0)
        left = producer.flush(BROKER_SECONDS)
        if failures or left:
            raise self._failed(failures[0] if failures else f"no answer after {BROKER_SECONDS} s")

    def _producer(self, kafka: ModuleType) -> Any:
        settings = {"bootstrap.servers": self.brokers, "enable.idempotence": True, "log_level": 0}
        return kafka.Producer({**settings, "message.timeout.ms": BROKER_SECONDS * 1_000})

    def _library(self) -> ModuleType:
        try:
            import confluent_kafka
        except ImportError:
            raise Refuse(
                "writing to Kafka needs a package that is not installed: pip install 'millrace[kafka]'",
                code="no_kafka",
            ) from None
        return confluent_kafka

    def _failed(self, reason: str) -> Refuse:
        return Refuse(f"sink {self.text}: {reason}", code="sink")


def messages(delivery: Delivery) -> Iterator[tuple[bytes, list[tuple[str, bytes]]]]:
    """An epoch's rows as values and headers of Kafka."""
    names = {"job": delivery.job, "query": delivery.query, "epoch": str(delivery.epoch)}
    fixed = [(f"millrace-{name}", value.encode()) for name, value in names.items()]
    for one in delivery.files:
        rows = iter(pq.read_table(delivery.folder / one.file, partitioning=None).to_pylist())
        for bucket, count in one.buckets:
            place = ("millrace-bucket", str(bucket).encode())
            for index, row in enumerate(islice(rows, count)):
                yield msgspec.json.encode(row), [*fixed, place, ("millrace-index", str(index).encode())]


def parse_sink(text: str) -> Sink:
    """The sink that a text describes."""
    if text.startswith(FILE) and text != FILE:
        return FileSink(Path(text.removeprefix(FILE)))
    if text.startswith(MILLRACE):
        address, _, stream = text.removeprefix(MILLRACE).partition("/")
        if address and stream and "/" not in stream:
            return ServerSink(address, stream)
    if text.startswith(KAFKA):
        brokers, _, topic = text.removeprefix(KAFKA).partition("/")
        if brokers and topic and "/" not in topic:
            return KafkaSink(brokers, topic)
    raise Refuse(
        f"expected file:FOLDER, kafka://HOST:PORT/TOPIC or millrace://HOST:PORT/STREAM as a sink, got {text!r}",
        code="bad_sink",
    )
