"""Journals that are cut off at random lose nothing that was promised; hasty journals are caught."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.journal.disk import Disk
from millrace.journal.errors import JournalBroken
from millrace.journal.layout import Header, Torn
from millrace.journal.segments import Journal, Segment
from tests.depth import DEEP, examples
from tests.journal.simdisk import Inode, SimulatedDisk
from tests.journal.world import ACTIONS, Plan, World, play

SEEDS = 2_000 if DEEP else 150
# Seeds that no run before has played.
FRESH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_nothing_promised_is_lost(first: int) -> None:
    assert sum(play(seed) for seed in range(first, first + 50)) >= 400


def test_fresh_seeds() -> None:
    first = int.from_bytes(os.urandom(4), "little")
    for seed in range(first, first + FRESH):
        play(seed)


plans = st.builds(
    Plan,
    st.lists(st.sampled_from(sorted(set(ACTIONS))), max_size=40),
    st.none() | st.integers(1, 40),
    st.booleans(),
    st.dictionaries(st.integers(1, 40), st.sampled_from([5, 28]), max_size=3),
    st.none() | st.integers(1, 10),
)


@given(st.lists(plans, min_size=1, max_size=5), st.integers(0, 2**32))
@settings(max_examples=examples(300), deadline=None)
def test_nothing_promised_is_lost_in_generated_lives(lives: list[Plan], seed: int) -> None:
    world = World(Random(seed))
    for plan in lives:
        world.live(plan)


class BeforeSync(Journal):
    """Reports synced before it has synced."""

    def sync(self) -> int:
        self.synced = self.written
        return self.synced


class Uncut(Journal):
    """Leaves old records where a crash left them."""

    def _cut(self, torn: Torn) -> None:
        pass


class HalfSegments(Journal):
    """Starts a segment when the one before is not synced."""

    def _roll(self, payload: int) -> None:
        synced, self.synced = self.synced, self.written
        super()._roll(payload)
        self.synced = synced


class LooseNames(Journal):
    """Counts records in a segment whose name may be lost."""

    def _place(self, file: object, head: Header) -> None:
        without_folder_syncs(self.disk, lambda: super(LooseNames, self)._place(file, head))  # type: ignore[arg-type]


class TrimsAtOnce(Journal):
    """Removes several segments before it syncs the folder."""

    def trim(self, before_lsn: int) -> list[Segment]:
        removed: list[Segment] = []
        without_folder_syncs(self.disk, lambda: removed.extend(super(TrimsAtOnce, self).trim(before_lsn)))
        self.disk.sync_folder()
        return removed


class SyncsAgain(Journal):
    """Takes the second fdatasync for the truth."""

    def sync(self) -> int:
        try:
            return super().sync()
        except JournalBroken:
            self._broken = None
            return super().sync()


def without_folder_syncs(disk: Disk, act: Callable[[], object]) -> None:
    disk.sync_folder = lambda: None  # type: ignore[method-assign]
    try:
        act()
    finally:
        del disk.sync_folder


@pytest.mark.parametrize("hasty", [BeforeSync, Uncut, HalfSegments, LooseNames, TrimsAtOnce, SyncsAgain])
def test_a_hasty_journal_is_caught(hasty: type[Journal]) -> None:
    assert caught(lambda seed: play(seed, kind=hasty))


def test_a_start_that_trusts_the_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync, the system shows bytes that are not on the disk."""
    monkeypatch.setattr(Inode, "reload", lambda inode: inode.unsynced.clear())
    monkeypatch.setattr(SimulatedDisk, "crash", crash_truly)
    assert caught(play)


def crash_truly(disk: SimulatedDisk) -> None:
    crash(disk)
    for inode in disk._names.values():
        inode.shown = bytearray(inode.durable)


crash = SimulatedDisk.crash


def caught(play_one: Callable[[int], object]) -> bool:
    for seed in range(2_000):
        try:
            play_one(seed)
        except Exception:
            return True
    return False
