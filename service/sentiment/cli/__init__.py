"""The command line, one module a command; ``main`` has them all."""
