"""Labelled texts and documents: read, split and vary them."""
