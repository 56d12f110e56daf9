"""Real faults, and how the calls end that are made during them.

The first line of each test's docstring is its promise, in at most 12 words; the rest says what is done. ``make faults`` runs all of them
and writes deploy/RELIABILITY.md.
"""
