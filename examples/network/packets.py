"""Packets of a small network as JSON lines: web traffic, one large download, one port scan.

    python packets.py [--seconds 30] [--live] > packets.jsonl

The same seed generates the same packets. With --live they carry the present time and arrive in real time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00 UTC
HOSTS = [f"10.0.0.{number}" for number in range(2, 12)]
RATE = 40.0  # packets a second, on average


def packets(seconds: float, seed: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each packet with its second."""
    chance = random.Random(seed)
    at = 0.0
    scanned = 1
    while (at := at + chance.expovariate(RATE)) < seconds:
        src, dst = chance.sample(HOSTS, 2)
        yield at, {"src": src, "dst": dst, "port": chance.choice((443, 443, 80, 53)), "bytes": chance.randint(60, 1500)}
        if 12 <= at < 18:  # a host reads a large file
            yield at, {"src": "10.0.0.3", "dst": "10.0.0.9", "port": 443, "bytes": 1500}
        if 21 <= at < 22:  # a host looks for open doors
            scanned += 1
            yield at, {"src": "10.0.0.7", "dst": "10.0.0.2", "port": scanned, "bytes": 60}


def main() -> None:
    parser = argparse.ArgumentParser(description="Packets of a small network, as JSON lines.")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--live", action="store_true", help="in real time, with the present time")
    options = parser.parse_args()
    started = time.time()
    for at, packet in packets(options.seconds, options.seed):
        if options.live:
            time.sleep(max(started + at - time.time(), 0))
        origin_us = int(started * 1e6) if options.live else NOON_US
        line = json.dumps({"ts": origin_us + int(at * 1e6), **packet})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
