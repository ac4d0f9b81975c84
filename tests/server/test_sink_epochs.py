"""Two servers with the same place for a sink: the one that was replaced changes nothing there."""

import asyncio
import os
import random
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from millrace.net.silence import Silence
from millrace.protocol import Refuse
from millrace.standby.epoch import Epoch, Fence
from millrace.standby.lease import PrimaryLease
from millrace.standby.sinkfence import OPEN, Outdated, SinkFence
from millrace.store import resultlog
from millrace.store import results as results_module
from millrace.store.placemarks import mark_name
from millrace.store.sinkfiles import SinkPosition
from tests.server.harness import until
from tests.server.test_sink_positions import HISTORY, LINES, WHOLE, Life, content, opened, restarted, rows_of

SERVER_ID, OTHER_ID = b"0" * 16, b"1" * 16


def leading(number, server_id=SERVER_ID):
    fence = SinkFence()
    fence.server_id = server_id
    fence.lead(Fence(server_id, Epoch(number)))
    return fence


def start(folder, ending, fence, position=None):
    """A server that continues a sink."""
    new = position is None
    return restarted(folder, ending, position or SinkPosition(HISTORY, 0), makes=new, fence=fence)


def picture(folder):
    """All that is below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        labels = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        found[path] = path.read_bytes() if path.is_file() else None, labels
    return found


def attempts(file, at):
    """All that a server does with a sink, and that changes its place."""
    return [
        lambda: file.write(at, rows_of(at, 9)),
        file.flush,
        file.committed,
        file.close,
        file.open,
    ]


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
def test_a_server_of_a_lower_epoch_changes_nothing(tmp_path, ending):
    old = start(tmp_path, ending, leading(1))
    old.write(0, rows_of(0, 9))
    stored = old.committed()
    old.write(9, rows_of(9, 3))  # two of them are in no whole file
    new = start(tmp_path, ending, leading(2), stored)
    new.write(stored.next, rows_of(stored.next, 14 - stored.next))
    before = picture(tmp_path)
    for attempt in attempts(old, 12):
        with pytest.raises(Outdated, match="a server of epoch 2 writes it, and this one has epoch 1"):
            attempt()
        assert picture(tmp_path) == before
    with pytest.raises(Outdated) as refused:
        start(tmp_path, ending, leading(1), stored)
    assert refused.value.proof == Fence(SERVER_ID, Epoch(2)).proof
    assert picture(tmp_path) == before
    new.write(14, rows_of(14, 7))
    new.close()
    assert content(tmp_path, ending) == list(range(21))


class World:
    """Servers of rising epochs with one place. Each knows all rows of the one before, and some of its positions."""

    def __init__(self, folder, ending, seed, fence_of=leading):
        self.rng = random.Random(f"{ending} {seed}")
        self.folder, self.ending, self.fence_of = folder, ending, fence_of
        self.emitted = 0
        self.stored = None
        self.epoch = 1
        self.file = start(folder, ending, fence_of(1))
        self.old = []

    def write(self):
        at, count = self.file.next or 0, self.rng.randrange(1, 12)
        self.file.write(at, rows_of(at, count))
        self.emitted = max(self.emitted, at + count)

    def commit(self):
        self.stored = self.file.committed() or self.stored

    def promote(self):
        """The server sleeps. Another one takes over, and has perhaps not written yet."""
        self.old.append(self.file)
        self.epoch += 1
        self.file = start(self.folder, self.ending, self.fence_of(self.epoch), self.stored or SinkPosition(HISTORY, 0))
        if self.rng.random() < 0.8:
            at = 0 if self.stored is None else self.stored.next
            if at < self.emitted:
                self.file.write(at, rows_of(at, self.emitted - at))

    def wake(self):
        """An older server continues, in whatever it was doing, or starts again."""
        if not self.old:
            return
        file = self.rng.choice(self.old)
        if self.rng.random() < 0.2:
            with pytest.raises(Outdated):
                start(self.folder, self.ending, self.fence_of(1), SinkPosition(HISTORY, 0))
            return
        before = picture(self.folder)
        with suppress(Outdated):  # it may be closed already
            self.rng.choice(attempts(file, file.next or 0))()
        assert picture(self.folder) == before

    def play(self):
        for _ in range(self.rng.randrange(5, 40)):
            self.rng.choice([self.write, self.write, self.commit, self.promote, self.wake])()
        at = self.file.next or 0
        if at < self.emitted:
            self.file.write(at, rows_of(at, self.emitted - at))
        for file in self.old:
            file.abandon()
        self.file.close()
        assert self.file.notice is None
        assert content(self.folder, self.ending) == list(range(self.emitted))


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
@pytest.mark.parametrize("seed", range(12))
def test_no_row_is_lost_or_doubled_by_servers_that_wake_up(tmp_path, ending, seed):
    World(tmp_path, ending, seed).play()


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
def test_without_the_fence_rows_are_doubled(tmp_path, ending):
    old = start(tmp_path, ending, OPEN)
    old.write(0, rows_of(0, 3))
    new = start(tmp_path, ending, OPEN, old.committed())
    new.write(3, rows_of(3, 2))
    new.close()
    old.write(3, rows_of(3, 4))
    old.close()
    assert content(tmp_path, ending).count(3) == 2


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
def test_a_server_that_replays_waits_and_then_knows(tmp_path, ending):
    """Its journal has not said yet that the epoch is its own."""
    start(tmp_path, ending, leading(3)).abandon()
    known = [Epoch(1)]
    fence = SinkFence(lambda: known[0])
    fence.server_id = SERVER_ID
    before = picture(tmp_path)
    with pytest.raises(Refuse, match="as far as it has replayed its journal") as refused:
        start(tmp_path, ending, fence, SinkPosition(HISTORY, 0))
    assert not isinstance(refused.value, Outdated)
    assert picture(tmp_path) == before
    known[0] = Epoch(3)
    start(tmp_path, ending, fence, SinkPosition(HISTORY, 0)).abandon()
    fence.lead(Fence(SERVER_ID, Epoch(4)))
    start(tmp_path, ending, fence, SinkPosition(HISTORY, 0)).abandon()
    with pytest.raises(Outdated):
        start(tmp_path, ending, leading(3), SinkPosition(HISTORY, 0))


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
def test_nothing_is_left_in_the_first_epoch_or_without_a_journal(tmp_path, ending):
    for fence in (leading(1), OPEN):
        file = start(tmp_path, ending, fence)
        file.write(0, rows_of(0, 9))
        file.abandon()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".epoch")]


@pytest.mark.parametrize("ending", [*LINES, *WHOLE])
@pytest.mark.parametrize("text", ["", "2", "9-0123456789abcdef", "x" * 1_000, "9-é", "of another server"])
def test_texts_that_prove_nothing_hinder_nobody(tmp_path, ending, text):
    if text == "of another server":
        text = Fence(OTHER_ID, Epoch(9)).proof
    place = tmp_path / f".out.{ending}.epoch"
    if ending in WHOLE:
        (tmp_path / f"out.{ending}").mkdir()
        place = tmp_path / f"out.{ending}" / mark_name("f")
    place.write_text(text)
    start(tmp_path, ending, leading(1)).abandon()
    assert place.read_text() == text
    start(tmp_path, ending, leading(2), SinkPosition(HISTORY, 0)).abandon()
    assert place.read_text() == Fence(SERVER_ID, Epoch(2)).proof + "\n"


@pytest.mark.parametrize("policy", ["wait", "disconnect", "drop_oldest"])
@pytest.mark.parametrize("retain", ["1 GB", "50 rows", "none"])
@pytest.mark.parametrize("ending", ["csv", "arrow"])
def test_a_standby_leaves_a_shared_place_to_its_primary(tmp_path, ending, retain, policy, monkeypatch):
    """Until it is promoted. It then continues after the rows that are there."""
    monkeypatch.setattr(resultlog, "LEAST_FILE_BYTES", 2_000)
    monkeypatch.setattr(resultlog, "ORDINARY_FILE_BYTES", 2_000)
    monkeypatch.setattr(results_module, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr("millrace.net.sink.LIVE_BYTES", 4_000)
    monkeypatch.setattr("millrace.net.sink.PIECE_BYTES", 2_000)
    rng = random.Random(f"{ending} {retain} {policy}")
    shared = tmp_path / "shared"
    shared.mkdir()
    fence = SinkFence()
    fence.server_id = SERVER_ID

    async def play():
        primary = Life(tmp_path / "one", ending, (0, None), retain, policy, shared, fence=leading(1))
        checkpoint = await primary.checkpoint()

        def standby_from(checkpoint):
            silence = Silence(PrimaryLease())
            silence.follows = True
            return Life(
                tmp_path / "two", ending, checkpoint, retain, policy, shared,
                fence=fence, silence=silence, private=False,
            )  # fmt: skip

        standby, emitted = standby_from(checkpoint), 0
        for _ in range(60):
            primary.emit(40)
            await until(lambda: not primary.sink.held)
            emitted = primary.following
            while standby.following < emitted:
                standby.emit(min(rng.randrange(1, 60), emitted - standby.following))
            if rng.random() < 0.1:
                checkpoint = await standby.checkpoint()
            if rng.random() < 0.1:
                await standby.kill()
                standby = standby_from(checkpoint)
        while standby.following < emitted:
            standby.emit(emitted - standby.following)
        assert not standby.sink.delivered
        if retain == "50 rows":
            await standby.results.sync()
            assert standby.log.next - standby.log.oldest < 1_200, "the log holds rows for a sink that rests"
        fence.lead(Fence(SERVER_ID, Epoch(2)))
        silence = standby.sink._silence
        silence.follows = False
        silence.look()
        await until(lambda: not standby.sink.held)
        standby.emit(40)
        await until(lambda: not standby.sink.held)
        await standby.end()
        assert standby.sink.dropped == 0
        assert standby.sink.reason is None
        await primary.kill()
        assert content(shared, ending) == list(range(emitted + 40))

    with capture_logs() as logs:
        asyncio.run(play())
    assert [one["event"] for one in logs if one["log_level"] == "error" or "slow" in one["event"]] == []


def test_the_text_for_a_place_is_durable_before_its_rows(tmp_path, monkeypatch):
    synced, written = [], []
    fsync, write = os.fsync, os.write

    def note_fsync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def note_write(handle, data):
        written.append((os.readlink(f"/proc/self/fd/{handle}"), list(synced)))
        return write(handle, data)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "write", note_write)
    file = opened(tmp_path, "jsonl", fence=leading(2))
    file.history = HISTORY
    file.write(0, rows_of(0, 1))
    (_, _), (path, before) = written
    assert path == str(tmp_path / "out.jsonl")
    aside = str(tmp_path / ".out.jsonl.epoch.part")
    assert str(tmp_path) in before[before.index(aside) :], "its bytes, and then its name"
    file.abandon()
