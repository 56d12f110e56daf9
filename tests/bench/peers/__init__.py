"""Other servers beside ours, in one run. ``make bench-peers``; no part of the tests."""
