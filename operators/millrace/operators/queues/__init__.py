"""Update queues (UPS): what an edge keeps when it keeps the newest.

`pages.py` holds tuples, `keys.py` numbers update keys, `update.py`, `shedding.py` and `windows.py` are queues over
pages, `edge.py` says what an edge is, and `reader.py` puts a queue between an arc and the operator that reads it.
"""
