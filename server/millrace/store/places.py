"""Where sinks may write: regular files below `server.sink_dir` and `server.allow_paths`, never the server's own files.

Rule: a path is split into names and walked from an allowed folder down. No name may be a link, and each step is taken
from the folder that is open already, so a swap between the check and the open has no effect. The open file is checked
again by its handle. All of this may wait for a disk, so it runs in threads.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from millrace.formats.durable import make_folder
from millrace.journal.disk import JOURNAL_FOLDER
from millrace.protocol import Refuse
from millrace.run.config import CATALOG, FIRST_TOKENS, ServerSection, Settings, history_folder, sink_folder

# A folder on the way: nothing is read from it, so its name alone has to be searchable.
_ON_THE_WAY: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A folder that files are created in: it is listed and made durable.
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe without a reader would keep a plain open waiting forever.
_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Bytes of a name that common file systems take.
NAME_BYTES: Final = 255
PATH_BYTES: Final = 4_096
# The server's own files in its data folder, by name prefix.
_FILES: Final = ("addresses.", "seams.", "running.", "standby.", "superseded.", "alone.", "tokens.")
_OWN_NAMES: Final = (CATALOG, *_FILES, *FIRST_TOKENS)
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Identity(NamedTuple):
    """A file or folder, by whatever name."""

    device: int
    inode: int


def identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder below an allowed folder.

    With `makes`, missing folders are created: for relative paths, which are in the server's own sink folder.
    `lenient` places belong to sinks that an earlier configuration allowed.
    """

    root: Path
    names: tuple[str, ...]
    makes: bool = False
    lenient: bool = False

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.names)

    def named(self, name: str) -> Place:
        """Another name in the same folder."""
        return Place(self.root, (*self.names[:-1], name), self.makes, self.lenient)


def refused(text: str) -> Refuse:
    """A path that sinks may not have."""
    return Refuse(text, code="sink_path")


