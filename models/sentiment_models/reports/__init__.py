"""Measurements for people: terminal tables, pages with plots, and the model card."""
