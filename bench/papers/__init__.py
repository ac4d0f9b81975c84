"""The papers' figures: `python -m bench.papers` runs the experiments under a virtual clock and draws them again.

Every experiment is a function of its size, so that the tests can run each at a small size. It returns claims: the
paper's statement, the measured values, and whether it holds. A claim that does not hold stays in the list.
"""
