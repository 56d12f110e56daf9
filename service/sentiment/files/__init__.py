"""Reading texts from files, writing answers to files, and HTML reports with plots."""
