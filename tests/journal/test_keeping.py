"""Which checkpoints stay: the past has exactly the span that `keep` says, and goes first when the disk is full."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.journal.checkpoints import Checkpoints
from millrace.journal.keeping import NEEDED, PARTS, Keeping, Saved, past_bytes, staying
from millrace.journal.segments import Journal, Segment
from millrace.journal.writer import GroupCommit
from millrace.protocol import Refuse
from millrace.values.retention import Keep, parse_keep
from tests.depth import examples
from tests.journal.simdisk import SimulatedDisk


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Saved], list[Segment], int]:
    """Checkpoints and segments of a server, and the time now."""
    lsn, at_us, saved = 0, 1_000, []
    for _ in range(draw(st.integers(1, 12))):
        lsn += draw(st.integers(1, 40))
        at_us += draw(st.integers(1, 500))
        saved.append(Saved(lsn, at_us, draw(st.integers(1, 300))))
    starts = sorted(draw(st.sets(st.integers(2, lsn + 5), max_size=8)) | {1})
    segments = [Segment(start, draw(st.sampled_from((100, 100, 250))), 0) for start in starts]
    return saved, segments, at_us + draw(st.integers(0, 300))


keeps = st.builds(Keep, age_us=st.none() | st.integers(1, 3_000), bytes=st.none() | st.integers(0, 2_000))


@settings(max_examples=examples(300))
@given(histories(), keeps)
def test_the_past_has_the_span_and_nothing_before_it(
    history: tuple[list[Saved], list[Segment], int], keep: Keep
) -> None:
    saved, segments, now_us = history
    stay = staying(saved, segments, keep, now_us)
    assert stay[-NEEDED:] == saved[-NEEDED:]  # for a start
    assert stay == [one for one in saved if one in stay]
    past = stay[:-NEEDED]
    if keep.bytes is not None:
        assert not past or past_bytes(stay, segments) <= keep.bytes
    if keep.age_us is not None and past:
        # The checkpoint after the first one would not reach the beginning.
        assert stay[1].at_us > now_us - keep.age_us
    if keep.bytes is None and len(saved) > NEEDED:
        # Every moment of the span can be reached.
        begin = max(now_us - (keep.age_us or now_us), saved[0].at_us)
        assert stay[0].at_us <= begin or stay[0] == saved[0]


@settings(max_examples=examples(150))
@given(histories(), keeps)
def test_deciding_often_is_deciding_once(history: tuple[list[Saved], list[Segment], int], keep: Keep) -> None:
    saved, segments, now_us = history
    stay = staying(saved, segments, keep, now_us)
    assert staying(stay, segments, keep, now_us) == stay


@settings(max_examples=examples(150))
@given(histories(), st.integers(1, 3_000))
def test_checkpoints_inside_the_past_are_far_apart_or_smaller_than_the_records_between(
    history: tuple[list[Saved], list[Segment], int], age_us: int
) -> None:
    saved, segments, now_us = history
    past = staying(saved, segments, Keep(age_us), now_us)[:-NEEDED]
    dear = [
        after
        for before, after in pairwise(past)
        if after.at_us - before.at_us < age_us // PARTS and after.bytes > sum(one.bytes for one in segments)
    ]
    assert not dear
    assert len(staying(saved, segments, Keep(bytes=0), now_us)) == min(len(saved), NEEDED)


def test_the_bytes_of_the_past_are_those_that_a_start_does_not_need() -> None:
    segments = [Segment(first, 100, 0) for first in (1, 11, 21, 31)]
    saved = [Saved(5, 1, 7), Saved(15, 2, 7), Saved(25, 3, 7), Saved(35, 4, 7)]
    # A start needs the records from 26 on, so the third segment too.
    assert past_bytes(saved, segments) == 2 * 100 + 2 * 7
    assert past_bytes(saved[2:], segments[2:]) == 0


# -- files -------------------------------------------------------------------------------------------------------------


def made(folder: Path, lsns: range) -> Checkpoints:
    found = Checkpoints(folder)
    found.folder.mkdir()
    for lsn in lsns:
        found.write_state(lsn, lambda _: b"x" * 100)
        found.write_control(lsn, {"form": 1, "at_us": 1_000 * lsn})
    return found


def test_checkpoints_go_from_the_disk(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, range(10, 60, 10))
    keeping = Keeping(checkpoints, parse_keep("20 ms"))
    keeping.load()
    segments = [Segment(1, 1_000, 0)]
    assert keeping.tidy(segments, 55_000) == 31  # 30 is not later than 35 ms
    assert checkpoints.complete() == [30, 40, 50]
    dropped = checkpoints.written_bytes(30)
    assert keeping.make_room(segments) == 41
    assert keeping.make_room(segments) is None
    assert checkpoints.complete() == [40, 50]
    assert keeping.dropped_bytes == dropped


def test_a_full_disk_takes_the_past_before_anything_waits(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, range(5, 30, 5))
    keeping = Keeping(checkpoints, Keep(bytes=10**9))
    keeping.load()
    disk = SimulatedDisk(Random(1))
    room = [6]

    def before(operation: str, name: str) -> None:
        if operation == "create" and len([one for one in disk.names() if one.endswith("segment")]) >= room[0]:
            raise OSError(errno.ENOSPC, "full")

    disk.before = before
    journal = Journal.open(disk, segment_bytes=700, now_us=lambda: 0)
    full: list[bool] = []
    commit = GroupCommit(
        journal,
        "always",
        lambda _: None,
        lambda _: None,
        lambda now: full.append(now is not None),
        make_room=lambda: keeping.make_room(journal.segments),
    )
    seen: list[int] = []
    for _ in range(40):
        journal.append(bytes(150))
        commit.turn()
        seen.append(journal.first_lsn)
        if full:
            break
    # The records after the last two checkpoints stay, and everything before them has gone, the oldest first.
    assert full == [True]
    assert checkpoints.complete() == [20, 25]
    assert seen == sorted(seen)
    assert 15 < journal.first_lsn <= 21
    room[0] += 1
    commit.turn()
    commit.turn()
    assert keeping.dropped_bytes > 0


# -- the option --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("1 hour", Keep(3_600_000_000)),
        ("4 GB", Keep(bytes=4_000_000_000)),
        ("1 hour | 4 GB", Keep(3_600_000_000, 4_000_000_000)),
        (" 4 GiB|90 min ", Keep(5_400_000_000, 2**32)),
        ("None", Keep(bytes=0)),
    ],
)
def test_keep_reads_a_time_and_a_size(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize(
    "text",
    ["", "|", "1", "1 hour |", "1 hour | 2 hours", "4 GB | 1 GB", "100 rows", "none | 1 hour", "1 h | 1 GB | 2 GB",
     "-1 hour", "0 MB", "soon", "1 month", "9" * 80],
)  # fmt: skip
def test_keep_refuses_nonsense(text: str) -> None:
    with pytest.raises(Refuse, match=r"expected|fixed length"):
        parse_keep(text)
