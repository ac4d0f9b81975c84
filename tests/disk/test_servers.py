"""A whole server whose power is cut keeps what it promised; one that promises too early is caught."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from millrace.journal.segments import Journal
from millrace.protocol import MillraceError
from millrace.store.results import Results
from tests.depth import DEEP
from tests.disk.servers import Moment, audit, record

MOMENTS = 200 if DEEP else 4


def test_cut_servers_keep_what_they_promised(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    record_property("seed", seed)
    random = Random(seed)
    audit_all(record(memory_path / "server", random, MOMENTS, monkeypatch), memory_path, random)


def audit_all(moments: Sequence[Moment], folder: Path, random: Random) -> None:
    for number, moment in enumerate(moments):
        audit(moment, folder / f"{number}", random)


async def no_sync(_: Results) -> None:
    """A checkpoint is completed before retained rows are durable."""


def early_sync(journal: Journal) -> int:
    """Acknowledgements and rows leave before their step is durable."""
    journal.synced = journal.written
    return journal.synced


@pytest.mark.parametrize(("place", "hasty"), [(Results, no_sync), (Journal, early_sync)])
def test_a_hasty_server_is_caught(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, place: type, hasty: object
) -> None:
    random = Random(1)
    with monkeypatch.context() as patch:
        patch.setattr(place, "sync", hasty)
        moments = record(memory_path / "server", random, 60, monkeypatch)
    late = [moment for moment in moments if moment.promised.acknowledged]
    random.shuffle(late)
    with pytest.raises((AssertionError, MillraceError)):
        audit_all(late[:30], memory_path, random)
