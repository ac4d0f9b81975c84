"""A follower of a journal that grows, is torn and cut, has the server's state at every mark, or names what differs."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace.engine.digests import all_digests, differing
from millrace.engine.engine import Engine
from millrace.engine.events import AddQuery, AddStream, Answer, Command, DropQuery, FeedOpened, PauseQuery, ResumeQuery
from millrace.engine.plan import StreamDefinition
from millrace.journal.checkpoints import Checkpoints
from millrace.journal.errors import JournalError
from millrace.journal.follower import Follower, FollowerError
from millrace.journal.keeping import Keeping
from millrace.journal.replay import Replay, Untimed
from millrace.journal.segments import Journal
from millrace.journal.steps import FORM, Mark, Start, Step, encode, encode_mark, encode_start
from millrace.run.marks import Marks
from millrace.values.retention import parse_keep
from tests.depth import DEEP
from tests.engine.graphs import V, arrive, figure_4, path
from tests.journal.simdisk import SimulatedDisk

SEGMENT_BYTES = 3_000
SEEDS = 300 if DEEP else 12
ACTIONS = (*["step"] * 8, *["write"] * 4, "sync", "mark", "checkpoint", "complete", "change", "new_follower", "cut")


class World:
    """A server, as far as its journal goes, and a follower that reads between any two operations of the disk."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.disk = SimulatedDisk(random)
        folder.mkdir(exist_ok=True)
        self.checkpoints = Checkpoints(folder)
        self.checkpoints.prepare()
        self.keeping = Keeping(self.checkpoints, parse_keep("none"))
        self.now_us = 0
        self.saved: dict[int, bytes] = {}  # the server's state at each mark of a checkpoint
        self.controls: list[int] = []
        self.compared = self.commands = 0
        self.engine = Engine(share=True, stopwatch=Untimed())
        self.journal = self.open()
        for stream in ("a", "b"):
            self.engine.step(0, [Command(0, AddStream(StreamDefinition(stream, V)))])
        for query in (figure_4(ordered=True), path("p", 3, "a"), path("w", 2, "b")):
            (answer,) = self.engine.step(0, [Command(0, AddQuery(query, None))]).orders
            assert isinstance(answer, Answer)
            assert answer.refused is None, answer.refused
        self.engine.step(0, [FeedOpened("a", "main"), FeedOpened("b", "main")])
        self.marks = Marks(self.engine)
        self.checkpoints.write_state(self.journal.next_lsn - 1, self.engine.save_apart)
        self.complete_at(self.journal.next_lsn - 1)
        self.follower: Follower | None = None
        self.new_follower()

    def open(self) -> Journal:
        return Journal.open(self.disk, segment_bytes=SEGMENT_BYTES, server_id=b"0" * 16, now_us=lambda: 1)

    def complete_at(self, lsn: int) -> None:
        self.checkpoints.write_control(lsn, {"form": FORM, "server": b"0" * 16})
        self.keeping.add(lsn, self.now_us)
        self.journal.trim(self.keeping.tidy(self.journal.segments, self.now_us))

    def new_follower(self) -> None:
        """The follower is killed, and another one starts from the newest checkpoint."""
        self.controls.clear()
        self.follower = Follower(self.folder, self.disk)

    def follow(self) -> None:
        """Let the follower read what is written, perhaps in the middle of a write."""
        if self.follower is None:
            return
        while True:
            records, asked = self.follower.advance(self.random.choice((1, 3, 512)))
            assert self.follower.difference is None, self.follower.difference
            if asked:
                lsn = self.follower.lsn
                assert self.follower.engine.save() == self.saved[lsn]
                self.follower.save()
                self.controls.append(lsn)
                self.compared += 1
            if not records or self.random.random() < 0.3:
                return

    def live(self, actions: int) -> None:
        self.disk.midway = self.follow
        for _ in range(actions):
            getattr(self, self.random.choice(ACTIONS))()
            if self.random.random() < 0.5:
                self.follow()
        self.journal.write()
        while self.follower is not None and self.follower.lsn < self.journal.written:
            self.follow()
        assert self.follower is not None
        assert self.follower.engine.save() == self.engine.save()
        assert differing(self.follower.engine, all_digests(self.engine)) == []
        self.disk.midway = lambda: None

    def step(self, *events: Any) -> None:
        self.now_us += self.random.randrange(3)
        budget = self.random.choice((1, 4, 100))
        events = events or (arrive(self.random.choice("ab"), *range(self.random.randrange(6))),)
        self.engine.step(self.now_us, events, budget=budget)
        self.journal.append(encode(Step(self.now_us, budget, events)))

    def change(self) -> None:
        self.commands += 1
        name = self.random.choice(("x", "y"))
        body = self.random.choice(
            (AddQuery(path(name, 2, "b"), None), DropQuery(name), PauseQuery(name), ResumeQuery(name))
        )
        self.step(Command(self.commands, body))

    def write(self) -> None:
        self.journal.write()

    def sync(self) -> None:
        self.journal.write()
        self.journal.sync()

    def mark(self, *, checkpoint: bool = False) -> int:
        return self.journal.append(encode_mark(Mark(self.marks.take(), checkpoint)))

    def checkpoint(self) -> None:
        lsn = self.mark(checkpoint=True)
        self.saved[lsn] = self.engine.save()

    def complete(self) -> None:
        """As the server does, when the record of the mark is synced."""
        if self.controls:
            self.sync()
            self.complete_at(self.controls.pop())
            self.controls.clear()

    def cut(self) -> None:
        """The server ends, with its follower, and another one recovers."""
        self.follower = None
        if self.random.random() < 0.5:
            self.disk.end_process()
        else:
            self.disk.crash()
        self.controls.clear()
        self.journal = self.open()
        self.checkpoints.prepare()
        newest = self.checkpoints.read(self.checkpoints.complete()[-1])
        self.engine = Engine(share=True, stopwatch=Untimed())
        self.engine.become(newest.state)
        replay = Replay(self.engine)
        for lsn, record in self.journal.read(newest.lsn + 1) if self.journal.next_lsn > newest.lsn + 1 else ():
            replay.take(lsn, record)
        assert replay.difference is None
        self.now_us = max(self.now_us, self.engine.clock.now_us)
        self.marks = Marks(self.engine)
        self.engine.credit = self.random.choice((100, 200))
        self.journal.append(encode_start(Start("test", {"credit": self.engine.credit})))
        self.new_follower()


