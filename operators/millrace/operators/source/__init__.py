"""Source: where a stream enters the graph, and where time is decided."""
