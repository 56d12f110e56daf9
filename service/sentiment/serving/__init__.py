"""The path of a text through the server, and the process that serves it."""
