"""``python -m sharedspan.cli``."""

import sys

from sharedspan.cli import main

sys.exit(main())
