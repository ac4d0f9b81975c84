"""Frames: a length of four bytes, big-endian, then a body of that length.

Rule: bytes in, bodies out, however the bytes were split into chunks. A frame whose announced length is above the limit
is not buffered. `messages.py` decodes bodies. The first byte of a connection distinguishes frames from JSON lines: as
the first byte of a length, `{` (0x7b) would announce 1.9 GiB, which no limit allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from millrace.protocol.errors import PeerError

# bytes if the body was part of one read, a memoryview if it was assembled from several.
Body = bytes | memoryview

HEAD_BYTES = 4
FRAME_BYTES = 16 * 2**20  # the default limit: 65,536 rows of 256 bytes
JSON_LINES = ord("{")
# The first bytes of HTTP requests and answers. As lengths they would announce a gigabyte or more.
HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"HTTP")
# With a limit from here on, a length could start with `{`.
LARGEST_LIMIT = JSON_LINES << 24
SMALLEST_BODY = 2  # the head of the array and the kind


def frame(body: bytes) -> bytes:
    """The body, preceded by its length."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def speaks_http(data: bytes, limit: int = FRAME_BYTES) -> bool:
    """Whether these first bytes of a connection are HTTP. No frame within the limit starts like that."""
    return data.startswith(HTTP) and int.from_bytes(data[:HEAD_BYTES], "big") > limit


def speaks_json(first: int) -> bool:
    """Whether a connection with this first byte speaks JSON lines (else frames)."""
    return first == JSON_LINES


class FrameReader:
    """Splits received bytes into bodies. `feed` and `bodies` may be called in any order.

    Invariant: `_partial` holds the start of one frame only. Its announced length is checked as soon as the four bytes
    have arrived, so `_partial` never exceeds limit + 4 bytes. After an error it accepts no more bytes; bodies that
    arrived earlier are still returned.
    """

    def __init__(self, limit: int = FRAME_BYTES) -> None:
        assert SMALLEST_BODY <= limit < LARGEST_LIMIT, f"a frame limit of {limit} is not between 2 and {LARGEST_LIMIT}"
        self.limit = limit
        self._partial = bytearray()
        self._missing = HEAD_BYTES  # bytes until the length is known, then until the frame is complete
        self._length_known = False
        self._bodies: deque[Body] = deque()
        self._error: PeerError | None = None

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._partial)

    def missing(self, data: bytes) -> int:
        """How many of these bytes, not fed yet, belong to the next frame; its handler may change the limit."""
        head = bytes(self._partial[:HEAD_BYTES]) + data[: max(HEAD_BYTES - len(self._partial), 0)]
        if len(head) < HEAD_BYTES:
            return len(data)
        return min(HEAD_BYTES + int.from_bytes(head, "big") - len(self._partial), len(data))

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes. `bodies` raises errors."""
        if not isinstance(data, bytes):
            data = bytes(data)  # the caller may reuse its buffer
        at = 0
        while self._partial and at < len(data) and self._error is None:
            at = self._complete(data, at)
        if self._error is None:
            at = self._cut(data, at)
        if self._error is None and at < len(data):
            self._start(data, at)

    def bodies(self) -> Iterator[Body]:
        """The complete bodies, in order; then PeerError if the bytes after them are not a frame."""
        while self._bodies:
            yield self._bodies.popleft()
        if self._error is not None:
            raise self._error

    def _cut(self, data: bytes, at: int) -> int:
        """The fast path: frames that are complete in one read."""
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

    def _start(self, data: bytes, at: int) -> None:
        self._partial += data[at:]
        self._length_known = len(self._partial) >= HEAD_BYTES
        size = int.from_bytes(self._partial[:HEAD_BYTES], "big") if self._length_known else 0
        self._missing = HEAD_BYTES + size - len(self._partial)

    def _complete(self, data: bytes, at: int) -> int:
        """Add to the incomplete frame: first to its length, then to its body."""
        piece = data[at : at + self._missing]
        self._partial += piece
        self._missing -= len(piece)
        if self._missing == 0 and not self._length_known:
            size = int.from_bytes(self._partial, "big")
            if self._allows(size):
                self._length_known, self._missing = True, size
        elif self._missing == 0:
            self._bodies.append(memoryview(self._partial).toreadonly()[HEAD_BYTES:])
            self._partial, self._missing, self._length_known = bytearray(), HEAD_BYTES, False
        return at + len(piece)

    def _allows(self, size: int) -> bool:
        if SMALLEST_BODY <= size <= self.limit:
            return True
        self._partial = bytearray()
        if speaks_http(size.to_bytes(HEAD_BYTES, "big"), self.limit):
            text = "expected frames, got HTTP: this port is for streams; the API has another port, by default 7421"
            self._error = PeerError(text, code="wrong_port")
            return False
        self._error = PeerError.at(
            "the length of a frame",
            expected=f"{SMALLEST_BODY} to {self.limit} bytes",
            got=f"{size} bytes",
            code="frame_too_large" if size > self.limit else "bad_frame",
        )
        return False
