"""How long a test waits for something that must happen.

Rule: no test asserts a duration. A wait ends when its condition holds. The bound only ends a test that hangs, and is
far longer than a busy machine needs.
"""

HANG_SECONDS = 600.0
