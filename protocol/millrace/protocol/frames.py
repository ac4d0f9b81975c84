"""Frames: a length of four bytes, big-endian, then a body of so many bytes.

Rule: bytes in, bodies out; how the bytes were chunked never shows, and nothing is kept for a frame
whose claim is above the limit. What a body says is `messages.py`'s business. The first byte of a
connection tells frames from JSON lines: `{` (0x7b) as the first byte of a length would claim 1.9
GiB, which no limit allows, so the two cannot be confused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from millrace.protocol.errors import PeerError

# bytes where the body lay inside one read, a memoryview where it was put together from several.
Body = bytes | memoryview

HEAD_BYTES = 4
FRAME_BYTES = 16 * 2**20  # the default limit: 65,536 rows of 256 bytes
JSON_LINES = ord("{")
# How requests and answers of HTTP begin: as lengths these would be a gigabyte and more.
HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"HTTP")
# A limit at or above this would let a length begin with `{`.
LARGEST_LIMIT = JSON_LINES << 24
SMALLEST_BODY = 2  # the head of the array and the kind


def frame(body: bytes) -> bytes:
    """The body with its length before it."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def speaks_http(data: bytes, limit: int = FRAME_BYTES) -> bool:
    """Whether a connection that begins so speaks HTTP, asking or answering: no frame within the limit begins so."""
    return data.startswith(HTTP) and int.from_bytes(data[:HEAD_BYTES], "big") > limit


def speaks_json(first: int) -> bool:
    """Whether a connection whose first byte is this one speaks JSON lines (else frames)."""
    return first == JSON_LINES


class FrameReader:
    """Cuts bodies out of what arrives. `feed` and `bodies` may be called in any rhythm.

    Invariant: `_partial` holds the beginning of one frame only, whose claim has been checked as soon
    as its four bytes were there; so it never has more than limit + 4 bytes. After an error nothing more is
    taken, and the bodies that came before it are still given.
    """

    def __init__(self, limit: int = FRAME_BYTES) -> None:
        assert SMALLEST_BODY <= limit < LARGEST_LIMIT, f"a frame limit of {limit} is not between 2 and {LARGEST_LIMIT}"
        self.limit = limit
        self._partial = bytearray()
        self._missing = HEAD_BYTES  # bytes until the claim is known, then until the frame is whole
        self._claimed = False
        self._bodies: deque[Body] = deque()
        self._error: PeerError | None = None

    @property
    def buffered(self) -> int:
        """Bytes held of a frame that is not whole yet."""
        return len(self._partial)

    def missing(self, data: bytes) -> int:
        """How many of these bytes, which are not fed yet, belong to the next frame: its reader may change the limit."""
        head = bytes(self._partial[:HEAD_BYTES]) + data[: max(HEAD_BYTES - len(self._partial), 0)]
        if len(head) < HEAD_BYTES:
            return len(data)
        return min(HEAD_BYTES + int.from_bytes(head, "big") - len(self._partial), len(data))

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes as they came. Errors wait for `bodies`."""
        if not isinstance(data, bytes):
            data = bytes(data)  # the caller may reuse its buffer
        at = 0
        while self._partial and at < len(data) and self._error is None:
            at = self._complete(data, at)
        if self._error is None:
            at = self._cut(data, at)
        if self._error is None and at < len(data):
            self._begin(data, at)

    def bodies(self) -> Iterator[Body]:
        """The bodies that are whole, in order; then PeerError if what follows them cannot be a frame."""
        while self._bodies:
            yield self._bodies.popleft()
        if self._error is not None:
            raise self._error

    def _cut(self, data: bytes, at: int) -> int:
        """The fast way: frames that lie whole inside one read."""
        end = len(data)
        while end - at >= HEAD_BYTES:
            size = int.from_bytes(data[at : at + HEAD_BYTES], "big")
            if not self._allows(size):
                break
            stop = at + HEAD_BYTES + size
            if stop > end:
                break
            self._bodies.append(data[at + HEAD_BYTES : stop])
            at = stop
        return at

    def _begin(self, data: bytes, at: int) -> None:
        self._partial += data[at:]
        self._claimed = len(self._partial) >= HEAD_BYTES
        size = int.from_bytes(self._partial[:HEAD_BYTES], "big") if self._claimed else 0
        self._missing = HEAD_BYTES + size - len(self._partial)

    def _complete(self, data: bytes, at: int) -> int:
        """Add to the frame begun earlier: first to its length, then to its body."""
        taken = data[at : at + self._missing]
        self._partial += taken
        self._missing -= len(taken)
        if self._missing == 0 and not self._claimed:
            size = int.from_bytes(self._partial, "big")
            if self._allows(size):
                self._claimed, self._missing = True, size
        elif self._missing == 0:
            self._bodies.append(memoryview(self._partial).toreadonly()[HEAD_BYTES:])
            self._partial, self._missing, self._claimed = bytearray(), HEAD_BYTES, False
        return at + len(taken)

    def _allows(self, size: int) -> bool:
        if SMALLEST_BODY <= size <= self.limit:
            return True
        self._partial = bytearray()
        if speaks_http(size.to_bytes(HEAD_BYTES, "big"), self.limit):
            text = "expected frames, got HTTP: the API has a port of its own, 7421 unless configured; streams have 7420"
            self._error = PeerError(text, code="wrong_port")
            return False
        self._error = PeerError.at(
            "the length of a frame",
            expected=f"{SMALLEST_BODY} to {self.limit} bytes",
            got=f"{size} bytes",
            code="frame_too_large" if size > self.limit else "bad_frame",
        )
        return False
