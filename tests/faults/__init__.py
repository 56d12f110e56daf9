"""Real faults, and how the calls end that are made during them.

The docstring of each test says what is done. ``make faults`` runs all of them and writes deploy/RELIABILITY.md.
"""