def play(folder: Path, seed: int) -> World:
    world = World(folder, Random(seed))
    try:
        world.live(60)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world


def test_a_follower_has_the_servers_state_at_every_mark(tmp_path: Path) -> None:
    first = int.from_bytes(os.urandom(4), "little")
    worlds = [play(tmp_path / str(seed), seed) for seed in (*range(SEEDS), *range(first, first + 5))]
    assert sum(world.compared for world in worlds) > SEEDS


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, Random(1))
    made.step(arrive("a", 1, 2, 3))
    return made


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_difference_names_query_and_operator_and_is_not_saved(world: World, checkpoint: bool) -> None:
    operator = world.engine.graph.operators["p.Q2"]
    operator.counts.input_tuples += 1
    world.mark(checkpoint=checkpoint)
    world.journal.write()
    assert world.follower is not None
    while (advance := world.follower.advance()).records:
        assert not advance.asked
    difference = world.follower.difference
    assert difference is not None
    assert difference.operators == ["query p, operator p.Q2"]
    world.step(arrive("a", 4))
    world.checkpoint()
    world.journal.write()
    assert world.follower.advance() == (0, False)


def test_a_state_that_differs_without_any_count_is_noticed_too(world: World) -> None:
    world.engine.graph.operators["w.Q1"].output.promise += 1
    world.engine.clock.now_us += 1
    world.mark()
    world.journal.write()
    assert world.follower is not None
    world.follower.advance()
    assert world.follower.difference is not None
    assert world.follower.difference.operators == ["the engine's clock and graph", "query w, operator w.Q1"]


def test_a_journal_of_another_server_is_not_followed(world: World, tmp_path: Path) -> None:
    world.journal.write()
    disk = SimulatedDisk(Random(2))
    Journal.open(disk, segment_bytes=SEGMENT_BYTES, server_id=b"1" * 16, now_us=lambda: 1)
    with pytest.raises(JournalError, match="belongs to another server") as refused:
        Follower(tmp_path, disk).advance()
    assert "\n" not in refused.value.text


def test_a_folder_without_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(FollowerError, match="has no checkpoint: start the server, which makes one"):
        Follower(tmp_path)


def test_a_record_that_cannot_be_taken_is_named(world: World) -> None:
    world.journal.append(b"\xc1")
    world.journal.write()
    assert world.follower is not None
    with pytest.raises(
        FollowerError, match=f"record {world.journal.next_lsn - 1} of the journal cannot be taken again"
    ):
        world.follower.advance()
