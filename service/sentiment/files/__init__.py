"""Reading texts from files, and writing answers to files."""
