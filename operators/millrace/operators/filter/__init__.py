"""Filter: keep the rows, or the keys of an update stream, for which a predicate is true."""
