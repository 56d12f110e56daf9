"""``python -m sentiment_tools.corpus`` is ``sentiment-batch``."""

import sys

from sentiment.cli.start import batch

if __name__ == "__main__":
    sys.exit(batch())
