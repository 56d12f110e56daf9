"""One module a peer, each run in that peer's own environment: they import nothing of the service and none another."""
