"""A client that uses the wrong port receives an error in its own protocol."""

import asyncio
import json

import pytest

from millrace.protocol import FrameReader, decode, encode, frame
from millrace.protocol.messages import Error, Hello
from tests.server.harness import served


async def said_at(address, *parts):
    """All that a port says to these bytes before it hangs up."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@served()
async def test_http_at_the_port_for_streams(daemon, method):
    answer = await said_at(daemon.listen, f"{method} /api/v1/queries HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    said = json.loads(body)
    assert said["code"] == "wrong_port"
    assert said["detail"].endswith(f"the HTTP API is at http://{daemon.admin}")


@served()
async def test_json_lines_at_the_port_of_the_api(daemon):
    (line,) = (await said_at(daemon.admin, b'{"subscribe": "q"}\n')).splitlines()
    assert json.loads(line)["error"] == {
        "code": "wrong_port",
        "text": f"this port is for the HTTP API; feeds and subscribers are served at {daemon.listen}",
        "line": 1,
    }


@served()
async def test_frames_at_the_port_of_the_api(daemon):
    reader = FrameReader()
    reader.feed(await said_at(daemon.admin, frame(encode(Hello(1, "x", None)))))
    (error,) = map(decode, reader.bodies())
    assert isinstance(error, Error)
    assert (error.code, error.text.partition(" at ")[2]) == ("wrong_port", str(daemon.listen))
