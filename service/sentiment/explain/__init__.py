"""Explanations of answers: attention, attributions, evidence, counterfactuals, heads. ``methods`` is pure; ``engine`` runs the graphs."""
