"""How explanations are computed. Pure."""
