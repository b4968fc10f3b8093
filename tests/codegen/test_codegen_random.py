"""Random kernels: machine code leaves the same bits as the interpreter."""

import pytest
from generate import random_kernel, same
from running import IDS, TARGETS, run

from straightline.codegen.math.expand import expand_kernel
from straightline.ir.interpret import interpret

SEEDS = range(120)


def agree(kernel, arrays, sizes, target):
    expected = {name: array.copy() for name, array in arrays.items()}
    found = {name: array.copy() for name, array in arrays.items()}
    status = interpret(kernel, expected, sizes)
    assert run(kernel, found, sizes, target) == status, kernel.name
    for buffer in kernel.buffers if status == 0 else ():
        left, right = expected[buffer.name], found[buffer.name]
        assert same(buffer.dtype, left, right), (kernel.name, buffer)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("first", SEEDS[::20])
def test_interpreter_and_machine_code_agree(first, target):
    for seed in range(first, first + 20):
        agree(*random_kernel(seed), target)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_functions_have_the_bits_of_their_expansions(first, target):
    for seed in range(first, first + 20):
        kernel, arrays, sizes = random_kernel(seed, functions=True)
        try:
            expanded = expand_kernel(kernel)
        except ValueError:
            continue  # there is no expansion in this type
        agree(expanded, arrays, sizes, target)
