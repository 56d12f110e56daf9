"""The options of each command of this package."""
