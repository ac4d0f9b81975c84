"""What `spark-submit` runs: `millrace backfill`, in the session that spark-submit has made.

    spark-submit --master URL --py-files millrace.zip backfill.py \\
      start --sql q.sql --input packets=/data/packets --out /data/out

The archive comes from `python -m millrace.backfill.shipping millrace.zip`. Where Millrace is installed on the driver
and the executors, leave --py-files out: installed kernels are compiled, those of an archive are not.
"""

from __future__ import annotations

import sys

from millrace.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["backfill"]
    main()