class SinkFolders:
    """The folders that sinks may write to, and the files that they may not."""

    def __init__(
        self,
        folder: Path,
        allowed: Sequence[Path] = (),
        own_folders: Sequence[Path] = (),
        own_files: Sequence[Path] = (),
        data: Path | None = None,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.allowed = [Path(os.path.abspath(path)) for path in allowed]
        self._own_folders = [Path(os.path.abspath(path)) for path in own_folders]
        self._own_files = [Path(os.path.abspath(path)) for path in own_files]
        self._data = None if data is None else Path(os.path.abspath(data))

    @staticmethod
    def of(settings: Settings) -> SinkFolders:
        """The folders of a configuration."""
        server = settings.server
        history, data = history_folder(server), server.data_dir
        return SinkFolders(
            sink_folder(server),
            server.allow_paths,
            [*([] if history is None else [history]), *([] if data is None else [data / JOURNAL_FOLDER])],
            list(_own_files(settings)),
            data,
        )

    # -- which place a path names ------------------------------------------------------------------

    def locate(self, text: str) -> Place:
        """The place that a new sink's path names; Refuse says why it may not have it."""
        names = _names(text)
        if not text.startswith("/"):
            return self._checked(Place(_real(self.folder), names, makes=True), text)
        path = Path("/", *names)
        for root in sorted((self.folder, *self.allowed), key=lambda root: -len(root.parts)):
            for spelled in (root, _real(root)):
                if path != spelled and path.is_relative_to(spelled):
                    return self._checked(Place(_real(root), path.relative_to(spelled).parts), text)
        raise refused(
            f"cannot write {text}: expected a path inside {self._listed()}; use a relative path, or add the folder to "
            "server.allow_paths in the server's configuration"
        )

    def locate_known(self, text: str) -> Place:
        """The place of a sink that exists in the catalog: where it is allowed, else where it has always written."""
        if "\0" in text:
            return self.locate(text)
        with suppress(Refuse):
            return self.locate(text)
        whole = Path(os.path.realpath(os.path.join(self.folder, text)))
        if (owner := self._own_file(whole)) is not None:
            raise refused(f"cannot write {text}: {owner}")
        return Place(whole.parent, (whole.name,), lenient=True)

    def has(self, place: Place) -> bool:
        """Whether the place is in the data directory, so that no other server writes there."""
        return self._data is not None and place.path.is_relative_to(_real(self._data))

    def _listed(self) -> str:
        allowed = [f"{self.folder} (server.sink_dir)", *(f"{path} (server.allow_paths)" for path in self.allowed)]
        return " or ".join(allowed)

    def _checked(self, place: Place, text: str) -> Place:
        """The place, unless it is the server's own."""
        path = place.path
        if (hidden := next((name for name in place.names if name.startswith(".")), None)) is not None:
            raise refused(
                f"cannot write {text}: {hidden} starts with a dot, which marks unfinished files; use another name"
            )
        if (owner := self._own_file(path)) is not None:
            raise refused(f"cannot write {text}: {owner}")
        if self._data is not None and self._inside(path, self._data):
            raise refused(
                f"cannot write {text}: {self._data} (server.data_dir) contains the server's own files; use a relative "
                f"path, which starts at {self.folder} (server.sink_dir)"
            )
        return place

    def _inside(self, path: Path, own: Path) -> bool:
        """Whether the path is in a folder of the server, outside the sink folder that may be inside it."""
        own, sinks = _real(own), _real(self.folder)
        in_sinks = sinks != own and sinks.is_relative_to(own) and path.is_relative_to(sinks)
        return path.is_relative_to(own) and not in_sinks

    def _own_file(self, path: Path) -> str | None:
        """Why the path is the server's own; None if it is not."""
        for folder in self._own_folders:
            if self._inside(path, folder):
                return f"{folder} contains the server's own files; use another place"
        if self._data is not None and path.parent == _real(self._data) and path.name.startswith(_OWN_NAMES):
            return "it is one of the server's own files; use another place"
        if any(path == _real(file) for file in self._own_files):
            return "it is one of the server's own files; use another place"
        return None

    def _own_identities(self) -> dict[Identity, str]:
        """The server's own files and folders by device and inode, so that no other name leads to them."""
        found: dict[Identity, str] = {}
        paths = [*self._own_files, *self._own_folders]
        if self._data is not None:
            paths.append(self._data)
            with suppress(OSError), os.scandir(self._data) as entries:
                paths += [Path(entry.path) for entry in entries if entry.name.startswith(_OWN_NAMES)]
        for path in paths:
            with suppress(OSError):
                found[identity(os.stat(path))] = str(path)
        for handle, name in ((1, "the server's standard output"), (2, "the server's log")):
            with suppress(OSError):
                status = os.fstat(handle)
                if stat.S_ISREG(status.st_mode):
                    found[identity(status)] = name
        return found

    # -- opening -----------------------------------------------------------------------------------

    @contextmanager
    def parent(self, place: Place, *, makes: bool = False) -> Iterator[int]:
        """The folder that holds the place, opened name by name; `makes` creates those that are missing."""
        root = place.root
        if makes and root == _real(self.folder):
            make_folder(root)
        handle = os.open(root, _ON_THE_WAY & ~os.O_NOFOLLOW)
        own = self._own_identities()
        so_far = root
        try:
            for name in place.names[:-1]:
                so_far = so_far / name
                if makes and place.makes:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=handle)
                    sync_names(handle)
                following = _step(name, handle, so_far)
                os.close(handle)
                handle = following
                self._check_own(os.fstat(handle), own, so_far)
            yield handle
        finally:
            os.close(handle)

    def _check_own(self, status: os.stat_result, own: dict[Identity, str], path: Path) -> None:
        if (name := own.get(identity(status))) is not None:
            raise refused(f"cannot write {path}: it is {name}; use another place")

    def status(self, place: Place) -> os.stat_result | None:
        """The status of a place that a sink is to write to; None if it does not exist yet.

        OSError if the place cannot be reached. Nothing is created.
        """
        try:
            with self.parent(place) as folder:
                try:
                    status = os.stat(place.names[-1], dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    return None
        except FileNotFoundError:
            if place.makes:
                return None
            text = f"{os.strerror(errno.ENOENT)}: {place.path.parent}"
            raise FileNotFoundError(errno.ENOENT, text) from None
        self._check_own(status, self._own_identities(), place.path)
        return status

    def look_for_file(self, place: Place) -> Identity | None:
        """The regular file at a new sink's place, if there is one."""
        status = self.status(place)
        if status is None:
            return None
        _check_regular(status, place.path)
        _check_single(status, place)
        return identity(status)

    def find_folder(self, place: Place) -> Place:
        """The place itself, or `<name>-2`, `-3`, ... where an earlier server left a single file of that name."""
        name, number, found = Path(place.names[-1]), 1, place
        while (status := self.status(found)) is not None and stat.S_ISREG(status.st_mode):
            number += 1
            found = place.named(f"{name.stem}-{number}{name.suffix}")
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise refused(f"cannot write {found.path}: expected a folder, got {_kind(status)}")
        return found

    def open_file(self, place: Place, *, makes: bool = False) -> int:
        """A handle that appends to a regular file, which is created if there is none."""
        path = place.path
        with self.parent(place, makes=makes) as folder:
            try:
                _check_regular(os.stat(place.names[-1], dir_fd=folder, follow_symlinks=False), path)
            except FileNotFoundError:
                sync_names(folder)  # a file that was renamed must not lose both names to the new one
            try:
                handle = os.open(place.names[-1], _APPEND, 0o666, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):  # a link or a pipe since the check
                    raise _not_regular(path, "something else") from None
                raise
        try:
            status = os.fstat(handle)
            _check_regular(status, path)
            self._check_own(status, self._own_identities(), path)
            if makes:
                _check_single(status, place)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def sync_name(self, place: Place) -> None:
        """Make the name of a place durable."""
        with self.parent(place) as folder:
            sync_names(folder)

    def open_parent(self, place: Place) -> int:
        """A handle of the folder that holds a place which exists."""
        with self.parent(place) as folder:
            return os.dup(folder)

    def open_folder(self, place: Place, *, makes: bool = False) -> int:
        """A handle of a folder, which is created if there is none."""
        name = place.names[-1]
        with self.parent(place, makes=makes) as parent:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            sync_names(parent)
            handle = _step(name, parent, place.path, _FOLDER)
        try:
            self._check_own(os.fstat(handle), self._own_identities(), place.path)
        except BaseException:
            os.close(handle)
            raise
        return handle


def _own_files(settings: Settings) -> Iterator[Path]:
    server = settings.server
    for name in ServerSection.model_fields:
        value = getattr(server, name)
        if isinstance(value, Path) and (name.endswith(("token_file", "tokens_file")) or "_tls_" in f"_{name}"):
            yield value
    if settings.path is not None:
        yield settings.path
    if server.functions is not None:
        with suppress(ImportError, ValueError):
            found = importlib.util.find_spec(server.functions)
            if found is not None and found.origin is not None:
                yield Path(found.origin)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _names(text: str) -> tuple[str, ...]:
    """The names of a path; Refuse if one of them cannot be a sink's."""
    if not text.isprintable():
        raise refused(f"cannot write {text!r:.200}: a path must consist of printable characters")
    names = tuple(name for name in text.split("/") if name not in ("", "."))
    if len(os.fsencode(text)) > PATH_BYTES or any(len(os.fsencode(name)) > NAME_BYTES for name in names):
        raise refused(f"cannot write {text:.100}...: expected names of up to {NAME_BYTES} bytes, got a longer one")
    if not names:
        raise refused(f"cannot write {text!r}: expected a file, got a folder")
    if ".." in names:
        raise refused(f"cannot write {text}: a sink's path may not contain '..'")
    if names[0].startswith("~"):
        raise refused(f"cannot write {text}: '~' is not expanded; use a relative path")
    return names


def _step(name: str, folder: int, path: Path, flags: int = _ON_THE_WAY) -> int:
    """The folder of this name, opened; a link is refused."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise refused(f"cannot write {path}: expected a folder, got {_kind(status)}") from None


def names_in(folder: int) -> list[str]:
    """The names in a folder, in order; none if this user may not list it."""
    try:
        handle = os.open(".", _FOLDER, dir_fd=folder)
    except PermissionError:
        return []
    try:
        return sorted(os.listdir(handle))
    finally:
        os.close(handle)


def sync_names(folder: int) -> None:
    """Make the names in a folder durable. One that this user may not list cannot be synced."""
    try:
        handle = os.open(".", _FOLDER, dir_fd=folder)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _kind(status: os.stat_result) -> str:
    return next((words for test, words in _KINDS if test(status.st_mode)), "a file")


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path, _kind(status))


def _check_single(status: os.stat_result, place: Place) -> None:
    """A second name may belong to another user's file."""
    if status.st_nlink > 1 and not place.lenient:
        raise refused(f"cannot write {place.path}: the file has other names (hard links); use a file without them")


def _not_regular(path: Path, got: str) -> Refuse:
    return refused(f"cannot write {path}: expected a regular file, got {got}")


def error_words(error: BaseException) -> str:
    """An error in a few words."""
    if isinstance(error, Refuse):
        return error.text
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
