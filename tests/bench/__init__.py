"""What the service costs beside the least that it could cost. ``make bench``; no part of the tests."""
