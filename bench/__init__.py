"""Benchmarks: ratios measured side by side in one run. `make bench` prints all of them.

Every benchmark is a function that takes its size and returns `Figure`s; the tests run each at a small size, so that
none can rot. No test asserts a duration.
"""
