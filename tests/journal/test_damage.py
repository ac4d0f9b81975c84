"""Damage is found wherever it is, named, and left as it is; only a torn write is cut off."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from millrace.journal.errors import JournalDamaged, JournalError, JournalLocked, JournalMissing, NotRetained
from millrace.journal.layout import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    pack_record,
    read_header,
    scan,
    seed_of,
    segment_lsns,
    segment_name,
)
from millrace.journal.reader import JournalReader
from millrace.journal.segments import SPARE, Journal
from tests.depth import DEEP
from tests.journal.simdisk import SimulatedDisk

SEGMENT_BYTES = 700


class Place(NamedTuple):
    """Where a record is."""

    name: str
    offset: int
    end: int


class Sample(NamedTuple):
    disk: SimulatedDisk
    payloads: list[bytes]
    places: list[Place]
    # Later records prove that this LSN and those before it were synced.
    proven: int


def sample(seed: int = 1) -> Sample:
    """Three segments; groups of records, each of which is synced."""
    random = Random(seed)
    disk = SimulatedDisk(random)
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES, now_us=lambda: 1_000_000)
    payloads = []
    while len(journal.segments) < 3 or journal._offset < SEGMENT_BYTES // 2:
        payloads += [random.randbytes(random.choice((0, 7, 30, 60))) for _ in range(3)]
        proven = journal.synced
        for payload in payloads[-3:]:
            journal.append(payload)
        journal.write()
        journal.sync()
    journal.close()
    places = []
    for first in segment_lsns(disk):
        name = segment_name(first)
        file = disk.open(name)
        offset = HEADER_BYTES
        for record in scan(file, name, read_header(disk, file, first), offset, first):
            places.append(Place(name, offset, record.end))
            offset = record.end
    assert len(places) == len(payloads)
    return Sample(disk, payloads, places, proven)


def everything(disk: SimulatedDisk) -> list[bytes]:
    return [payload for _, payload in JournalReader(disk).read(1)]


def is_refused(disk: SimulatedDisk, act: Callable[[], object], kind: type[JournalError] = JournalError) -> str:
    """The error's text; nothing on the disk has changed."""
    before = disk.contents()
    with pytest.raises(kind) as error:
        act()
    assert disk.contents() == before
    assert "\n" not in error.value.text
    return error.value.text


def positions() -> list[tuple[str, int]]:
    every = [
        (name, at)
        for name, content in sample().disk.contents().items()
        if name != SPARE
        for at in range(len(content.rstrip(b"\0")))
    ]
    return every if DEEP else Random(4).sample(every, 600)


def test_every_damaged_byte_is_found() -> None:
    """Its record is named, or cut off if nothing proves that it was synced; no later record is ever read."""
    disk, payloads, places, proven = sample()
    random = Random(2)
    cut = 0
    for name, at in positions():
        whole = disk.contents()[name]
        damaged = bytearray(whole)
        damaged[at] ^= random.randrange(1, 256)
        disk.store(name, bytes(damaged))
        hit = [lsn for lsn, place in enumerate(places, 1) if place.name == name and place.offset <= at < place.end]
        last = name == places[-1].name
        if not hit:
            for act in (lambda: Journal.open(disk, segment_bytes=SEGMENT_BYTES), lambda: JournalReader(disk).check()):
                assert name in is_refused(disk, act)
        elif hit[0] <= proven:
            text = is_refused(disk, lambda: JournalReader(disk).check(), JournalDamaged)
            assert f"{name}: the record at offset {places[hit[0] - 1].offset} (LSN {hit[0]})" in text
            reader = JournalReader(disk)
            with pytest.raises(JournalDamaged):
                list(reader.read(1))
            assert reader.next_lsn == hit[0]
            if last:
                is_refused(disk, lambda: Journal.open(disk, segment_bytes=SEGMENT_BYTES), JournalDamaged)
        else:
            assert last
            cut += 1
            torn = JournalReader(disk).check().torn
            assert torn is not None
            assert torn.offset == places[hit[0] - 1].offset
            assert everything(disk) == payloads[: hit[0] - 1]
        disk.store(name, whole)
    assert cut
    assert everything(disk) == payloads


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_torn_write_is_cut_off_and_reported(first: int) -> None:
    """Garbage after the last record, at any place and of any length."""
    for seed in range(first, first + 50):
        random = Random(seed)
        disk, payloads, places, _ = sample(3)
        name, _, end = places[-1]
        garbage = random.randbytes(random.randrange(1, SEGMENT_BYTES - end)) + b"\1"
        whole = disk.contents()[name]
        disk.store(name, (whole[:end] + garbage).ljust(SEGMENT_BYTES, b"\0")[:SEGMENT_BYTES])
        journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
        assert journal.torn is not None
        assert (journal.torn.file, journal.torn.offset) == (disk.path(name), end)
        assert journal.torn.bytes == len(garbage)
        assert journal.next_lsn == len(payloads) + 1
        assert disk.contents()[name] == whole
        journal.close()
        assert everything(disk) == payloads


