"""Ticks of a small market as JSON lines: a few symbols change often, most seldom.

    python ticks.py [--ticks 200] [--live] > ticks.jsonl

The same seed generates the same ticks. With --live they carry the present time and arrive at about 50 per second.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00 UTC
SYMBOLS = {"abc": 9_000, "bolt": 4_150, "cork": 12_020, "dune": 700, "echo": 11_980}
WEIGHTS = (40, 30, 10, 10, 10)
EVERY_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description="Ticks of a small market, as JSON lines.")
    parser.add_argument("--ticks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--live", action="store_true", help="in real time, with the present time")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    prices = dict(SYMBOLS)
    started = time.time()
    for number in range(options.ticks):
        (symbol,) = chance.choices(list(prices), WEIGHTS)
        prices[symbol] += chance.randint(-15, 15)
        at = number * EVERY_S
        if options.live:
            time.sleep(max(started + at - time.time(), 0))
        origin_us = int(started * 1e6) if options.live else NOON_US
        tick = {"at": origin_us + int(at * 1e6), "symbol": symbol, "cents": prices[symbol]}
        sys.stdout.write(json.dumps({**tick, "pieces": chance.randint(1, 100)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
