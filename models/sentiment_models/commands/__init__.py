"""A module a command of ``sentiment-models``: ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``.

The command line imports a module when its command is used: torch takes seconds to import.
"""
