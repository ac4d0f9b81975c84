"""Readings of radio sensors as JSON lines, in order of arrival: each has a random delay.

    python readings.py [--seconds 30] [--live] > readings.jsonl

The same seed generates the same readings. With --live they carry the present time and arrive in real time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00 UTC
SENSORS = ("attic", "cellar", "garden")


def delay(chance: random.Random) -> float:
    """Seconds: mostly a fraction; one of fifty readings has to be sent repeatedly."""
    return chance.uniform(3.0, 6.0) if chance.random() < 0.02 else chance.expovariate(4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Readings of radio sensors, as JSON lines in order of arrival.")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--live", action="store_true", help="in real time, with the present time")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    sent = [(second + delay(chance), second, sensor) for second in range(options.seconds) for sensor in SENSORS]
    started = time.time()
    for arrives, second, sensor in sorted(sent):
        if options.live:
            time.sleep(max(started + arrives - time.time(), 0))
        origin_us = int(started * 1e6) if options.live else NOON_US
        celsius = round(15 + SENSORS.index(sensor) * 3 + math.sin(second / 20) * 2, 1)
        reading = {"at": origin_us + second * 1_000_000, "sensor": sensor, "celsius": celsius}
        sys.stdout.write(json.dumps(reading) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
