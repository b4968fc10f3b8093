"""Random functions of tensors agree with eager; `scripts/fuzz_graphs.py` runs thousands.

By hand, for one seed: `python scripts/fuzz_graphs.py --show 17`.
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from graph_judge import judge
from graphs import generate, namespace, shrink

FIRST_SEED, BLOCK, BLOCKS = 50_000, 10, 6


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_graphs_agree_with_eager(block: int) -> None:
    seeds = range(FIRST_SEED + block * BLOCK, FIRST_SEED + (block + 1) * BLOCK)
    judged = 0
    for seed in seeds:
        source = generate(seed).source()
        verdict = judge(source)
        assert not verdict.found, f"seed {seed}: {verdict.detail}\n\n{source}"
        judged += verdict.status == "ok"
    assert judged > BLOCK // 2, "most programs must be judged, or nothing was tested"


def test_a_seed_is_one_program() -> None:
    assert generate(123).source() == generate(123).source()
    assert len({generate(seed).source() for seed in range(10)}) == 10


def wrong_sine(graph, inputs):
    """A backend whose sine is off."""
    for node in graph.graph.find_nodes(op="call_method", target="sin"):
        node.target = "cos"
    graph.recompile()
    return graph.forward


def test_a_wrong_operation_is_found_and_made_small() -> None:
    program = next(
        made
        for made in map(generate, range(1000))
        if ".sin()" in made.source() and judge(made.source(), wrong_sine).found
    )
    small = shrink(program, lambda made: judge(made.source(), wrong_sine).found)
    assert len(small.body) <= 2
    assert any(".sin()" in text for _, text in small.body)


def test_text_runs_by_itself() -> None:
    names = namespace(generate(5).source())
    results = names["program"](*names["inputs"](*names["SIZES"][0]))
    assert all(isinstance(result, torch.Tensor) for result in results)
