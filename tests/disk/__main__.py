"""`python -m tests.disk --seeds 1000 --from 0`: plays so many servers' stores and their cuts."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import structlog

from tests.disk.stores import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.disk", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began, cuts, failures = time.perf_counter(), 0, 0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        for seed in range(options.first, options.first + options.seeds):
            try:
                cuts += play(Path(folder), seed)
            except Exception:
                failures += 1
                sys.stderr.write(f"{traceback.format_exc()}\n")
    spent = time.perf_counter() - began
    sys.stdout.write(f"{options.seeds} data directories, {cuts} cuts, {spent:.0f} s, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
