"""Update queues (UPS): an edge keeps the newest.

`appending.py`, `update.py` and `windows/` are queues, the last two over the pages of `pages.py`. `edge.py` defines an
edge, and `reader.py` puts a queue between an arc and the operator that reads it.
"""
