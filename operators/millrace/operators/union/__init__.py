"""Union: one stream out of several."""
