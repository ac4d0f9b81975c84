"""A real Apache Kafka of one node on the loopback: its jars from Maven, KRaft mode, ports that are free."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.patience import HANG_SECONDS

VERSION: Final = "4.1.0"
# Downloaded once: forty jars, 40 MB.
JARS: Final = Path(__file__).resolve().parents[2] / "build" / f"kafka-{VERSION}"
CLUSTER: Final = "Mz3HIBTzSwqVtLV_LVDpvA"
JAVA: Final = ("java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millrace</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""
PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=2
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def jars() -> str:
    """The class path of Kafka's own jars."""
    if not JARS.exists():
        assert shutil.which("mvn"), "Kafka's jars come from Maven Central: install Maven (mvn)"
        aside = JARS.with_name(f".{JARS.name}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        (aside / "pom.xml").write_text(POM.format(version=VERSION))
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
        done = subprocess.run(command, cwd=aside, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2_000:]
        aside.rename(JARS)
    return os.pathsep.join(map(str, sorted((JARS / "jars").glob("*.jar"))))


class Kafka:
    """A broker, which can be killed and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        self._file = folder / "server.properties"
        self._file.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._file)).wait(HANG_SECONDS)
        self.start()

    def _run(self, kind: str, *flags: str) -> subprocess.Popen[bytes]:
        with (self._folder / "kafka.log").open("ab") as log:
            return subprocess.Popen([*JAVA, "-cp", jars(), kind, *flags], stdout=log, stderr=log)

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = self._run("kafka.Kafka", str(self._file))
        until = time.monotonic() + HANG_SECONDS
        while time.monotonic() < until:
            assert self._process.poll() is None, (self._folder / "kafka.log").read_text()[-3_000:]
            try:
                self.admin.list_topics(timeout=1)
                return
            except KafkaException:
                continue
        raise AssertionError("the broker does not answer")

    def end(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(HANG_SECONDS)
            self._process = None

    def make(self, topic: str, partitions: int) -> None:
        for future in self.admin.create_topics([NewTopic(topic, partitions)]).values():
            future.result(HANG_SECONDS)

    def widen(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(HANG_SECONDS)


@contextmanager
def kafka_at(folder: Path) -> Iterator[Kafka]:
    """A broker that ends with the block."""
    broker = Kafka(folder)
    try:
        yield broker
    finally:
        broker.end()


def _free_ports(count: int) -> list[int]:
    """Ports that are free now. A restarted broker needs the same one, so the system cannot choose it at the start."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
