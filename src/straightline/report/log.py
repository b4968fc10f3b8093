"""The logger, which `TORCH_LOGS="+straightline"` turns on.

torch takes any importable module's name there: it imports the package in the middle of its own
import, gives the logger of that name a handler, and sets the level (`+` is DEBUG, none INFO).
Nothing has to be registered. Without TORCH_LOGS it is a plain `logging` logger.
"""

import logging

logger = logging.getLogger("straightline")
