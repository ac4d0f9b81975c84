"""How the graph changes: what all changes have in common (`rewiring`), and a file per reason to change it."""
