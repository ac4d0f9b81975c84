"""A server for each module, in a separate process, and the commands against it."""

import json
import os
import signal
import subprocess

import pytest

from tests.patience import HANG_SECONDS, wait_until
from tests.warm.start import warm

ANY_PORT = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def clean_environment(**more):
    """The environment of the tests, without the settings that the developer may have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    return {**kept, "XDG_RUNTIME_DIR": "", **more}


class Server:
    """A running `millrace serve`. It requires a token if its environment says so, or with `guarded`."""

    def __init__(self, folder, *flags, command=None, guarded=False, **variables):
        command = command or warm()
        if not (guarded or any("TOKEN" in name for name in variables)):
            flags = (*flags, "--no-token")
        self.process = subprocess.Popen(
            [*command, "serve", *ANY_PORT, "--data-dir", str(folder), *flags],
            env=clean_environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        addresses = folder / "addresses.json"
        wait_until(lambda: self._has_written(addresses))
        ports = json.loads(addresses.read_text())
        self.listen, self.admin = ports["listen"], ports["admin"]

    def _has_written(self, addresses):
        assert self.process.poll() is None, self.process.communicate()
        return addresses.exists() and addresses.read_text().endswith("\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def millrace(self, *arguments, stdin=""):
        """One command against this server."""
        return millrace(*arguments, stdin=stdin, MILLRACE_ADMIN=self.admin)

    def json(self, *arguments):
        done = self.millrace(*arguments, "--json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def end(self):
        """Send SIGTERM; return the exit code and both outputs."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, out, err


def millrace(*arguments, stdin="", **variables):
    return subprocess.run(
        [*warm(), *arguments],
        input=stdin,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running
        code, _, err = running.end()
    assert code == 0, err
    assert "Traceback" not in err
