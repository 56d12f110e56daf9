"""``python -m sentiment`` is ``sentiment``."""

import sys

from sentiment.cli.start import sentiment

sys.exit(sentiment())
