"""What compiling a graph assumed, which Dynamo has to check at each call."""

from __future__ import annotations

import functools

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, ImportSource
from torch._guards import Source, TracingContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ShapeGuard, free_symbols

from straightline.torch_private import python_native

_SWITCHED_OFF = ("_native", "registry", "_filter_state", "_dsl_names")


def assume_switch(*, on: bool) -> None:
    """What is being compiled is called only while the switch of our kernels is so."""
    if TracingContext.try_get() is None:
        return
    source: Source = ImportSource("torch")
    for name in _SWITCHED_OFF:
        source = AttrSource(source, name)
    test = GuardBuilder.SET_NOT_CONTAINS if on else GuardBuilder.SET_CONTAINS
    install_guard(source.make_guard(functools.partial(test, key=python_native.NAME)))


class Assumed:
    """What tracing assumed of sizes: the shape guards that come after this object was made."""

    def __init__(self) -> None:
        context = TracingContext.try_get()
        mode = context.fake_mode if context is not None else None
        self._shapes: ShapeEnv | None = mode.shape_env if mode is not None else None
        self._before = len(self._guards())

    def _guards(self) -> list[ShapeGuard]:
        return self._shapes.guards if self._shapes is not None else []

    def cannot_be_checked(self) -> bool:
        """Whether some guard speaks of a tensor that is not passed, only a view of it."""
        shapes = self._shapes
        if shapes is None or not shapes.tracked_fakes:
            return False
        passed = {s for tracked in shapes.tracked_fakes for s in free_symbols(tracked.fake)}
        for guard in self._guards()[self._before :]:
            told = shapes._maybe_evaluate_static(
                guard.expr, axioms=(), size_oblivious=guard.size_oblivious
            )
            unknown = shapes.simplify(guard.expr).free_symbols - passed
            if told is None and unknown & set(shapes.backed_var_to_val):
                return True
        return False

    def forget(self) -> None:
        """Nobody relies on what was assumed."""
        del self._guards()[self._before :]
