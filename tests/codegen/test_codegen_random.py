"""Random kernels: machine code leaves the same bits as the interpreter."""

import pytest
from generate import random_kernel, same
from running import IDS, TARGETS, run

from straightline.ir.interpret import interpret

SEEDS = range(120)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("first", SEEDS[::20])
def test_interpreter_and_machine_code_agree(first, target):
    for seed in range(first, first + 20):
        kernel, arrays, sizes = random_kernel(seed)
        expected = {name: array.copy() for name, array in arrays.items()}
        found = {name: array.copy() for name, array in arrays.items()}
        status = interpret(kernel, expected, sizes)
        assert run(kernel, found, sizes, target) == status, seed
        for buffer in kernel.buffers if status == 0 else ():
            left, right = expected[buffer.name], found[buffer.name]
            assert same(buffer.dtype, left, right), (seed, buffer)
