"""``python -m sentiment`` is ``sentiment``."""

import sys

from sentiment.cli.main import main

sys.exit(main())
