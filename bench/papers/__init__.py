"""The papers' figures, drawn anew: `python -m bench.papers` runs the experiments under a virtual clock.

Every experiment is a function of its size, so that the tests can run each at a small one. What it finds are claims:
what the paper says, what was measured, and whether it holds. A claim that does not hold stays in the list.
"""
