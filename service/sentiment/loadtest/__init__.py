"""``sentiment loadtest``: client processes that load a server by a law, and what they saw."""
