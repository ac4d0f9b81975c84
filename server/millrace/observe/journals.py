"""The metrics of the journal and its checkpoints: without a data directory, families without samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily, Metric

from millrace.journal.segments import SYNC_BOUNDS
from millrace.observe.families import Samples, counter, gauge
from millrace.protocol.admin.server import JournalView

if TYPE_CHECKING:
    from millrace.run.durability import Durability

_BOUNDS = (*map(str, SYNC_BOUNDS), "+Inf")


def _since(at_us: int | None, now_us: int) -> float:
    return 0.0 if at_us is None else max(now_us - at_us, 0) / 1e6  # the clock may have gone back


def _of_recovery(name: str) -> Callable[[JournalView, int], float]:
    return lambda journal, _: 0.0 if journal.recovery is None else getattr(journal.recovery, name)


# The name of each gauge, its description, and its value now.
_GAUGES: Final[tuple[tuple[str, str, Callable[[JournalView, int], float]], ...]] = (
    ("segments", "Segments of the journal on the disk.", lambda journal, _: journal.segments),
    ("disk_bytes", "Bytes of the journal's segments on the disk.", lambda journal, _: journal.disk_bytes),
    ("oldest_lsn", "The number of the oldest record in the journal.", lambda journal, _: journal.oldest_lsn),
    ("newest_lsn", "The number of the newest record in the journal.", lambda journal, _: journal.newest_lsn),
    (
        "waiting_bytes",
        "Bytes of steps that wait in memory for the disk; with too many, feeds get no credit.",
        lambda journal, _: journal.waiting_bytes,
    ),
    (
        "full_seconds",
        "For how long the journal's disk has been full; zero while there is room.",
        lambda journal, now_us: _since(None if journal.full is None else journal.full.since_us, now_us),
    ),
    (
        "checkpoint_age_seconds",
        "Age of the newest complete checkpoint.",
        lambda journal, now_us: _since(journal.checkpoint.at_us, now_us),
    ),
    (
        "checkpoint_seconds",
        "How long the newest checkpoint took to make.",
        lambda journal, _: journal.checkpoint.seconds,
    ),
    (
        "checkpoint_pause_seconds",
        "For how long the newest checkpoint stopped the event loop.",
        lambda journal, _: journal.checkpoint.pause_seconds,
    ),
    ("checkpoint_bytes", "Bytes of the newest complete checkpoint.", lambda journal, _: journal.checkpoint.bytes),
    (
        "replay_steps",
        "Steps after the newest checkpoint, which a start would replay.",
        lambda journal, _: journal.checkpoint.steps_since,
    ),
    (
        "past_seconds",
        "How far back `millrace replay` and `why --at` can reach.",
        lambda journal, now_us: _since(journal.past.from_us, now_us),
    ),
    (
        "past_bytes",
        "Bytes of segments and checkpoints that are kept for the past alone.",
        lambda journal, _: journal.past.bytes,
    ),
    ("follower_running", "1 while a follower of the journal runs.", lambda journal, _: journal.follower.running),
    (
        "follower_lag_steps",
        "Steps that the follower has not taken yet.",
        lambda journal, _: journal.follower.lag_steps,
    ),
    (
        "follower_lag_seconds",
        "For how long the oldest step that the follower has not taken has been recorded.",
        lambda journal, _: journal.follower.lag_seconds,
    ),
    ("recovery_seconds", "How long the recovery of this start took, or has taken so far.", _of_recovery("seconds")),
    ("recovery_steps", "Steps that this start had to replay.", _of_recovery("steps")),
    ("recovery_replayed_steps", "Steps that this start has replayed so far.", _of_recovery("replayed")),
)


def journal_families(durability: Durability | None, now_us: int) -> Iterator[Metric]:
    view = None if durability is None else durability.view()
    statistics = None if durability is None else durability.statistics

    def one(value: float) -> Samples:
        return [] if view is None else [((), value)]

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
    for name, text, value in _GAUGES:
        yield gauge(f"journal_{name}", text, (), [] if view is None else [((), value(view, now_us))])
    yield counter(
        "journal_past_dropped_bytes", "Bytes of the past that were removed because the disk was full.", (),
        one(0 if view is None else view.past.dropped_bytes),
    )  # fmt: skip
    yield counter(
        "journal_checkpoints", "Attempts to make a checkpoint since the start, by result.", ("result",),
        [] if view is None else [(("done",), view.checkpoint.made), (("failed",), view.checkpoint.failures)],
    )  # fmt: skip
    for name, text in (
        ("starts", "Followers of the journal that were started."),
        ("failures", "Followers that ended by themselves, fell too far behind, or could not be started."),
        (
            "differences",
            "Replays of the journal, by followers and starts, that led to another state than the server's.",
        ),
    ):
        yield counter(f"journal_follower_{name}", text, (), one(0 if view is None else getattr(view.follower, name)))
