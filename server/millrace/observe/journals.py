"""The metrics of the journal and its checkpoints: without a data directory, families without samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import HistogramMetricFamily, Metric

from millrace.journal.segments import SYNC_BOUNDS
from millrace.observe.families import Samples, counter, gauge

if TYPE_CHECKING:
    from millrace.run.durability import Durability

_BOUNDS = (*map(str, SYNC_BOUNDS), "+Inf")


def journal_families(durability: Durability | None, now_us: int) -> Iterator[Metric]:
    view = None if durability is None else durability.view()
    statistics = None if durability is None else durability.statistics

    def one(value: float) -> Samples:
        return [] if view is None else [((), value)]

    def since(at_us: int | None) -> float:
        return 0.0 if at_us is None else max(now_us - at_us, 0) / 1e6  # the clock may have gone back

    yield counter(
        "journal_bytes", "Bytes of the records written to the journal.", (),
        one(0 if statistics is None else statistics.bytes),
    )  # fmt: skip
    yield counter(
        "journal_records", "Records written to the journal: one per step of the engine.", (),
        one(0 if statistics is None else statistics.records),
    )  # fmt: skip
    syncs = HistogramMetricFamily(
        "millrace_journal_sync_seconds",
        "How long the disk took to sync the journal; the count is the number of syncs.",
    )
    if view is not None:
        counts = [0] * len(_BOUNDS) if statistics is None else statistics.sync_counts
        total = 0.0 if statistics is None else statistics.sync_seconds
        syncs.add_metric((), list(zip(_BOUNDS, accumulate(counts), strict=True)), total)
    yield syncs
    journal: dict[str, Any] = view or {}
    checkpoint: dict[str, Any] = journal.get("checkpoint", {})
    recovery: dict[str, Any] = journal.get("recovery") or {}
    past: dict[str, Any] = journal.get("past", {})
    full: dict[str, Any] | None = journal.get("full")
    for name, text, value in (
        ("segments", "Segments of the journal on the disk.", journal.get("segments", 0)),
        ("disk_bytes", "Bytes of the journal's segments on the disk.", journal.get("disk_bytes", 0)),
        ("oldest_lsn", "The number of the oldest record in the journal.", journal.get("oldest_lsn", 0)),
        ("newest_lsn", "The number of the newest record in the journal.", journal.get("newest_lsn", 0)),
        (
            "waiting_bytes",
            "Bytes of steps that wait in memory for the disk; with too many, feeds get no credit.",
            journal.get("waiting_bytes", 0),
        ),
        (
            "full_seconds",
            "For how long the journal's disk has been full; zero while there is room.",
            since(None if full is None else full["since_us"]),
        ),
        ("checkpoint_age_seconds", "Age of the newest complete checkpoint.", since(checkpoint.get("at_us"))),
        ("checkpoint_seconds", "How long the newest checkpoint took to make.", checkpoint.get("seconds", 0)),
        (
            "checkpoint_pause_seconds",
            "For how long the newest checkpoint stopped the event loop.",
            checkpoint.get("pause_seconds", 0),
        ),
        ("checkpoint_bytes", "Bytes of the newest complete checkpoint.", checkpoint.get("bytes", 0)),
        (
            "replay_steps",
            "Steps after the newest checkpoint, which a start would replay.",
            checkpoint.get("steps_since", 0),
        ),
        ("past_seconds", "How far back `millrace replay` and `why --at` can reach.", since(past.get("from_us"))),
        (
            "past_bytes",
            "Bytes of segments and checkpoints that are kept for the past alone.",
            past.get("bytes", 0),
        ),
        (
            "recovery_seconds",
            "How long the recovery of this start took, or has taken so far.",
            recovery.get("seconds", 0),
        ),
        ("recovery_steps", "Steps that this start had to replay.", recovery.get("steps", 0)),
        ("recovery_replayed_steps", "Steps that this start has replayed so far.", recovery.get("replayed", 0)),
    ):
        yield gauge(f"journal_{name}", text, (), one(value))
    yield counter(
        "journal_past_dropped_bytes", "Bytes of the past that were removed because the disk was full.", (),
        one(past.get("dropped_bytes", 0)),
    )  # fmt: skip
    yield counter(
        "journal_checkpoints", "Attempts to make a checkpoint since the start, by result.", ("result",),
        [] if view is None else [(("done",), checkpoint["made"]), (("failed",), checkpoint["failures"])],
    )  # fmt: skip
