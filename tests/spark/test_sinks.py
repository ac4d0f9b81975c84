"""Sinks get the rows of each epoch after its commit, and the same rows again after a kill."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from millrace.client import Client
from millrace.protocol import Refuse
from millrace.spark.sinks import FileSink, FunctionSink, KafkaSink, ServerSink, Sink, parse_sink
from tests.backfill.epochs import run_epochs
from tests.server.harness import played, running
from tests.spark.sparkloop import Killed, job_of
from tests.spark.test_epochs import BUCKETS, SQL, epochs_of

SERVER = """CREATE STREAM large (ts TIMESTAMP, src TEXT, bytes BIGINT) WITH (time = 'ts', disorder = '1 day');
CREATE QUERY seen AS SELECT ts, src, bytes FROM large;
CREATE STREAM narrow (ts TIMESTAMP, src TEXT) WITH (time = 'ts');
CREATE STREAM wide (ts TIMESTAMP, src TEXT, bytes BIGINT, port BIGINT NOT NULL) WITH (time = 'ts');
CREATE STREAM other (ts TIMESTAMP, src TEXT, bytes TEXT) WITH (time = 'ts');
"""
LARGE = SQL[: SQL.index("CREATE QUERY total")].replace(
    SQL[SQL.index("CREATE QUERY traffic") : SQL.index("CREATE QUERY large")], ""
)


class Twice(ServerSink):
    """A driver that dies right after each first delivery."""

    def __init__(self, address: str, stream: str) -> None:
        super().__init__(address, stream)
        self.delivered: set[int] = set()

    def publish(self, delivery, session):
        super().publish(delivery, session)
        if delivery.epoch not in self.delivered:
            self.delivered.add(delivery.epoch)
            raise Killed


@played
async def test_a_server_gets_each_row_once(tmp_path_factory):
    """Although the driver dies after it has sent the rows of each epoch, and sends them again."""
    folder = tmp_path_factory.mktemp("job")
    async with running(SERVER) as daemon:
        address = f"127.0.0.1:{daemon.listen.port}"

        def run() -> Counter:
            sink = Twice(address, "large")
            job = job_of(folder, LARGE, epochs_of(1), BUCKETS, sinks={"large": sink})
            with Client(address) as client, client.subscribe("seen") as seen:
                for _ in range(len(job.epochs)):
                    with pytest.raises(Killed):
                        job.run()
                job.run()
                assert sink.delivered == set(range(len(job.epochs)))
                expected = run_epochs(job.plan.groups, epochs_of(1), ended=False).rows["large"]
                found: Counter = Counter()
                for row in seen:
                    found[tuple(row.values())] += 1
                    if sum(found.values()) == len(expected):
                        break
                assert found == Counter(tuple(row.values()) for row in expected)
                with client.open("large", producer=f"{job.checkpoint.id}/large") as feed:
                    assert feed.next_sequence == len(expected), "no row was accepted twice"
            return found

        assert await asyncio.to_thread(run)


@played
async def test_a_stream_that_the_rows_do_not_fit_is_refused_before_anything_starts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    async with running(SERVER) as daemon:
        address = f"127.0.0.1:{daemon.listen.port}"

        def run() -> None:
            for stream, reason in (
                ("narrow", "the stream has no column bytes, which query large emits"),
                ("wide", "query large has no column port, which the stream requires"),
                ("other", "column bytes is bigint in query large and text in the stream"),
                ("none", "none"),
            ):
                job = job_of(folder, LARGE, epochs_of(1), BUCKETS, sinks={"large": ServerSink(address, stream)})
                with pytest.raises(Refuse, match=f"sink millrace://{address}/{stream}: .*{reason}"):
                    job.run()
                assert not job.checkpoint.path.exists()

        await asyncio.to_thread(run)


@played
async def test_a_server_that_lost_rows_is_refused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")

    def job(daemon):
        return job_of(folder, LARGE, epochs_of(1), BUCKETS, sinks={"large": Fixed(daemon.listen.port)})

    async with running(SERVER) as daemon:
        await asyncio.to_thread(job(daemon).run, 1)
    async with running(SERVER) as daemon:
        with pytest.raises(Refuse, match="the server has 0 rows of query large, and epoch 1 starts with row"):
            await asyncio.to_thread(job(daemon).run)


class Fixed(ServerSink):
    """The server at another port, by the same name."""

    def __init__(self, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}", "large")
        self.text = "millrace://server/large"


def test_a_server_that_cannot_be_reached_is_refused(tmp_path):
    job = job_of(tmp_path, LARGE, epochs_of(1), BUCKETS, sinks={"large": ServerSink("127.0.0.1:1", "large")})
    with pytest.raises(Refuse, match=r"sink millrace://127\.0\.0\.1:1/large: "):
        job.run()
    assert not job.checkpoint.path.exists()


def test_rows_that_were_committed_for_another_sink_are_not_lost(tmp_path):
    """A sink may change between epochs; an epoch that is not published yet goes where it was to go."""

    class Dead(FileSink):
        def publish(self, delivery, session):
            raise Killed

    job = job_of(tmp_path, LARGE, epochs_of(1), BUCKETS, sinks={"large": Dead(tmp_path / "one")})
    with pytest.raises(Killed):
        job.run(1)
    job.sinks = {"large": FileSink(tmp_path / "two")}
    with pytest.raises(Refuse, match=f"the rows of large in epoch 0 were committed for file:{tmp_path}/one, not file:"):
        job.run()
    job.sinks = {"large": FileSink(tmp_path / "one")}
    job.run(1)
    job.sinks = {"large": FileSink(tmp_path / "two")}
    job.run()
    names = [[path.name.split("-task")[0] for path in (tmp_path / out).glob("large/*")] for out in ("one", "two")]
    assert set(names[0]) == {"epoch-0000000"}
    assert set(names[1]) == {"epoch-0000001", "epoch-0000002"}


class Broker:
    """Kafka's client library as the sink uses it, with a queue of three messages."""

    class KafkaException(Exception):  # noqa: N818 - the library's name
        pass

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes, list[tuple[str, bytes]]]] = []
        self.waiting: list = []
        self.refuses = False

    def Producer(self, settings):  # noqa: N802 - the library's name
        return self

    def list_topics(self, timeout):
        return SimpleNamespace(topics={"flows": None})

    def produce(self, topic, value, headers, on_delivery):
        if len(self.waiting) == 3:
            raise BufferError
        self.waiting.append((topic, value, headers, on_delivery))

    def poll(self, seconds):
        if seconds:
            self.flush(seconds)

    def flush(self, seconds):
        for topic, value, headers, on_delivery in self.waiting:
            error = SimpleNamespace(str=lambda: "message too large") if self.refuses else None
            if error is None:
                self.taken.append((topic, value, headers))
            on_delivery(error, None)
        self.waiting = []
        return 0


