"""`/metrics` of a live job's driver, for Prometheus. Names and units are the server's where it has them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from millrace.protocol import Refuse
from millrace.spark.records import CommitRecord
from millrace.spark.status import parts_behind
from millrace.spark.words import mark_and_lag, slowest_bucket

HOST = "127.0.0.1"


class Metrics:
    """What the newest commit says, served while this is open; without an address it serves nothing."""

    def __init__(self, address: str | None) -> None:
        registry = self.registry = CollectorRegistry()
        self._place = None if address is None else parse_place(address)
        self._server: Any = None
        self.port: int | None = None
        self._epoch = Gauge("millrace_spark_epoch", "The newest committed epoch", registry=registry)
        self._rows_in = Counter("millrace_spark_rows_read", "Rows read", ["stream"], registry=registry)
        self._rows_out = Counter("millrace_spark_rows_emitted", "Rows emitted", ["query"], registry=registry)
        self._late = Counter("millrace_spark_late", "Late rows, which entered no query", ["stream"], registry=registry)
        self._failed = Counter(
            "millrace_spark_failed_rows", "Rows that could not be computed", ["operator"], registry=registry
        )
        self._lag = Gauge(
            "millrace_spark_mark_lag_seconds", "Time of the epoch minus the lowest mark", registry=registry
        )
        self._seconds = Gauge(
            "millrace_spark_epoch_seconds", "Duration of the newest epoch", ["phase"], registry=registry
        )
        self._skew = Gauge(
            "millrace_spark_bucket_skew", "Time of the slowest bucket divided by the mean", registry=registry
        )
        self._behind = Gauge(
            "millrace_spark_parts_behind", "Parts behind another part of their stream", registry=registry
        )

    def __enter__(self) -> Metrics:
        if self._place is not None:
            host, port = self._place
            try:
                self._server, _ = start_http_server(port, host, registry=self.registry)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise Refuse(f"--metrics {host}:{port}: cannot listen there ({reason})", code="bad_value") from None
            self.port = self._server.server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def observe(self, commit: CommitRecord) -> None:
        """Show this commit."""
        self._epoch.set(commit.epoch)
        for counter, counts in (
            (self._rows_in, commit.counts.input),
            (self._rows_out, commit.counts.rows),
            (self._late, commit.counts.late),
            (self._failed, {operator: count for operator, (count, _) in commit.counts.failed.items()}),
        ):
            for name, count in counts.items():
                counter.labels(name).inc(count)
        for phase, seconds in commit.spent.items():
            self._seconds.labels(phase).set(seconds)
        lag, slow = mark_and_lag(commit), slowest_bucket(commit)
        if lag is not None:
            self._lag.set(lag[1] / 1e6)
        if slow is not None:
            self._skew.set(slow[1])
        self._behind.set(len(parts_behind(commit)))


def parse_place(text: str) -> tuple[str, int]:
    """A port, or a host and a port."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise Refuse(f"--metrics {text}: expected PORT or HOST:PORT", code="bad_value")
    return host or HOST, int(port)
