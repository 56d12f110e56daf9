"""Explains the answers of one classifier, in the calling thread. The methods themselves are pure: ``sentiment.explain.methods``."""

from sentiment.explain.engine.explainer import Explainer

__all__ = ["Explainer"]
