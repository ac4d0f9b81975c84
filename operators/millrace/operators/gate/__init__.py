"""Gate: where a query begins that has a past to learn first."""
