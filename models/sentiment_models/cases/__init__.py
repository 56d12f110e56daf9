"""A generator of labelled texts: a grammar of phenomena, filled from a lexicon by domain."""
