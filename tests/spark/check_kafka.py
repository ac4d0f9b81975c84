"""A real Kafka: rows of a topic reach Spark once and in order, whatever happens to partitions, broker and query."""

from __future__ import annotations

import json
import random
import threading

import pytest
from confluent_kafka import Producer, TopicPartition

from millrace.backfill.bucket import groups_of
from millrace.backfill.parts import parcels_of
from millrace.offline.script import plan_script
from millrace.protocol import Refuse
from millrace.spark import Job, kafka
from millrace.spark.checkpoint import Checkpoint
from millrace.spark.inputs.parsing import parse_input
from millrace.spark.inputs.reader import as_read, punctuated
from millrace.spark.inputs.source import live_frame
from millrace.sql import Catalog
from tests.comparison import same_rows
from tests.patience import HANG_SECONDS, wait_until
from tests.running import run_script
from tests.spark.kafka import kafka_at
from tests.spark.test_inputs import BEGIN, read_all
from tests.spark.test_job import rows_of

SQL = """CREATE STREAM packets (ts TIMESTAMP, src BIGINT, note TEXT)
  WITH (time = 'ts', disorder = '2 s', max_skew = '9 s');
CREATE QUERY talkers AS SELECT src, count(*) AS n, window_end
  FROM TUMBLE(packets, ts, INTERVAL '10 seconds') GROUP BY src, window_end;
"""
SCRIPT = plan_script(SQL)
CATALOG = Catalog(SCRIPT.streams, SCRIPT.queries)
PACKETS = CATALOG.streams["packets"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with kafka_at(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class Sending:
    """Produces numbered rows, and lists the rows of each partition."""

    def __init__(self, address, topic, step_us=1_000):
        self.topic = topic
        self._step_us = step_us
        self.sent = {}
        self._address = address
        self._rng = random.Random(7)
        self._number = 0
        # A broker that is killed before it answers must not get a row twice.
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})

    def send(self, count, partitions):
        for _ in range(count):
            row = {"ts": BEGIN + self._number * self._step_us, "src": self._number % 50, "note": "n"}
            partition = self._rng.randrange(partitions)
            self.sent.setdefault(f"{self.topic}-{partition}", []).append(row["ts"])
            self._producer.produce(self.topic, json.dumps(row).encode(), partition=partition)
            self._number += 1
            self._producer.poll(0)

    def wider(self):
        """A sender that continues: a producer learns of new partitions when it starts."""
        other = Sending(self._address, self.topic, self._step_us)
        other.sent, other._number = self.sent, self._number
        return other

    def flush(self):
        assert self._producer.flush(HANG_SECONDS) == 0


class Taking:
    """What a query's epochs have read. An epoch that is repeated must be the same as before."""

    def __init__(self):
        self.epochs = {}
        self.lock = threading.Lock()

    def __call__(self, frame, epoch):
        parcels = sorted(
            (
                parcel._replace(data=parcel.data and parcel.data.to_pybytes())
                for parcel in parcels_of(frame.toArrow().to_batches())
            ),
            key=lambda parcel: (parcel.part, parcel.first, parcel.bucket),
        )
        with self.lock:
            assert self.epochs.setdefault(epoch, parcels) == parcels

    def rows(self):
        with self.lock:
            return sum(parcel.rows for parcels in self.epochs.values() for parcel in parcels)

    def times(self):
        """By part, the times of all rows in the order of their offsets."""
        found: dict[str, list[int]] = {}
        for epoch in sorted(self.epochs):
            read: dict[tuple[str, int], list[int]] = {}
            for parcel in self.epochs[epoch]:
                if parcel.data is not None:
                    read.setdefault((parcel.part, parcel.first), []).extend(parcel.table().column("ts").to_pylist())
            for (part, _), times in sorted(read.items()):
                found.setdefault(part, []).extend(sorted(times))  # buckets have divided them; times rise
        return found


