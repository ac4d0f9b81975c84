"""Sequences: rows of one stream FOLLOWED BY rows of another."""
