"""Offline: makes the bundles that the service loads. May import torch, transformers and optimum; the service never imports it."""
