"""The page on which people look at explanations: served live, or saved as one file that needs no network."""
