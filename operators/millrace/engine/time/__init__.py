"""Time: what the engine asks of the world about it."""
