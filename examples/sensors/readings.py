"""Readings of radio sensors as JSON lines, in the order in which they arrive: each is some time under way.

    python readings.py [--seconds 30] [--live] > readings.jsonl

The same seed gives the same readings. With --live they carry the present time and come at their own pace.
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


def under_way(chance: random.Random) -> float:
    """Seconds: mostly a fraction, one of fifty is sent again and again."""
    return chance.uniform(3.0, 6.0) if chance.random() < 0.02 else chance.expovariate(4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Readings of radio sensors, as JSON lines in order of arrival.")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--live", action="store_true", help="at their own pace, with the present time")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    sent = [(second + under_way(chance), second, sensor) for second in range(options.seconds) for sensor in SENSORS]
    begun = time.time()
    for arrives, second, sensor in sorted(sent):
        if options.live:
            time.sleep(max(begun + arrives - time.time(), 0))
        origin_us = int(begun * 1e6) if options.live else NOON_US
        celsius = round(15 + SENSORS.index(sensor) * 3 + math.sin(second / 20) * 2, 1)
        reading = {"at": origin_us + second * 1_000_000, "sensor": sensor, "celsius": celsius}
        sys.stdout.write(json.dumps(reading) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
