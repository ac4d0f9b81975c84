"""Changes of a server as values: a file for each, planned in the control state and performed by a server."""
