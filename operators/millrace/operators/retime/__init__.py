"""Retime: the same rows at another time."""
