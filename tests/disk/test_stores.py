"""Stores on disks that are cut off at random lose nothing that was promised; hasty stores are caught."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.history import files as history
from millrace.journal import checkpoints
from millrace.store import places, resultlog, sinkfiles
from millrace.store.results import Results
from tests.depth import DEEP
from tests.disk.stores import Server, play

SEEDS = 2_000 if DEEP else 20
# Seeds that no run before has played.
FRESH = 10


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_nothing_promised_is_lost(memory_path: Path, first: int) -> None:
    assert sum(play(memory_path, seed) for seed in range(first, first + 20)) == 240


def test_fresh_seeds(memory_path: Path) -> None:
    first = int.from_bytes(os.urandom(4), "little")
    for seed in range(first, first + FRESH):
        play(memory_path, seed)


class BeforeRows(Server):
    """Completes a checkpoint before retained rows are durable."""

    def sync_results(self) -> None:
        self.results.work()


class EarlyRows(Server):
    """Carries out the orders of a step before its record is synced."""

    def write(self) -> None:
        super().write()
        self._carry_out(self.journal.written)


@pytest.mark.parametrize("hasty", [BeforeRows, EarlyRows])
def test_a_hasty_server_is_caught(memory_path: Path, hasty: type[Server]) -> None:
    assert caught(lambda seed: play(memory_path, seed, kind=hasty))


def nothing(*_: object, **__: object) -> None:
    pass


def no_parts(*_: object) -> list[Path]:
    return []


@pytest.mark.parametrize(
    ("place", "name", "hasty"),
    [
        (checkpoints, "sync_folder", nothing),
        (Results, "sync_folder", nothing),
        (places, "sync_names", nothing),
        (sinkfiles.Folder, "sync", nothing),
        (sinkfiles.Disk, "sync", nothing),
        (history, "sync_folder", nothing),
        (history, "remove_parts", no_parts),
        (resultlog, "settle", nothing),
    ],
)
def test_a_hasty_store_is_caught(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, hasty: Callable[..., Any]
) -> None:
    """It skips a sync, or takes what the system shows for what is on the disk."""
    monkeypatch.setattr(place, name, hasty)
    assert caught(lambda seed: play(memory_path, seed))


def caught(play_one: Callable[[int], object]) -> bool:
    for seed in range(500):
        try:
            play_one(seed)
        except Exception:
            return True
    return False