def test_an_old_record_never_follows_a_new_one() -> None:
    """A crash loses the first of two records of one size; its successor has the second's place and number."""
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    for payload in (b"synced", b"old-01", b"old-02"):
        journal.append(payload)
    journal.write()
    journal.close()
    disk.end_process()
    name = segment_name(1)
    content = bytearray(disk.contents()[name])
    size = RECORD_BYTES + 6
    content[HEADER_BYTES + size : HEADER_BYTES + 2 * size] = bytes(size)
    disk.store(name, bytes(content))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    assert journal.torn is not None
    assert journal.append(b"new-01") == 2
    journal.write()
    assert [payload for _, payload in journal.read(1)] == [b"synced", b"new-01"]
    journal.close()
    assert everything(disk) == [b"synced", b"new-01"]


def test_a_record_in_a_payload_proves_nothing() -> None:
    """A client can send the bytes of another journal."""
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    journal.append(b"synced")
    journal.write()
    journal.sync()
    embedded = b"".join(map(bytes, pack_record(0, 9, 8, 0, 3, [b"abc"])))
    journal.append(embedded)
    journal.write()
    journal.close()
    name = segment_name(1)
    content = bytearray(disk.contents()[name])
    content[HEADER_BYTES + RECORD_BYTES + 6] ^= 1  # the CRC of the record that has the payload
    disk.store(name, bytes(content))
    assert JournalReader(disk).check().torn is not None


def test_an_end_that_a_checkpoint_knows_is_not_torn() -> None:
    """Nothing follows the last record, so only somebody else can prove that it was synced."""
    disk, payloads, places, _ = sample()
    last = len(payloads)
    name, offset, end = places[-1]
    content = bytearray(disk.contents()[name])
    content[end - 1] ^= 1
    disk.store(name, bytes(content))
    text = is_refused(disk, lambda: Journal.open(disk, reaches=last), JournalDamaged)
    assert f"{disk.path(name)}: the journal ends at offset {offset} (LSN {last - 1}), but LSN {last} was synced" in text
    journal = Journal.open(disk, reaches=last - 1)
    assert journal.torn is not None
    journal.close()
    empty = SimulatedDisk(Random(1))
    is_refused(empty, lambda: Journal.open(empty, reaches=1), JournalMissing)


def test_a_missing_segment_is_named() -> None:
    disk, _, places, _ = sample()
    names = sorted({place.name for place in places})
    disk.lose(names[1])
    for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
        text = is_refused(disk, act, JournalDamaged)
        assert f"{disk.path(names[1])} is missing between {names[0]} and {names[2]}" in text


def test_a_segment_that_is_half_copied_is_named() -> None:
    disk, _, places, _ = sample()
    for name in sorted({place.name for place in places}):
        whole = disk.contents()[name]
        for size in (0, 10, HEADER_BYTES, len(whole) - 1):
            disk.store(name, whole[:size])
            for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
                assert disk.path(name) in is_refused(disk, act, JournalDamaged)
        disk.store(name, whole)


def test_a_segment_of_another_server_is_refused() -> None:
    disk, _, places, _ = sample()
    other = sample(1).disk
    name = places[-1].name
    disk.store(name, other.contents()[name])
    for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
        assert f"{disk.path(name)} belongs to another server" in is_refused(disk, act)


