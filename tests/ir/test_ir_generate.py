"""Properties of generated kernels."""

from __future__ import annotations

import numpy as np
import pytest
from generate import FAILED, random_kernel, same

from straightline.ir.interpret import interpret
from straightline.ir.rewrite import simplify_kernel
from straightline.ir.verify import verify

SEEDS = range(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_kernels_are_sound_and_run(seed):
    kernel, arrays, sizes = random_kernel(seed)
    verify(kernel)
    before = {name: array.copy() for name, array in arrays.items()}
    assert interpret(kernel, arrays, sizes) in (0, FAILED)
    for name, array in arrays.items():
        if name not in kernel.outputs:
            assert np.array_equal(array.view("uint8"), before[name].view("uint8"))


@pytest.mark.parametrize("seed", SEEDS)
def test_simplifying_changes_no_bit(seed):
    kernel, arrays, sizes = random_kernel(seed)
    others = {name: array.copy() for name, array in arrays.items()}
    simple = simplify_kernel(kernel)
    verify(simple)
    status = interpret(kernel, arrays, sizes)
    assert interpret(simple, others, sizes) == status
    assert simplify_kernel(simple) == simple
    if status == 0:
        for name, array in arrays.items():
            assert same(kernel, name, array, others[name]), name
