"""torch's global switches, as generated functions use them: the builtins themselves."""

from __future__ import annotations

import torch
from torch._C import (
    _DisableAutocast,
    _get_obj_in_tls,
    _is_any_autocast_enabled,
    _is_key_in_tls,
    _is_view_replay_enabled,
    _set_grad_enabled,
    _set_view_replay_enabled,
)
from torch._C._autograd import (
    _get_current_graph_task_keep_graph,
    _saved_tensors_hooks_disable,
    _saved_tensors_hooks_enable,
    _saved_tensors_hooks_get_disabled_error_message,
    _unsafe_set_version_counter,
)
from torch._C._functorch import peek_interpreter_stack
from torch._C._profiler import _RecordFunctionFast

DisableAutocast = _DisableAutocast
set_grad_enabled = _set_grad_enabled
is_grad_enabled = torch.is_grad_enabled
is_inference_mode_enabled = torch.is_inference_mode_enabled
is_view_replay_enabled = _is_view_replay_enabled
set_view_replay_enabled = _set_view_replay_enabled
disable_saved_hooks = _saved_tensors_hooks_disable
enable_saved_hooks = _saved_tensors_hooks_enable
saved_hooks_disabled_message = _saved_tensors_hooks_get_disabled_error_message
set_version = _unsafe_set_version_counter
functorch_stack = peek_interpreter_stack
graph_is_kept = _get_current_graph_task_keep_graph
is_autocast_enabled = _is_any_autocast_enabled
are_deterministic = torch.are_deterministic_algorithms_enabled
profiler = torch.autograd.profiler
has_stashed = _is_key_in_tls
get_stashed = _get_obj_in_tls

HOOKS_INLINED = (
    "saved-tensor hooks were traced into this program's forward and backward and are switched off "
    "while it runs; a hook was pushed or popped inside, which needs a new compilation"
)


def record_prologue() -> None:
    """Show the range of the runtime's prologue in a profile."""
    with _RecordFunctionFast("AOTDispatcher Runtime Wrapper Prologue"):
        pass