def test_messages_of_kafka_say_what_to_drop(tmp_path, monkeypatch):
    """Rows that are sent again have the same headers and values; the headers of others differ."""
    broker = Broker()
    monkeypatch.setitem(sys.modules, "confluent_kafka", broker)

    class Again(KafkaSink):
        def publish(self, delivery, session):
            super().publish(delivery, session)
            super().publish(delivery, session)

    job = job_of(tmp_path, LARGE, epochs_of(1), BUCKETS, sinks={"large": Again("broker:9092", "flows")})
    job.run()
    expected = run_epochs(job.plan.groups, epochs_of(1), ended=False).rows["large"]
    distinct = {tuple(headers): value for _, value, headers in broker.taken}
    assert len(broker.taken) == 2 * len(distinct) == 2 * len(expected)
    values = Counter((row["src"], row["bytes"]) for row in map(json.loads, distinct.values()))
    assert values == Counter((row["src"], row["bytes"]) for row in expected)
    assert {name for headers in distinct for name, _ in headers} == {
        "millrace-job",
        "millrace-query",
        "millrace-epoch",
        "millrace-bucket",
        "millrace-index",
    }

    broker.refuses = True
    job = job_of(tmp_path / "other", LARGE, epochs_of(1), BUCKETS, sinks={"large": KafkaSink("broker:9092", "flows")})
    with pytest.raises(Refuse, match="sink kafka://broker:9092/flows: message too large"):
        job.run()
    job.sinks = {"large": KafkaSink("broker:9092", "absent")}
    with pytest.raises(Refuse, match="the topic does not exist"):
        job.run()


def test_texts_of_sinks():
    sink = parse_sink("file:out")
    assert isinstance(sink, FileSink)
    assert sink.folder.is_absolute()
    sink = parse_sink("millrace://edge:7420/flows")
    assert isinstance(sink, ServerSink)
    assert (sink.address, sink.stream) == ("edge:7420", "flows")
    sink = parse_sink("kafka://one:9092,two:9092/flows")
    assert isinstance(sink, KafkaSink)
    assert (sink.brokers, sink.topic) == ("one:9092,two:9092", "flows")
    for text in (
        "",
        "out",
        "file:",
        "millrace://edge",
        "millrace://edge/",
        "millrace:///s",
        "kafka://b",
        "kafka://b/t/u",
    ):
        with pytest.raises(
            Refuse, match="expected file:FOLDER, kafka://HOST:PORT/TOPIC or millrace://HOST:PORT/STREAM"
        ):
            parse_sink(text)
    assert isinstance(FunctionSink(print), Sink)
