"""The study's commands, as those of ``sentiment_models.commands``."""
