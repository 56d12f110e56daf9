"""``python -m sentiment`` is ``sentiment``."""

import sys

from sentiment.cli import main

sys.exit(main())
