"""How far explanations can be trusted: attention and attribution measured against erasure, chance, training and people."""
