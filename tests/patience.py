"""How long a test waits for something that must happen.

Rule: no test asserts a duration. A wait ends when its condition holds; the bound only ends a test that hangs, and lies
far above what a machine with other work to do needs.
"""

HANG_SECONDS = 600.0
