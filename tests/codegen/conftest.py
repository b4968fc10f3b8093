"""The makers of random kernels are the loop IR's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "ir"))
