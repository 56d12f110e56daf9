"""One text's way through the server, and the process that serves."""
