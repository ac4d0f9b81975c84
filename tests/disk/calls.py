"""Records the system calls of this process below a folder, so that each state that a crash may leave can be built.

Rule: everything that makes a change goes through `os`, or is noticed at the next sync or renaming of that file: what
other libraries write (pyarrow, files of Python) counts as one write at that moment. `Recording.check` compares what was
recorded with the real folder.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.disk.model import File, Folder, Node, Resize, SetLabel, Write

Before = Callable[[str, str], None]

_PATCHED = (
    "open", "write", "pwrite", "pwritev", "ftruncate", "truncate", "posix_fallocate", "posix_fadvise", "fsync",
    "fdatasync", "rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir", "setxattr", "getxattr",
)  # fmt: skip


def nothing(_call: str, _name: str) -> None:
    pass


class Recording:
    """`before` is called ahead of each change, sync included: it may raise the error of a failing disk, or end it all.

    changes   so many were made
    """

    def __init__(self, path: Path, root: Folder, random: Random, before: Before = nothing) -> None:
        self.path, self.root = path, root
        self.changes = 0
        self._random = random
        self._before = before
        self._prefix = f"{path}{os.sep}"
        self._lock = threading.RLock()
        self._real = {name: getattr(os, name) for name in _PATCHED}
        self._nodes: dict[int, Node] = {}
        self._recorded: set[int] = set()  # files whose writes go through `os`
        self._written: dict[int, int] = {}  # when the others were changed
        self._meet(root, path)

    def _meet(self, folder: Folder, path: Path) -> None:
        """Know the nodes by their numbers on the real disk."""
        self._nodes[path.stat().st_ino] = folder
        for name, node in folder.shown.items():
            if isinstance(node, Folder):
                self._meet(node, path / name)
            else:
                status = (path / name).stat()
                self._nodes[status.st_ino] = node
                self._written[status.st_ino] = status.st_mtime_ns

    def __enter__(self) -> Recording:
        for name in _PATCHED:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *_: object) -> None:
        for name in _PATCHED:
            setattr(os, name, self._real[name])

    def check(self) -> None:
        """Compare what was recorded with the real folder."""
        _compare(self.root, self.path)

    # -- which node a call means -------------------------------------------------------------------

    def _node(self, handle: int) -> Node | None:
        return self._nodes.get(os.fstat(handle).st_ino)

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[Folder, str] | None:
        """The folder and the name that a path names; None if it is elsewhere."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None:
            folder = self._nodes.get(os.fstat(dir_fd).st_ino)
            return (folder, text) if isinstance(folder, Folder) else None
        text = os.path.abspath(text)
        if not text.startswith(self._prefix):
            return None
        parent, name = os.path.split(text)
        folder = self._nodes.get(os.stat(parent).st_ino)
        return (folder, name) if isinstance(folder, Folder) else None

    def _change(self, call: str, name: str = "") -> None:
        self._before(call, name)
        self.changes += 1

    def _catch_up(self, file: File, status: os.stat_result, read: Callable[[], bytes]) -> None:
        """Note what another library has written."""
        number = status.st_ino
        if number in self._recorded:
            return
        data, when = read(), status.st_mtime_ns
        if data != file.shown.data or when != self._written.get(number):
            self._written[number] = when
            file.change(Resize(0))
            file.change(Write(0, data))

    def _catch_up_name(self, folder: Folder, name: str, path: Any, dir_fd: int | None) -> Node:
        """The node of a name, which another library may have made."""
        status = os.stat(path, dir_fd=dir_fd)
        node = folder.shown.get(name)
        if node is None:
            node = self._nodes[status.st_ino] = File()
            self._recorded.discard(status.st_ino)
            folder.change(None, name, node)
        if isinstance(node, File):
            self._catch_up(node, status, lambda: self._read(path, dir_fd))
        return node

    def _read(self, path: Any, dir_fd: int | None) -> bytes:
        handle = self._real["open"](path, os.O_RDONLY, dir_fd=dir_fd)
        try:
            return _all(handle)
        finally:
            os.close(handle)

    # -- calls of files ----------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is None or not flags & (os.O_CREAT | os.O_TRUNC):
                return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
            folder, name = place
            self._change("open", name)
            handle = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
            known, number = folder.shown.get(name), os.fstat(handle).st_ino
            if known is None:
                known = self._nodes[number] = File()
                self._recorded.discard(number)
                folder.change(None, name, known)
            if flags & os.O_TRUNC and isinstance(known, File) and known.shown.data:
                known.change(Resize(0))
            return handle

    def _writing(self, handle: int, offset: int | None, data: bytes) -> int:
        """Write, and note that; perhaps only a part, which is allowed."""
        node = self._node(handle)
        assert isinstance(node, File)
        self._recorded.add(os.fstat(handle).st_ino)
        if len(data) > 1 and self._random.random() < 0.1:
            data = data[: self._random.randrange(1, len(data))]
        self._change("write")
        if offset is None:
            offset = len(node.shown.data)  # these files are open for appending
            done = int(self._real["write"](handle, data))
        else:
            done = int(self._real["pwrite"](handle, data, offset))
        node.change(Write(offset, bytes(data[:done])))
        return done

    def _write(self, handle: int, data: Any) -> int:
        with self._lock:
            if isinstance(self._node(handle), File):
                return self._writing(handle, None, bytes(data))
        return int(self._real["write"](handle, data))

    def _pwrite(self, handle: int, data: Any, offset: int) -> int:
        with self._lock:
            if isinstance(self._node(handle), File):
                return self._writing(handle, offset, bytes(data))
        return int(self._real["pwrite"](handle, data, offset))

    def _pwritev(self, handle: int, buffers: Any, offset: int) -> int:
        with self._lock:
            if isinstance(self._node(handle), File):
                return self._writing(handle, offset, b"".join(buffers))
        return int(self._real["pwritev"](handle, buffers, offset))

    def _ftruncate(self, handle: int, size: int) -> None:
        with self._lock:
            node = self._node(handle)
            if isinstance(node, File):
                self._change("truncate")
                node.change(Resize(size))
            self._real["ftruncate"](handle, size)
            if isinstance(node, File):
                self._note_time(handle)

    def _note_time(self, handle: int) -> None:
        """A change of the file was recorded."""
        status = os.fstat(handle)
        self._written[status.st_ino] = status.st_mtime_ns

    def _truncate(self, path: Any, size: int) -> None:
        assert self._place(path) is None, "not recorded"
        self._real["truncate"](path, size)

    def _posix_fallocate(self, handle: int, offset: int, size: int) -> None:
        with self._lock:
            node = self._node(handle)
            if isinstance(node, File):
                self._change("allocate")
                self._recorded.add(os.fstat(handle).st_ino)
                node.change(Resize(max(offset + size, len(node.shown.data))))
            self._real["posix_fallocate"](handle, offset, size)

    def _posix_fadvise(self, handle: int, offset: int, size: int, advice: int) -> None:
        """Dropped pages are read again from the disk."""
        with self._lock:
            node = self._node(handle)
            if not isinstance(node, File) or advice != os.POSIX_FADV_DONTNEED:
                self._real["posix_fadvise"](handle, offset, size, advice)
                return
            shown = bytes(node.shown.data)
            node.reload()
            if node.shown.data != shown:
                writing = self._real["open"](f"/proc/self/fd/{handle}", os.O_RDWR)
                self._real["ftruncate"](writing, 0)
                self._real["pwrite"](writing, node.shown.data, 0)
                self._note_time(writing)
                os.close(writing)

    def _fsync(self, handle: int) -> None:
        with self._lock:
            node = self._node(handle)
            if node is None:
                path = os.readlink(f"/proc/self/fd/{handle}")
                place = self._place(path)
                if place is None:
                    return
                node = self._catch_up_name(*place, path, None)
            if isinstance(node, File):
                self._catch_up(node, os.fstat(handle), lambda: _all(handle))
            try:
                self._change("sync")
            except OSError:
                node.fail_sync(self._random)
                raise
            node.sync()

    _fdatasync = _fsync

    def _setxattr(self, handle: Any, name: Any, value: bytes, *more: Any, **options: Any) -> None:
        with self._lock:
            node = self._node(handle) if isinstance(handle, int) else None
            if isinstance(node, File):
                self._change("label")
                node.change(SetLabel(name, bytes(value)))
            else:
                self._real["setxattr"](handle, name, value, *more, **options)

    def _getxattr(self, handle: Any, name: Any, **options: Any) -> bytes:
        with self._lock:
            node = self._node(handle) if isinstance(handle, int) else None
            if not isinstance(node, File):
                return bytes(self._real["getxattr"](handle, name, **options))
            if name not in node.shown.labels:
                raise OSError(61, "No data available")
            return node.shown.labels[name]

    def _forget(self, path: Any, dir_fd: int | None) -> None:
        """A name goes; the number of a file without names may become that of another."""
        try:
            status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_nlink == 1:
            self._nodes.pop(status.st_ino, None)

    # -- calls of names ----------------------------------------------------------------------------

    def _rename(self, path: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        with self._lock:
            place, target = self._place(path, src_dir_fd), self._place(new, dst_dir_fd)
            if place is not None and target is not None:
                assert place[0] is target[0], "not recorded: another folder"
                node = self._catch_up_name(*place, path, src_dir_fd)
                self._change("rename", place[1])
                self._forget(new, dst_dir_fd)
                place[0].change(place[1], target[1], node)
            self._real["rename"](path, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    _replace = _rename

    def _link(
        self,
        path: Any,
        new: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        with self._lock:
            place, target = self._place(path, src_dir_fd), self._place(new, dst_dir_fd)
            if place is not None and target is not None:
                node = self._catch_up_name(*place, path, src_dir_fd)
                self._change("link", target[1])
            self._real["link"](path, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
            if place is not None and target is not None:
                target[0].change(None, target[1], node)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is not None and place[1] in place[0].shown:
                self._change("unlink", place[1])
                self._forget(path, dir_fd)
                place[0].change(place[1])
            self._real["unlink"](path, dir_fd=dir_fd)

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._real["rmdir"](path, dir_fd=dir_fd)
            place = self._place(path, dir_fd)
            if place is not None and place[1] in place[0].shown:
                self.changes += 1
                place[0].change(place[1])

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            place = self._place(path, dir_fd)
            if place is not None and place[1] not in place[0].shown:
                self._change("mkdir", place[1])
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            if place is not None:
                number = os.stat(place[1] if dir_fd is not None else path, dir_fd=dir_fd).st_ino
                folder = self._nodes[number] = Folder()
                place[0].change(None, place[1], folder)


def _all(handle: int) -> bytes:
    return Path(f"/proc/self/fd/{handle}").read_bytes()


def _compare(folder: Folder, path: Path) -> None:
    there = set(os.listdir(path))
    assert set(folder.shown) <= there, set(folder.shown) - there
    for name, node in folder.shown.items():
        if isinstance(node, Folder):
            assert stat.S_ISDIR((path / name).stat().st_mode)
            _compare(node, path / name)
        else:
            assert (path / name).read_bytes() == node.shown.data, path / name
