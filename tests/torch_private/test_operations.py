"""Whose memory a graph's values are."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from straightline.torch_private import operations

aten = torch.ops.aten


@pytest.fixture
def graph() -> fx.Graph:
    return fx.Graph()


def test_views_items_of_views_and_writes_in_place_share_memory(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    halves = graph.call_function(aten.split.Tensor, (x, 1))
    half = graph.call_function(operator.getitem, (halves, 0))
    turned = graph.call_function(aten.t.default, (half,))
    added = graph.call_function(aten.add_.Tensor, (turned, 1))
    for node in (x, halves, half, turned, added):
        assert operations.memory_of(node) is x


def test_results_are_where_they_were_asked_for(graph: fx.Graph) -> None:
    x, out = graph.placeholder("x"), graph.placeholder("out")
    total = graph.call_function(aten.add.out, (x, x), {"out": out})
    assert operations.memory_of(total) is out


def test_computed_values_have_their_own(graph: fx.Graph) -> None:
    x = graph.placeholder("x")
    copy = graph.call_function(aten.clone.default, (x,))
    both = graph.call_function(aten.var_mean.correction, (x,))
    items = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
    view = graph.call_function(aten.t.default, (items[0],))
    assert operations.memory_of(copy) is copy
    assert [operations.memory_of(item) for item in items] == items
    assert operations.memory_of(view) is items[0]
