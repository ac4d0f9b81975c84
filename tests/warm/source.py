"""Imports Millrace once, and forks for every launcher that connects: `source.py SOCKET`. Ends with its input.

A fork returns from `serve` and continues as an interpreter that was started for its command: they differ only in the
loaded modules.
"""

from __future__ import annotations

import gc
import marshal
import os
import selectors
import signal
import socket
import sys
import time
import warnings
from contextlib import suppress
from typing import Any


def load() -> None:
    """Import what commands import, and no command's own module."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import httpx  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import millrace.cli.application
    import millrace.client
    import millrace.offline.run
    import millrace.offline.script
    import millrace.run.daemon  # noqa: F401


class Source:
    """The commands that run, and the launchers that wait for them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(64)
        self.woken, self.wakes = os.pipe()
        for end in (self.woken, self.wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakes)
        self.selector = selectors.DefaultSelector()
        for waited in (self.listener, self.woken, sys.stdin):
            self.selector.register(waited, selectors.EVENT_READ)
        self.launchers: dict[int, socket.socket] = {}

    def serve(self) -> list[str] | None:
        """In a fork: the arguments of its command. In the process itself: None, at the end."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    arguments = self._start()
                    if arguments is not None:
                        return arguments
                elif key.fileobj == self.woken:
                    os.read(self.woken, 4096)
                    self._reap()
                elif key.fileobj is sys.stdin:
                    self._end()
                    return None
                else:
                    self._pass_on(key.data)

    def _start(self) -> list[str] | None:
        launcher, _ = self.listener.accept()
        head, descriptors, _, _ = socket.recv_fds(launcher, 8, 3)
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            body += launcher.recv(1 << 16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's threads outlive a fork: it sees to that itself
            pid = os.fork()
        if not pid:
            self._forget()
            launcher.close()
            return become(marshal.loads(body), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self.launchers[pid] = launcher
        self.selector.register(launcher, selectors.EVENT_READ, pid)
        return None

    def _forget(self) -> None:
        """A fork has nothing of this."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        self.listener.close()
        for end in (self.woken, self.wakes):
            os.close(end)
        for launcher in self.launchers.values():
            launcher.close()

    def _pass_on(self, pid: int) -> None:
        """Signals for a command, or the end of who waits for it."""
        if pid not in self.launchers:
            return
        numbers = self.launchers[pid].recv(64) or bytes([signal.SIGKILL])
        for number in numbers:
            os.kill(pid, number)
        if numbers[0] == signal.SIGKILL:
            self.selector.unregister(self.launchers[pid])

    def _reap(self) -> None:
        while self.launchers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            launcher = self.launchers.pop(pid)
            if launcher in (key.fileobj for key in self.selector.get_map().values()):
                self.selector.unregister(launcher)
            with suppress(OSError):  # where it was killed
                launcher.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            launcher.close()

    def _end(self) -> None:
        for pid in self.launchers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.unlink(self.path)


def become(told: tuple[list[str], dict[str, str], str, list[int]], descriptors: list[int]) -> list[str]:
    """Adopt the arguments, environment, folder and descriptors of the launcher."""
    arguments, environment, folder, ignored = told
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    streams: tuple[tuple[str, int, str, str, bool], ...] = (
        ("stdin", 0, "r", "strict", False),
        ("stdout", 1, "w", "strict", os.isatty(1)),
        ("stderr", 2, "w", "backslashreplace", True),
    )
    for name, descriptor, mode, errors, by_line in streams:
        made: Any = open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        if mode == "w":
            made.reconfigure(line_buffering=by_line or unbuffered, write_through=unbuffered)
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    sys.argv = ["millrace", *arguments]
    return arguments


if __name__ == "__main__":
    del sys.path[0]  # this folder
    load()
    sys.path.insert(0, "")
    gc.collect()
    gc.freeze()
    source = Source(sys.argv[1])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if source.serve() is not None:
        from millrace.cli.main import main

        main()