def test_a_journal_of_another_server_is_refused() -> None:
    disk, _, places, _ = sample()
    text = is_refused(disk, lambda: Journal.open(disk, server_id=b"another-servers!"))
    assert f"{disk.path(places[0].name)} belongs to another server" in text


def test_a_newer_format_is_refused() -> None:
    disk, _, places, _ = sample()
    name = places[-1].name
    content = bytearray(disk.contents()[name])
    content[8] += 1
    disk.store(name, bytes(content))
    for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
        assert "newer Millrace (journal format 2, this one reads 1)" in is_refused(disk, act)


def test_a_renamed_segment_is_named() -> None:
    disk, _, places, _ = sample()
    name = places[-1].name
    other = segment_name(len(places) + 5)
    disk.store(other, disk.contents()[name])
    disk.lose(name)
    for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
        assert f"so it had the name {name}" in is_refused(disk, act, JournalDamaged)


def test_a_block_that_cannot_be_read_is_named() -> None:
    disk, _, places, _ = sample()

    def fail(operation: str, _name: str) -> None:
        if operation == "read":
            raise OSError(errno.EIO, "Input/output error")

    disk.before = fail
    for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
        text = is_refused(disk, act, JournalDamaged)
        assert disk.path(places[0].name) in text
        assert "at offset 0 failed (Input/output error)" in text


def test_a_folder_without_a_journal() -> None:
    disk = SimulatedDisk(Random(1))
    for act in (lambda: Journal.open(disk, create=False), lambda: JournalReader(disk).check()):
        is_refused(disk, act, JournalMissing)
    assert disk.names() == []


def test_a_journal_has_one_writer() -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk)
    is_refused(disk, lambda: Journal.open(disk), JournalLocked)
    journal.close()
    Journal.open(disk).close()


def test_removed_records_are_not_retained() -> None:
    disk, payloads, places, _ = sample()
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    second = next(lsn for lsn, place in enumerate(places, 1) if place.name != places[0].name)
    reader = JournalReader(disk)
    begun = reader.read(1)
    next(begun)
    assert journal.trim(second - 1) == []
    assert [segment.first_lsn for segment in journal.trim(second)] == [1]
    assert journal.first_lsn == reader.first_lsn == second
    # A reader that has the segment open finishes it.
    assert [payload for _, payload in begun] == payloads[1:]
    text = is_refused(disk, lambda: list(JournalReader(disk).read(second - 1)), NotRetained)
    assert f"has LSN {second} and later ones" in text
    assert [payload for _, payload in journal.read(second)] == payloads[second - 1 :]
    # The present segment stays, whatever its records are.
    journal.trim(journal.next_lsn + 100)
    assert len(journal.segments) == 1
    begun = reader.read(1)
    with pytest.raises(NotRetained):
        next(begun)
    journal.close()


def test_a_header_is_all_covered() -> None:
    head = Header(b"0" * 16, 7, 3, SEGMENT_BYTES, 9)
    assert len(head.pack()) == HEADER_BYTES


@pytest.mark.parametrize(("lsn", "synced", "damage"), [(1, 0, False), (3, 1, False), (3, 2, True), (4, 3, True)])
def test_a_record_with_another_number_is_none(lsn: int, synced: int, damage: bool) -> None:
    """A gap is damage if the record after it says that the missing ones were synced."""
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, segment_bytes=SEGMENT_BYTES)
    journal.append(b"first")
    journal.write()
    journal.close()
    name, offset = segment_name(1), HEADER_BYTES + RECORD_BYTES + 5
    content = bytearray(disk.contents()[name])
    record = b"".join(map(bytes, pack_record(seed_of(journal.server_id), lsn, synced, 0, 3, [b"odd"])))
    content[offset : offset + len(record)] = record
    disk.store(name, bytes(content))
    if damage:
        for act in (lambda: Journal.open(disk), lambda: JournalReader(disk).check()):
            text = is_refused(disk, act, JournalDamaged)
            assert f"{disk.path(name)}: the record at offset {offset} (LSN 2) is damaged" in text
    else:
        assert everything(disk) == [b"first"]
        assert JournalReader(disk).check().torn is not None