@pytest.mark.timeout(600)
def test_rows_arrive_once_while_partitions_are_added_and_the_broker_restarts(spark, broker, tmp_path):
    broker.make("packets", 2)
    sending, taking = Sending(broker.address, "packets"), Taking()
    readers = {"packets": parse_input(f"packets={kafka(broker.address, 'packets', most=700)}", PACKETS)}
    groups = groups_of(as_read(CATALOG, punctuated(readers)), 3)

    def started():
        writer = live_frame(spark, groups, readers).writeStream.foreachBatch(taking)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def all_read(query):
        wait_until(lambda: query.exception() is not None or taking.rows() == sum(map(len, sending.sent.values())))
        assert query.exception() is None, query.exception()

    sending.send(2_000, 2)
    sending.flush()
    query = started()
    all_read(query)
    broker.widen("packets", 4)
    sending.send(2_000, 2)
    sending.flush()
    wider = sending.wider()
    wider.send(1_000, 4)
    broker.end()
    wider.send(1_000, 4)
    broker.start()
    wider.flush()
    all_read(query)
    query.stop()
    wider.send(1_500, 4)
    wider.flush()
    query = started()
    all_read(query)
    query.stop()
    assert {part: sorted(times) for part, times in sending.sent.items()} == taking.times()
    last = {parcel.part: parcel.promise for parcel in taking.epochs[max(taking.epochs)]}
    assert set(last) == {f"packets-{part}" for part in range(4)}
    assert None not in last.values(), "parts that were read to their ends promise"


@pytest.mark.timeout(600)
def test_a_job_has_the_rows_of_millrace_run(spark, broker, tmp_path):
    """Through buckets and epochs into files, with more partitions, a broker that is killed, and a second driver."""
    sql = SQL.replace("disorder = '2 s', max_skew = '9 s'", "disorder = '2 minutes'")
    broker.make("flows", 2)
    sending = Sending(broker.address, "flows", 100_000)
    inputs = {"packets": kafka(broker.address, "flows", most=900)}

    def read():
        last = Checkpoint(tmp_path / "job").last()
        return 0 if last is None else last.totals.input["packets"]

    sending.send(1_500, 2)
    sending.flush()
    query = Job(spark, sql, inputs, tmp_path / "job", buckets=3).start("100 milliseconds")
    wait_until(lambda: query.exception() is not None or read() == 1_500)
    broker.widen("flows", 4)
    sending = sending.wider()
    sending.send(1_000, 4)
    broker.end()
    sending.send(500, 4)
    broker.start()
    sending.flush()
    wait_until(lambda: query.exception() is not None or read() >= 2_000)
    query.stop()
    sending.send(500, 4)
    sending.flush()
    Job(spark, sql, inputs, tmp_path / "job", buckets=3).run_to_end()
    assert read() == 3_500
    lines = [{"ts": BEGIN + number * 100_000, "src": number % 50, "note": "n"} for number in range(3_500)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    right = run_script(sql, tmp_path, inputs=[("packets", str(tmp_path / "all.jsonl"))]).rows["talkers"]
    assert same_rows(rows_of(tmp_path / "job" / "rows" / "talkers"), right) is None


def test_messages_of_aborted_transactions_are_not_rows(broker):
    broker.make("bookings", 1)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(HANG_SECONDS)
    expected = []
    for number in range(12):
        producer.begin_transaction()
        rows = [{"ts": BEGIN + number, "src": one, "note": None} for one in range(50)]
        for row in rows:
            producer.produce("bookings", json.dumps(row).encode())
        if number % 3:
            producer.commit_transaction(HANG_SECONDS)
            expected += rows
        else:
            producer.flush(HANG_SECONDS)  # else they would never be sent
            producer.abort_transaction(HANG_SECONDS)
    reader = parse_input(kafka(broker.address, "bookings"), PACKETS)
    for mosts in ([None], [33, 1, 70]):
        found, end = read_all(reader, mosts)
        assert found == {"bookings-0": expected}
        assert end.parts == {"bookings-0": 12 * 51}, "each transaction ends with a marker, which is not a row"
    producer.begin_transaction()
    producer.produce("bookings", json.dumps(expected[0]).encode())
    producer.flush(HANG_SECONDS)
    assert reader.look(end.parts)["bookings-0"].position == 12 * 51, "an open transaction is not read"
    producer.abort_transaction(HANG_SECONDS)


def test_messages_that_the_broker_has_deleted_are_missed(broker):
    broker.make("short", 1)
    sending = Sending(broker.address, "short")
    sending.send(100, 1)
    sending.flush()
    reader = parse_input(kafka(broker.address, "short"), PACKETS)
    start = reader.initial()
    end = reader.latest(start, reader.look(start.parts), BEGIN, 10)
    for future in broker.admin.delete_records([TopicPartition("short", 0, 40)]).values():
        future.result(HANG_SECONDS)
    with pytest.raises(Refuse, match="offsets 0 to 9 of partition 0 are not there any more"):
        list(reader.read(reader.pieces(start, end)[0]))
    again = parse_input(kafka(broker.address, "short"), PACKETS)
    assert again.first() == {"short-0": 40}
