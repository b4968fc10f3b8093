"""Properties of generated kernels."""

from __future__ import annotations

import numpy as np
import pytest
from generate import FAILED, random_kernel

from straightline.ir.interpret import interpret
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
