"""`python -m straightline` is the command `straightline`."""

import sys

from straightline.cli import main

sys.exit(main())
