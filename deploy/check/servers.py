"""A Millrace server with TLS, tokens and data for every panel, and a Prometheus that scrapes it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from millrace.client import AsyncClient

DEPLOY: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = sys.executable
# This replaces a minute: alerts must fire and clear while a test waits.
SOON: Final = "15s"
PATIENCE_SECONDS: Final = 120.0


def until(true: Callable[[], Any], what: str) -> Any:
    """Poll other processes until a deadline."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if result := true():
            return result
        time.sleep(0.2)
    raise AssertionError(f"it did not come true: {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Millrace:
    """The server of the compose file, as a separate process with fixed ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        self.keys.mkdir()
        subprocess.run(["sh", DEPLOY / "docker/make-keys.sh", self.keys, "localhost"], check=True)
        self.data, self.client, self.scrape = (folder / name for name in ("data", "client", "scrape"))
        for volume in (self.client, self.scrape):
            volume.mkdir()
            shutil.copy(self.keys / "certificate.pem", volume)
        self.listen, self.admin = (f"localhost:{free_port()}" for _ in range(2))
        self.environment = {
            **os.environ,
            "MILLRACE_ADMIN": self.admin,
            "MILLRACE_SERVER": self.listen,
            "MILLRACE_CA_FILE": str(self.client / "certificate.pem"),
            "MILLRACE_TOKEN_FILE": str(self.client / "token"),
            "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.keys / "certificate.pem"))

    @property
    def token(self) -> str:
        return (self.client / "token").read_text(encoding="utf-8").strip()

    def start(self) -> None:
        settings = {
            "LISTEN": self.listen,
            "ADMIN": self.admin,
            "DATA_DIR": str(self.data),
            "TLS_CERTIFICATE": str(self.keys / "certificate.pem"),
            "TLS_KEY": str(self.keys / "key.pem"),
            "AUTH": "token",
        }
        environment = {**os.environ, **{f"MILLRACE_SERVER__{key}": value for key, value in settings.items()}}
        with (self.folder / "millrace.log").open("ab") as log:
            self._process = subprocess.Popen([PYTHON, "-m", "millrace.cli.main", "serve"], env=environment, stderr=log)
        until((self.data / "addresses.json").exists, "the server listens")
        folders = (self.data, self.client, self.scrape)
        subprocess.run(["sh", DEPLOY / "docker/make-tokens.sh", *folders], env=self.environment, check=True)

    def end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)
            self._process = None

    def tried(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command that has ended."""
        return subprocess.run(
            [PYTHON, "-m", "millrace.cli.main", *command],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def say(self, *command: str) -> str:
        """The output of a command."""
        done = self.tried(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def fill(self) -> None:
        """Run the statements of the demo and of busy.sql."""
        for script in (DEPLOY / "compose/demo.sql", DEPLOY / "check/busy.sql"):
            self.say("apply", str(script))
        self.say("query", "pause", "asleep")


class Crowd:
    """The demo's feeds, and feeds with late tuples, with invalid rows, and with answers to requests."""

    def __init__(self, server: Millrace) -> None:
        self._server = server
        self._feeds = subprocess.Popen([PYTHON, DEPLOY / "compose/feeds.py"], env=server.environment)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._feed()), daemon=True)
        self._thread.start()

    async def _feed(self) -> None:
        server = self._server
        async with AsyncClient(server.listen, tls=server.tls(), token=server.token) as client:
            till, door = await client.open("till", answer="clock"), await client.open("door", answer="clock")
            quotes = await client.open("quotes")
            number = 0
            while not self._ended.is_set():
                now_us = time.time_ns() // 1_000
                late = 60_000_000 if number % 10 == 0 else 0
                await till.send([(now_us - late, "ada", 250)])
                if number % 20 == 0:
                    await door.send([(now_us, "grace")])
                await quotes.send([(f"s{at % 5}", 1.0 + at) for at in range(200)])
                number += 1
                await asyncio.sleep(0.05)

    def refuse_some(self) -> None:
        """Send a row that does not match the schema."""
        host, _, port = self._server.listen.partition(":")
        plain = socket.create_connection((host, int(port)))
        with self._server.tls().wrap_socket(plain, server_hostname=host) as peer:
            lines = [{"token": self._server.token}, {"stream": "door", "tuple": {"ts": "never", "visitor": "x"}}]
            peer.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())
            assert b"error" in peer.recv(65536)

    def end(self) -> None:
        self._feeds.terminate()
        self._feeds.wait(timeout=30)
        self._ended.set()
        self._thread.join(timeout=30)


class Prometheus:
    """Debian's Prometheus, with the configuration and the rules of this folder and shorter intervals."""

    def __init__(self, folder: Path, server: Millrace) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        home = folder / "prometheus"
        (home / "rules").mkdir(parents=True)
        for rules in (DEPLOY / "prometheus/rules").glob("*.yml"):
            text = rules.read_text(encoding="utf-8")
            text = re.sub(r"\[\d+m\]", f"[{SOON}]", re.sub(r"for: \d+m", "for: 1s", text))
            (home / "rules" / rules.name).write_text(text, encoding="utf-8")
        text = (DEPLOY / "compose/prometheus.yml").read_text(encoding="utf-8")
        for here, there in (
            ("/scrape", str(server.scrape)),
            ("/etc/prometheus", str(home)),
            ("millrace:7421", server.admin),
            ("15s", "1s"),
        ):
            text = text.replace(here, there)
        (home / "prometheus.yml").write_text(text, encoding="utf-8")
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        until(self._ready, "Prometheus is ready")

    def _ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended: see its log"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def values(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The present values of an expression."""
        series = self.get("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in series]

    def alerts(self, name: str) -> list[Mapping[str, str]]:
        """The labels of an alert that is firing."""
        alerts = self.get("alerts")["alerts"]
        firing = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return [labels for labels in firing if labels["alertname"] == name]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
