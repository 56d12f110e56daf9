"""Load testing: client processes that send calls by an arrival law, and the measurements."""
