"""``python -m sentiment.corpus`` is ``sentiment-batch``."""

import sys

from sentiment.corpus.command import main

if __name__ == "__main__":
    sys.exit(main())
