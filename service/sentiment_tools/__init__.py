"""Commands for operators: load tests, planning, corpora, live views and reports."""
