"""Checkpoints that share chunks are read as they were written, whichever of the others have gone."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from millrace.engine.saving import Put
from millrace.journal import chunks
from millrace.journal.checkpoints import CheckpointError, Checkpoints
from millrace.journal.steps import FORM, pack, unpack
from tests.depth import DEEP

SEEDS = 200 if DEEP else 20
CHUNK = 64


class World:
    """A state of arrays that grow, change and go, and its checkpoints."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.random = random
        self.checkpoints = self.opened(folder)
        self.arrays: list[bytearray] = []
        self.expected: dict[int, list[bytes]] = {}
        self.lsn = 0

    def opened(self, folder: Path) -> Checkpoints:
        found = Checkpoints(folder)
        found.chunk_bytes = CHUNK  # type: ignore[misc]
        found.prepare()
        return found

    def change(self) -> None:
        random, arrays = self.random, self.arrays
        choice = random.random()
        if not arrays or choice < 0.1:
            arrays.append(bytearray(random.randbytes(random.randrange(1, 20 * CHUNK))))
        elif choice < 0.4:
            array = random.choice(arrays)
            array[random.randrange(len(array))] ^= 1
        elif choice < 0.7:
            random.choice(arrays).extend(random.randbytes(random.randrange(2 * CHUNK)))
        elif choice < 0.8:
            arrays.pop(random.randrange(len(arrays)))

    def save(self, put: Put) -> bytes:
        return pack([put(memoryview(bytes(array))) for array in self.arrays])

    def make(self) -> int:
        """A checkpoint; the bytes of its own files."""
        self.lsn += self.random.randrange(1, 5)
        self.checkpoints.write_state(self.lsn, self.save)
        self.checkpoints.write_control(self.lsn, {"form": FORM})
        self.expected[self.lsn] = [bytes(array) for array in self.arrays]
        return self.checkpoints.written_bytes(self.lsn)

    def forget(self, leave: int = 2) -> None:
        for lsn in self.checkpoints.complete()[:-leave]:
            self.checkpoints.forget(lsn)
            del self.expected[lsn]

    def forget_some(self) -> None:
        """One of the past, which is not always the oldest."""
        past = self.checkpoints.complete()[:-2]
        if past:
            lsn = self.random.choice(past)
            self.checkpoints.forget(lsn)
            del self.expected[lsn]

    def kill(self) -> None:
        """The server ends while it writes a state, and another one starts."""
        self.checkpoints.write_state(self.lsn + 1, self.save)
        (self.checkpoints.folder / f"{self.lsn + 1:020}.chunks.part1").write_bytes(b"begun")
        self.checkpoints = self.opened(self.checkpoints.folder.parent)

    def discard(self) -> None:
        """A checkpoint is not completed."""
        self.checkpoints.write_state(self.lsn + 1, self.save)
        self.checkpoints.discard(self.lsn + 1)

    def check(self) -> None:
        assert self.checkpoints.complete() == [*self.expected]
        for lsn, arrays in self.expected.items():
            body, get = self.checkpoints.read(lsn).state
            assert [bytes(get(number)) for number in unpack(body)] == arrays
            assert self.checkpoints.bytes(lsn) >= sum(map(len, arrays))
        newest = [chunk_files(self.checkpoints, lsn) for lsn in self.checkpoints.complete()[-2:]]
        assert len(newest) < 2 or not newest[0] & newest[1]
        used = set().union(*(self.checkpoints.files(lsn) for lsn in self.expected))
        assert {*self.checkpoints.folder.iterdir()} == used


def chunk_files(checkpoints: Checkpoints, lsn: int) -> set[Path]:
    return {path for path in checkpoints.files(lsn) if path.suffix == ".chunks"}


def test_checkpoints_are_read_as_they_were_written(memory_path: Path) -> None:
    first = int.from_bytes(os.urandom(4), "little")
    for seed in (*range(SEEDS), first):
        random = Random(seed)
        world = World(memory_path / str(seed), random)
        for _ in range(40):
            for _ in range(random.randrange(4)):
                world.change()
            world.make()
            random.choice((world.forget, world.forget_some, world.kill, world.discard, lambda: None))()
            try:
                world.check()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


@pytest.fixture
def world(memory_path: Path) -> World:
    """Two checkpoints of a state of 1,000 chunks."""
    made = World(memory_path, Random(1))
    made.arrays = [bytearray(made.random.randbytes(100 * CHUNK)) for _ in range(10)]
    for _ in range(2):
        made.make()
    return made


def test_only_changed_chunks_are_written(world: World) -> None:
    overhead = world.make()  # no array has changed since the checkpoint that it refers to
    assert not (world.checkpoints.folder / f"{world.lsn:020}.chunks").exists()
    world.arrays[3][1_000] ^= 1
    world.arrays[5] += bytes(CHUNK)
    assert abs(world.make() - overhead - 2 * CHUNK) < 100
    world.arrays.insert(0, bytearray(b"another array in front"))
    assert abs(world.make() - overhead - 2 * CHUNK) < 200  # the chain of the other one lacks them still
    world.check()


def test_a_long_chain_writes_and_keeps_about_twice_what_it_must(world: World) -> None:
    """Each checkpoint has changes in 2 % of the chunks, which is 4 % since the one that it refers to."""
    state, rounds = 1_000 * CHUNK, 120
    first = world.checkpoints.complete()
    overhead = len((world.checkpoints.folder / f"{first[0]:020}.state").read_bytes())
    written = 0
    for _ in range(rounds):
        for _ in range(20):
            world.arrays[world.random.randrange(10)][world.random.randrange(100 * CHUNK)] ^= 255
        written += world.make() - overhead
        world.forget()
        kept = sum(path.stat().st_size for path in world.checkpoints.folder.iterdir())
        assert kept <= 2 * (2 * state + 2 * overhead)
        assert all(len(chunk_files(world.checkpoints, lsn)) <= chunks.MOST_FILES for lsn in world.expected)
    world.check()
    assert written <= 2.2 * rounds * 0.04 * state


@pytest.mark.parametrize("kind", ["state", "control", "chunks"])
def test_damage_is_named_and_spares_the_other_one(world: World, kind: str) -> None:
    older, newer = world.checkpoints.complete()
    path = world.checkpoints.folder / f"{newer:020}.{kind}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{path} is damaged: ") as refused:
        world.checkpoints.read(newer)
    assert "\n" not in refused.value.text
    world.checkpoints.read(older)
    assert world.checkpoints.damaged == {newer}
    world.make()
    world.make()  # it would refer to the damaged one
    del world.expected[newer]
    world.checkpoints.forget(newer)
    world.check()


def test_chunks_that_are_missing_are_named(world: World) -> None:
    path = world.checkpoints.folder / f"{world.lsn:020}.chunks"
    path.unlink()
    with pytest.raises(CheckpointError, match=f"cannot read {path}: no such file or directory"):
        world.checkpoints.read(world.lsn)
