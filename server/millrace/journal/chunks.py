"""The large arrays of saved states, in chunks that several checkpoints share.

A state's body says which arrays it has by number. Its manifest says of which chunks each array consists, and in which
file each chunk is. A checkpoint writes the chunks that the one before it in its chain lacks into a file of its own, and
refers to files of earlier ones for the others.

Rule: at least half of each file that a manifest refers to was in use by the checkpoint before, and the files are
`MOST_FILES` at most. Chunks of other files are written again. So a chain takes about twice its newest state on disk,
and writes about twice what changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from millrace.journal.steps import pack, unpack

# A change of one byte has so many written.
CHUNK_BYTES: Final = 1 << 16
# Of two different chunks, one pair in 2^128 has the same digest.
DIGEST_BYTES: Final = 16
# Each checkpoint of a state that changes slowly adds a file. Beyond so many, the least used one is written again.
MOST_FILES: Final = 64
_WRITTEN_AT_ONCE: Final = 1 << 24

# By the number of a checkpoint, the path of its chunks.
Locate = Callable[[int], Path]


class DamagedChunk(Exception):  # noqa: N818 - named after what it reports
    """A chunk is not what was written."""


class Manifest(NamedTuple):
    """What a state consists of.

    chunk_bytes  the size of all chunks but the last one of each array
    body         the state without its large arrays
    sizes        the bytes of each array
    digests      of each chunk, in the order of the arrays
    files        the checkpoints whose files have the chunks
    places       of each chunk, the position of its file in `files`, and its offset there
    """

    chunk_bytes: int
    body: bytes
    sizes: list[int]
    digests: list[bytes]
    files: list[int]
    places: list[tuple[int, int]]

    def to_bytes(self) -> bytes:
        places = np.array(self.places, np.int64).reshape(-1, 2)
        return pack([self.chunk_bytes, self.body, self.sizes, b"".join(self.digests), self.files, places.tobytes()])

    @property
    def size(self) -> int:
        """The bytes of the whole state."""
        return len(self.body) + sum(self.sizes)

    def chunks(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Each chunk: its digest, file, offset and size."""
        rest = zip(self.digests, self.places, strict=True)
        for size in self.sizes:
            for begin in range(0, size, self.chunk_bytes):
                digest, (file, offset) = next(rest)
                yield digest, self.files[file], offset, min(self.chunk_bytes, size - begin)

    def reusable(self, locate: Locate) -> dict[bytes, tuple[int, int]]:
        """By digest, the file and the offset of chunks that the next state may refer to."""
        found: dict[int, dict[bytes, int]] = {}
        used: dict[int, int] = {}
        for digest, file, offset, size in self.chunks():
            if digest not in (known := found.setdefault(file, {})):
                known[digest] = offset
                used[file] = used.get(file, 0) + size
        most = sorted(used, key=lambda file: used[file], reverse=True)[: MOST_FILES - 1]
        kept = [file for file in most if 2 * used[file] >= locate(file).stat().st_size]
        return {digest: (file, offset) for file in kept for digest, offset in found[file].items()}


def manifest_of(data: bytes) -> Manifest:
    chunk_bytes, body, sizes, digests, files, places = unpack(data)
    split = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
    pairs = [(file, offset) for file, offset in np.frombuffer(places, np.int64).reshape(-1, 2).tolist()]
    return Manifest(chunk_bytes, body, sizes, split, files, pairs)


class ChunkWriter:
    """Takes the arrays of one state, and writes those of their chunks that are new: into `path`, which is to become the
    file of checkpoint `lsn`."""

    def __init__(self, lsn: int, path: Path, known: dict[bytes, tuple[int, int]], chunk_bytes: int) -> None:
        self.written = 0
        self._chunk_bytes = chunk_bytes
        self._lsn = lsn
        self._path = path
        self._known = known
        self._handle: int | None = None
        self._sizes: list[int] = []
        self._digests: list[bytes] = []
        self._files: dict[int, int] = {}
        self._places: list[tuple[int, int]] = []

    def put(self, data: memoryview) -> int:
        """The number of an array."""
        for begin in range(0, len(data), self._chunk_bytes):
            chunk = data[begin : begin + self._chunk_bytes]
            digest = blake2b(chunk, digest_size=DIGEST_BYTES).digest()
            place = self._known.get(digest)
            if place is None:
                place = self._known[digest] = self._lsn, self._write(chunk)
            file, offset = place
            self._digests.append(digest)
            self._places.append((self._files.setdefault(file, len(self._files)), offset))
        self._sizes.append(len(data))
        return len(self._sizes) - 1

    def _write(self, chunk: memoryview) -> int:
        if self._handle is None:
            self._handle = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        offset = self.written
        write_all(self._handle, [chunk])
        self.written += len(chunk)
        return offset

    def finish(self, body: bytes) -> Manifest:
        """All is there, and durable but for its name."""
        if self._handle is not None:
            os.fsync(self._handle)
        return Manifest(self._chunk_bytes, body, self._sizes, self._digests, [*self._files], self._places)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


def write_all(handle: int, parts: Iterable[bytes | memoryview]) -> None:
    """The system takes only so much at a time."""
    for data in parts:
        part, done = memoryview(data), 0
        while done < len(part):
            done += os.write(handle, part[done : done + _WRITTEN_AT_ONCE])


def arrays_of(manifest: Manifest, locate: Locate) -> list[memoryview]:
    """The bytes of each array. DamagedChunk or OSError if they are not what was written."""
    chunks = manifest.chunks()
    found = []
    with ExitStack() as stack:
        files = {lsn: stack.enter_context(locate(lsn).open("rb", buffering=0)) for lsn in manifest.files}
        for size in manifest.sizes:
            array = bytearray(size)
            view = memoryview(array)
            for begin in range(0, size, manifest.chunk_bytes):
                digest, file, offset, count = next(chunks)
                chunk = view[begin : begin + count]
                read = os.preadv(files[file].fileno(), [chunk], offset)
                if read != count or blake2b(chunk, digest_size=DIGEST_BYTES).digest() != digest:
                    raise DamagedChunk(f"{locate(file)} is damaged: the checksum of {count} bytes at {offset} is wrong")
            found.append(view.toreadonly())
    return found
