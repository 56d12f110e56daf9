"""Explains answers of one classifier, in the calling thread. What decides is pure and lies in ``sentiment.explain``."""

from sentiment.explain.engine.explainer import Explainer

__all__ = ["Explainer"]
