"""straightline: a PyTorch compiler that decides everything once.

Importing this package imports neither torch nor any module of its own: the public names are
resolved when they are first used. It has to stay so. torch imports every backend's package when
`TORCH_LOGS` names it, in the middle of its own import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from straightline import backends as backends
    from straightline.api import compile as compile
    from straightline.api import explain as explain
    from straightline.api import kernels_of as kernels_of
    from straightline.api import source as source
    from straightline.config import Config as Config
    from straightline.config import options as options
    from straightline.report.doctor import doctor as doctor

__version__ = "0.1.0"

_HOMES = {
    "Config": "straightline.config",
    "compile": "straightline.api",
    "doctor": "straightline.report.doctor",
    "explain": "straightline.api",
    "kernels_of": "straightline.api",
    "options": "straightline.config",
    "source": "straightline.api",
}

_MODULES = ("backends",)

__all__ = [
    "Config",
    "__version__",
    "backends",
    "compile",
    "doctor",
    "explain",
    "kernels_of",
    "options",
    "source",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"straightline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
