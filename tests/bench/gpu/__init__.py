"""What a GPU gives, in one call: ``python -m tests.bench.gpu`` from a checkout; no part of the tests."""
