"""A journal on a simulated disk, cut off again and again, and an auditor that knows what it was promised."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random

from millrace.journal.disk import Buffer
from millrace.journal.errors import JournalBroken, JournalFull
from millrace.journal.reader import JournalReader
from millrace.journal.segments import Journal
from tests.journal.simdisk import PowerCut, SimulatedDisk

SEGMENT_BYTES = 1_500
# Few sizes, so that a record of before a cut often has the place of one of after it; the last needs its own segment.
SIZES = (0, 20, 20, 20, 200, 200, 700, 2_500)
ACTIONS = ("append", "append", "append", "append", "write", "write", "sync", "read", "trim")


@dataclass
class Plan:
    """One life of a server: what it does, and the operation of the disk in whose middle the power is cut."""

    actions: list[str]
    cut_at: int | None
    # The process ends, and the machine does not.
    kill: bool = False
    faults: dict[int, int] = field(default_factory=dict)
    recovery_cut_at: int | None = None


def draw_plan(random: Random) -> Plan:
    actions = [random.choice(ACTIONS) for _ in range(random.randrange(1, 60))]
    faults = {}
    if random.random() < 0.3:
        faults = {
            random.randrange(40): random.choice((errno.EIO, errno.ENOSPC, errno.ENOSPC))
            for _ in range(random.randrange(1, 6))
        }
    return Plan(
        actions,
        random.randrange(1, 60) if random.random() < 0.8 else None,
        random.random() < 0.2,
        faults,
        random.randrange(1, 12) if random.random() < 0.3 else None,
    )


class World:
    """After every cut, the journal is a prefix of the appended records, with every one whose sync returned."""

    def __init__(self, random: Random, kind: type[Journal] = Journal) -> None:
        self.random = random
        self.kind = kind
        self.disk = SimulatedDisk(random)
        # The payloads appended so far, and how many of them are promised.
        self.appended: list[bytes] = []
        self.promised = 0
        self.trimmed = 1
        self.cuts = 0
        self.seen = 0
        self.journal: Journal | None = None
        self.reader = JournalReader(self.disk)
        self._operations = 0
        self._plan = Plan([], None)
        self._recovering = False
        self._now_us = 0

    def live(self, plan: Plan) -> None:
        self._plan, self._operations = plan, 0
        try:
            self._open()
            for action in plan.actions:
                getattr(self, f"_{action}")()
        except PowerCut:
            pass
        except JournalBroken:
            # The server ends. Its machine continues, or fails next.
            plan.kill = plan.kill or self.random.random() < 0.5
        self.disk.midway, self.disk.before = lambda: None, lambda _operation, _name: None
        if plan.kill:
            self.disk.end_process()
        else:
            self.disk.crash()
        self.cuts += 1
        self.journal = None
        self._recover()

    def _recover(self) -> None:
        """Open the journal, perhaps with cuts during that, audit it and close it."""
        self._operations, self._recovering = 0, True
        if self._plan.recovery_cut_at is not None:
            self.disk.before = self._before
        try:
            self._open()
        except PowerCut:
            self.disk.before = lambda _operation, _name: None
            self.disk.crash()
            self.cuts += 1
            self._open()
        self.disk.before = lambda _operation, _name: None
        self._recovering = False
        self._audit()
        assert self.journal is not None
        self.journal.close()
        self.journal = None

    def _open(self) -> None:
        self.reader = JournalReader(self.disk)
        self.journal = self.kind.open(self.disk, segment_bytes=SEGMENT_BYTES, server_id=b"0" * 16, now_us=self._now)
        last = self.journal.next_lsn - 1
        assert self.promised <= last <= len(self.appended), (self.promised, last, len(self.appended))
        # The survivors are durable from now on, and the others never appear again.
        del self.appended[last:]
        self.promised = last
        self.seen = self.journal.first_lsn - 1
        if not self._recovering:
            self.disk.before, self.disk.midway = self._before, self._read_midway

    def _now(self) -> int:
        self._now_us += 200_000
        return self._now_us

    def _before(self, operation: str, name: str) -> None:
        if operation == "read" or (operation == "open" and not self._recovering):
            return  # these change nothing
        self._operations += 1
        cut_at = self._plan.recovery_cut_at if self._recovering else self._plan.cut_at
        if self._operations == cut_at:
            raise PowerCut
        fault = self._plan.faults.get(self._operations)
        if fault is not None and not self._recovering:
            raise OSError(fault, errno.errorcode[fault])

    def _audit(self) -> None:
        assert self.journal is not None
        journal = self.journal
        assert journal.first_lsn <= self.trimmed
        got = list(journal.read(journal.first_lsn))
        assert [lsn for lsn, _ in got] == list(range(journal.first_lsn, len(self.appended) + 1))
        assert [payload for _, payload in got] == self.appended[journal.first_lsn - 1 :]
        checked = JournalReader(self.disk).check()
        assert checked.torn is None
        assert (checked.first_lsn, checked.next_lsn) == (journal.first_lsn, journal.next_lsn)

    # -- actions -------------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        assert self.journal is not None
        payload = self.random.randbytes(self.random.choice(SIZES))
        self.appended.append(payload)
        parts: list[Buffer] = [payload[:3], bytearray(payload[3:9]), memoryview(payload)[9:]]
        assert self.journal.append(parts if self.random.random() < 0.5 else payload) == len(self.appended)

    def _write(self) -> None:
        assert self.journal is not None
        try:
            written = self.journal.write()
            assert written == len(self.appended)
        except JournalFull:
            assert self.journal.written < len(self.appended)
            assert self.journal.full is not None

    def _sync(self) -> None:
        assert self.journal is not None
        synced = self.journal.sync()
        assert synced == self.journal.written
        self.promised = synced

    def _trim(self) -> None:
        assert self.journal is not None
        before = self.random.randrange(1, self.promised + 2)
        self.trimmed = max(self.trimmed, before)
        self.journal.trim(before)

    def _read(self) -> None:
        assert self.journal is not None
        self._read_midway()
        assert max(self.seen, self.journal.first_lsn - 1) >= self.journal.written

    def _read_midway(self) -> None:
        """Another process reads; it never waits for the writer."""
        assert self.journal is not None
        for lsn, payload in self.reader.read(max(self.seen + 1, self.journal.first_lsn)):
            assert payload == self.appended[lsn - 1]
            self.seen = lsn


def play(seed: int, lives: int = 8, kind: type[Journal] = Journal) -> int:
    """Play one world; returns how often it was cut off."""
    random = Random(seed)
    world = World(random, kind)
    try:
        for _ in range(lives):
            world.live(draw_plan(random))
    except Exception as error:
        error.add_note(f"seed {seed} fails; again: python -m tests.journal --from {seed} --seeds 1")
        raise
    return world.cuts
