"""A feed of a workload's columns: `python -m bench.race.replay ADDRESS STREAM KIND ROWS FOLDER`.

All frames are encoded before the first one is sent. At the end the feed promises the end of its time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench import sender
from bench.race.served import END_US
from millrace.client.arrow import to_stream
from millrace.protocol.messages import Close, Data, DataArrow, Punctuation


class Recorded:
    """The frames of a stream's columns."""

    def __init__(self, folder: Path, stream: str, kind: str, rows: int) -> None:
        names = json.loads((folder / "streams.json").read_text())[stream]
        columns = [np.fromfile(folder / f"{stream}.{name}", np.int64) for name in names]
        self.count = len(columns[0])
        self.tails: list[bytes] = []
        for at in range(0, self.count, rows):
            part = [column[at : at + rows] for column in columns]
            if kind == "rows":
                message: Data | DataArrow = Data(0, 0, list(zip(*(one.tolist() for one in part), strict=True)))
            else:
                arrays = [pa.array(one) for one in part]
                message = DataArrow(0, 0, len(part[0]), to_stream(pa.record_batch(arrays, names=names)))
            self.head, tail = sender.parts(message)
            self.tails.append(tail)

    def tail(self, number: int) -> bytes:
        return self.tails[number]


class Replay(sender.Sender):
    """Sends the frames as credit allows, then the end of time."""

    def __init__(self, stream: str, frames: Recorded, rows: int) -> None:
        self.recorded = frames
        super().__init__(stream, "rows", rows, len(frames.tails))
        self.frames = frames


async def main(address: str, stream: str, kind: str, rows: int, folder: str) -> None:
    host, port = address.rsplit(":", 1)
    frames = Recorded(Path(folder), stream, kind, rows)
    assert frames.count % rows == 0, "the last frame is shorter"
    loop = asyncio.get_running_loop()
    _, feed = await loop.create_connection(lambda: Replay(stream, frames, rows), host, int(port))
    print(await feed.done)
    feed.say(Punctuation(0, END_US))
    feed.say(Close(0))
    await asyncio.sleep(0.05)
    feed.transport.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
