"""The commands of ``sentiment-models``, one module each: ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``.

The command line imports only the module of the command in use, because torch takes seconds to import.
"""
