"""Keeping Dynamo out of generated code, and finding it again from what Dynamo compiled."""

from __future__ import annotations

import types

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)


def never_trace(code: types.CodeType) -> None:
    """Neither frames of `code` nor the frames they call are looked at by Dynamo."""
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
