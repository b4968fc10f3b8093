"""However computes are inlined and fused, they give what they give one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from random_computes import inputs_of, random_program, run_each, run_steps

from straightline.ir.verify import verify
from straightline.schedule.plan import plan
from straightline.schedule.program import Launch, Plan

BLOCKS, BLOCK = 8, 40


def kernels(found: Plan):
    return tuple(s.kernel if isinstance(s, Launch) else s for s in found.steps)


def check(seed: int, **options) -> int:
    program, inputs = random_program(seed)
    given = inputs_of(inputs, seed)
    status, expected = run_each(program, given)
    found = plan(program, **options)
    for kernel in found.kernels:
        verify(kernel)
    got_status, got = run_steps(kernels(found), found.made, given)
    assert (got_status != 0) == (status != 0), f"seed {seed}: status"
    if not status:
        for name in program.needed:
            np.testing.assert_allclose(
                got[name], expected[name], rtol=2e-5, atol=1e-5, err_msg=f"seed {seed}: {name}"
            )
    return len(found.kernels)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_schedule_keeps_what_is_computed(block):
    fused = sum(check(block * BLOCK + n) for n in range(BLOCK))
    apart = sum(check(block * BLOCK + n, fusion=False) for n in range(BLOCK))
    assert fused < apart


@pytest.mark.parametrize("fuel", [0, 1, 2, 4])
def test_fuel_limits_the_decisions(fuel):
    for seed in range(30):
        check(seed, fuel=fuel)
        assert len(plan(random_program(seed)[0], fuel=fuel).decisions) <= fuel
