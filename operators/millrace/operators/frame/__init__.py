"""The frame of every operator: arcs with registers, the operator itself, and waiting for time."""
