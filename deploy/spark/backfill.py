"""The program for `spark-submit`: `millrace backfill`, in the session that spark-submit creates.

    spark-submit --master URL --py-files millrace.zip backfill.py \\
      start --sql q.sql --input packets=/data/packets --out /data/out

`python -m millrace.backfill.shipping millrace.zip` creates the archive. Where Millrace is installed on the driver
and the executors, omit --py-files: installed kernels are compiled, kernels in an archive are not.
"""

from __future__ import annotations

import sys

from millrace.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["backfill"]
    main()
