"""A bundle in memory: tokenizer, session, scores. Knows no request, no queue and no network."""
