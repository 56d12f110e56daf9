"""Reports of measurements: terminal tables, HTML pages with plots, and the model card."""
