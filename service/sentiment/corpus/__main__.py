"""``python -m sentiment.corpus`` is ``sentiment-batch``."""

import sys

from sentiment.cli.batch import main

if __name__ == "__main__":
    sys.exit(main())
