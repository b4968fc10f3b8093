"""Checks of the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from straightline.torch_private.custom_ops import alias_check_mode


def checked(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` while torch watches that custom operations do not alias, as they promise."""
    with alias_check_mode():
        return function(*args)
