"""The console script ``sentiment-batch``, which is ``python -m sentiment_tools.corpus`` too."""

import sys

from sentiment.cli.start import run


def batch() -> int:
    """Run ``sentiment-batch``."""
    return run("sentiment_tools.commands.batch")


if __name__ == "__main__":
    sys.exit(batch())
