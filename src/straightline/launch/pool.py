"""The threads that large kernels run on: see pool.ll.

As many as `torch.get_num_threads()` says work on a job, the caller among them. Helpers are made
when they are first needed; an idle one looks for work a few microseconds long and then sleeps.
Several callers may come at once: one gets the helpers, the others work alone. A forked child starts
with none.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading

from straightline.launch.machine_code import Code, address_of, assemble, make_immortal, text_of

_LIBC = (
    "pthread_create",
    "pthread_detach",
    "pthread_sigmask",
    "clock_gettime",
    "sched_yield",
    "syscall",
)

_compiled: Code | None = None
_compiling = threading.Lock()


def pool() -> Code:
    """The pool's machine code, once per process; its variables are the pool."""
    global _compiled
    with _compiling:
        if _compiled is None:
            _compiled = _compile()
    return _compiled


def compile_pool(**outside: int) -> Code:
    """A pool; `outside` are addresses of functions to call in place of libc's."""
    libc = ctypes.CDLL(None)
    functions = {name: address_of(getattr(libc, name)) for name in _LIBC}
    return assemble(text_of("pool", platform.machine()), functions | outside)


def _compile() -> Code:
    code = compile_pool()
    # Helpers may be in it until the process ends.
    make_immortal(code)
    forget = ctypes.CFUNCTYPE(None)(code.address("forget"))
    os.register_at_fork(after_in_child=forget)
    return code
