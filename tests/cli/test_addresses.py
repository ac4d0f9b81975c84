"""Commands for several servers: each request goes to the one that leads."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millrace.cli.link import Link
from millrace.cli.standby import promote
from millrace.protocol.errors import MillraceError

NOBODY = "127.0.0.1:1"


@contextmanager
def server(name, *, ready=True):
    """Answers with its name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if served.ready or self.path != "/-/ready" else 503)
            self.end_headers()
            self.wfile.write(json.dumps({"name": name}).encode())

        def log_message(self, *_):
            pass

    class Served(ThreadingHTTPServer):
        ready = True

    with Served(("127.0.0.1", 0), Handler) as served:
        served.ready = ready
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield served, f"127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


def test_requests_follow_a_promotion():
    with server("a") as (first, one), server("b", ready=False) as (second, two):
        link = Link(f"{NOBODY}, {two},{one}")
        assert link.get("server") == {"name": "a"}
        first.ready, second.ready = False, True
        assert link.get("server") == {"name": "b"}
        assert Link(two).get("server") == {"name": "b"}


def test_a_standby_answers_while_nobody_leads():
    with server("b", ready=False) as (_, two):
        assert Link(f"{NOBODY},{two}").get("server") == {"name": "b"}


def test_nobody_answers():
    with pytest.raises(MillraceError, match=r"no Millrace server answers at 127\.0\.0\.1:2 "):
        Link(f"{NOBODY},127.0.0.1:2").get("server")


def test_a_promotion_names_one_server():
    with pytest.raises(MillraceError, match="a promotion is for one server"):
        promote(Link("127.0.0.1:1,127.0.0.1:2"))
    with pytest.raises(MillraceError, match="--force is for a standby and --alone for a primary"):
        promote(Link(NOBODY), force=True, alone=True)
