"""The race: four workloads in Millrace and in other programs, on the same tuples and with equal rows."""
