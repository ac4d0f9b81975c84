"""Two servers under load: a primary that is killed, and its standby, which is killed more often and then takes over.

What must hold is what `world.py` says of one server: the clients notice nothing but pauses. The primary is killed when
its standby has everything; a primary that ends in order lets its standby have everything, under load too.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.cli.conftest import clean_environment
from tests.patience import wait_until
from tests.torture.world import FEEDS, QUERIES, SQL, Feeder, Reader, World, free_port, in_order, parquet_rows


class Pair(World):
    """The clients' address is always the primary's; its standby has another one."""

    def __init__(self, folder: Path, seed: int, settings: str = "") -> None:
        super().__init__(folder, seed, settings)
        self.standby: subprocess.Popen[bytes] | None = None
        self.copies = 0
        self.beside = folder
        self.beside_admin = ""

    # -- the standby -------------------------------------------------------------------------------

    def start_standby(self, *, empty: bool) -> None:
        if empty:
            self.copies += 1
            self.beside = self.folder.parent / f"standby{self.copies}"
        listen, self.beside_admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        command = [sys.executable, "-m", "millrace.cli.main", "serve", "--config", str(self.config)]
        command += ["--listen", listen, "--admin", self.beside_admin, "--data-dir", str(self.beside), "--no-token"]
        command += ["--follow", self.admin]
        self.standby = subprocess.Popen(
            command, env=clean_environment(), stdout=self.log, stderr=self.log, cwd=self.folder.parent
        )

    def follows(self) -> dict[str, Any] | None:
        """What the standby says of the server that it follows; None: it does not answer yet."""
        assert self.standby is not None
        assert self.standby.poll() is None, f"the standby ended with {self.standby.poll()}:\n{self.tail_of_log()}"
        try:
            with urllib.request.urlopen(f"http://{self.beside_admin}/api/v1/server", timeout=60) as answer:
                found: dict[str, Any] | None = json.load(answer)["follows"]
                return found
        except OSError:
            return None

    def connected(self) -> bool:
        found = self.follows()
        return found is not None and found["connected"]

    def level(self) -> bool:
        """Whether the standby has everything that the primary has."""
        found, newest = self.follows(), self.get("server")["journal"]["newest_lsn"]
        return found is not None and found["connected"] and found["lsn"] == newest and not found["to_replay"]

    def kill_standby(self) -> None:
        assert self.standby is not None
        self.standby.kill()
        self.standby.wait()

    def promote(self) -> None:
        """The standby takes over, and restarts at the primary's address, where the clients look for it."""
        assert self.standby is not None
        request = urllib.request.Request(
            f"http://{self.beside_admin}/api/v1/standby/promote", b"{}", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["missing_steps"] == 0
        self.standby.terminate()
        assert self.standby.wait(60) == 0, self.tail_of_log()
        self.folder, self.standby = self.beside, None
        self.start()
        self.wait_ready()

    # -- the play ----------------------------------------------------------------------------------

    def end(self) -> None:
        if self.standby is not None and self.standby.poll() is None:
            self.kill_standby()
        self.going.set()
        super().end()

    def play_pair(self, kills: int, changes: int) -> str:
        """Kill the standby so often, and change the primary so often: by kills and in order, in turns."""
        self.start()
        self.wait_ready()
        self.sql(SQL)
        feeders = [Feeder(self, name, stream, self.seed + at) for at, (name, stream) in enumerate(FEEDS.items())]
        readers = [Reader(self, query) for query in QUERIES]
        for thread in (*feeders, *readers):
            thread.start()
        for change in range(changes):
            self.start_standby(empty=True)
            for _ in range(kills):
                wait_until(self.connected)
                changing = threading.Thread(target=self.change_something, daemon=True)
                changing.start()
                time.sleep(self.random.uniform(0, 1.0))
                self.kill_standby()
                self.start_standby(empty=False)
            wait_until(self.connected)
            self.change_primary(killed=change % 2 == 0)
            self.going.set()
        self.stopping.set()
        verdict = self.judge(feeders, readers)
        assert self.server is not None
        self.server.terminate()
        assert self.server.wait(60) == 0, self.tail_of_log()
        rows = next(reader.rows for reader in readers if reader.query == "plain")
        in_order("files", parquet_rows(self.folder / "sinks" / "plain"), [row for _, row in rows])
        return f"{verdict}; {changes} promotions"

    def change_primary(self, *, killed: bool) -> None:
        assert self.server is not None
        if killed:
            self.going.clear()
            wait_until(lambda: self.resting == len(FEEDS))
            wait_until(self.level)
            self.kill()
        else:
            self.server.terminate()
            assert self.server.wait(60) == 0, self.tail_of_log()
        wait_until(lambda: not self.connected())
        self.promote()


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill standbys and change primaries under load.")
    parser.add_argument("--kills", type=int, default=3, help="of each standby")
    parser.add_argument("--changes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder) / "data", arguments.seed, "[journal]\ncheckpoint_seconds = 1\n")
        try:
            sys.stdout.write(f"{pair.play_pair(arguments.kills, arguments.changes)}\n")
        finally:
            pair.end()


if __name__ == "__main__":
    main()
