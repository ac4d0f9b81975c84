"""A machine with a recorded disk, for tests that say when its power is cut and what its disk refuses."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random

from tests.disk.calls import Recording
from tests.disk.model import Folder, crash, store
from tests.disk.stores import PowerCut, close_files


class Machine:
    """`folder` is what programs see at present; `changes` is how many the newest program made."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.folder = root / "0"
        self.folder.mkdir(parents=True)
        self.disk = Folder()
        self.changes = self.cuts = 0
        self._root, self._random = root, Random(seed)

    def run(
        self, program: Callable[[Path], object], *, cut_at: int | None = None, faults: Mapping[int, int] | None = None
    ) -> bool:
        """Run a program, and whether it ended by itself: `cut_at` is the change in whose middle it is ended, `faults`
        are the errors of the disk, by the number of the change that fails."""
        self.changes = 0

        def before(call: str, _name: str) -> None:
            self.changes += 1
            if cut_at is not None and self.changes >= cut_at:
                raise PowerCut
            number = (faults or {}).get(self.changes)
            if number is not None and (number != errno.ENOSPC or call not in ("unlink", "truncate", "sync")):
                raise OSError(number, os.strerror(number))

        with Recording(self.folder, self.disk, self._random, before):
            try:
                program(self.folder)
            except PowerCut:
                return False
            finally:
                close_files(self.folder)
        return True

    def cut(self, share: float | None = None) -> None:
        """Cut the power: all that is not durable is lost, or this share of it stays."""
        crash(self.disk, self._random, share)
        self.cuts += 1
        before, self.folder = self.folder, self._root / str(self.cuts)
        store(self.disk, self.folder)
        shutil.rmtree(before)


def every_cut(root: Path, program: Callable[[Path], object], share: float | None = None) -> Iterator[Machine]:
    """Machines whose power was cut at the first change of the program, at the second, ..., and after its end."""
    for at in count(1):
        machine = Machine(root / str(at), at)
        ended = machine.run(program, cut_at=at)
        machine.cut(share)
        yield machine
        if ended:
            return
