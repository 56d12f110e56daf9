"""Faults that are really made, and what becomes of the calls meanwhile.

Each test's docstring says what is done; ``make faults`` runs all and writes deploy/RELIABILITY.md.
"""
