"""Sample: a share of the rows, drawn at random."""
