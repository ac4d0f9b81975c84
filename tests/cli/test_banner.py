"""The output of `millrace serve` on a terminal, which it prints nowhere else."""

import os
import pty
import signal
import subprocess

from tests.cli.conftest import ANY_PORT, Server, clean_environment
from tests.patience import HANG_SECONDS
from tests.warm.start import COLD


def serve_on_a_terminal(*flags):
    """The text on a terminal from the start to `stop`, and after SIGINT the exit code."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COLD, "serve", *ANY_PORT, *flags],
        env=clean_environment(),
        stderr=terminal,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(terminal)
    text = b""
    while b"Ctrl-C" not in text:
        text += os.read(controller, 4096)
    process.send_signal(signal.SIGINT)
    code = process.wait(HANG_SECONDS)
    os.close(controller)
    return text.decode(), code


def test_without_a_data_directory_the_banner_warns():
    text, code = serve_on_a_terminal()
    assert code == 0
    assert "Millrace " in text
    assert "IN MEMORY ONLY" in text
    assert "--data-dir" in text
    assert "http://127.0.0.1:" in text
    assert "restored" not in text


def test_the_banner_counts_restored_objects(tmp_path):
    assert "nothing: the data directory is new" in serve_on_a_terminal("--data-dir", str(tmp_path))[0]
    with Server(tmp_path) as server:
        server.millrace(
            "sql", "CREATE STREAM a (k BIGINT); CREATE STREAM b (k BIGINT); CREATE QUERY q AS SELECT k FROM a"
        )
        _, _, err = server.end()
        assert "is ready" not in err
        assert "IN MEMORY" not in err
    text, _ = serve_on_a_terminal("--data-dir", str(tmp_path))
    assert str(tmp_path) in text
    assert "2 streams, 1 query, 0 sinks" in text
