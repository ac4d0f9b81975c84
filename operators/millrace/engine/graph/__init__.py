"""The graph, and everything that changes it while it runs."""
