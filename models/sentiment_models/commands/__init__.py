"""The commands of ``sentiment-models``, one module each: ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``.

The modules import what they declare arguments with. ``run`` imports the work, which may need an extra: help works without.
"""
