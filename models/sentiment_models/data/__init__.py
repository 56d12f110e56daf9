"""Labelled texts and documents: reading them, parting them, varying them."""
