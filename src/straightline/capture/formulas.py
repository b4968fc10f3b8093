"""Custom autograd functions whose formulas can be differentiated.

Dynamo records a custom backward as it ran, under no-grad, which hides it from differentiation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from straightline.capture import origins
from straightline.capture.numbering import attribute
from straightline.errors import DoubleBackwardError
from straightline.torch_private.second_order import AUTOGRAD_FUNCTION, SET_GRAD_ENABLED

# Operations that are linear in any one argument, the others fixed; in their first argument alone;
# and in all arguments together. Names as of functions, operators and methods.
_IN_EACH = frozenset({
    "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "dot", "einsum", "linear", "matmul", "mm", "mul", "multiply", "mv", "outer",
})  # fmt: skip
_IN_FIRST = frozenset({
    "alias", "broadcast_to", "chunk", "clone", "contiguous", "cumsum", "detach", "diagonal",
    "div", "expand", "expand_as", "flatten", "flip", "float", "double", "half", "bfloat16",
    "gather", "getitem", "index_select", "mean", "movedim", "narrow", "neg", "negative",
    "permute", "positive", "repeat", "reshape", "reshape_as", "roll", "select", "split",
    "squeeze", "sum", "sum_to_size", "swapaxes", "t", "to", "transpose", "tril", "triu",
    "true_divide", "truediv", "type_as", "unbind", "unflatten", "unsqueeze", "view", "view_as",
})  # fmt: skip
_QUOTIENTS = frozenset({"div", "true_divide"})
_TOGETHER = frozenset({"add", "cat", "concat", "iadd", "isub", "stack", "sub", "subtract"})
# Keywords that leave all of these as linear as they are, given anything but a gradient; and those
# that the operations of one table know besides.
_HARMLESS = frozenset({
    "alpha", "axis", "chunks", "copy", "destination", "device", "diagonal", "dilation", "dim",
    "dim0", "dim1", "dim2", "dims", "dtype", "end_dim", "groups", "index", "keepdim", "length",
    "memory_format", "non_blocking", "offset", "output_padding", "padding", "repeats", "shape",
    "shifts", "size", "source", "split_size", "start", "start_dim", "stride",
})  # fmt: skip
_FACTORS = frozenset({"mat2", "other", "tensor", "vec", "vec2", "weight"})
_SHAPE_ONLY = frozenset({"empty_like", "ones_like", "size", "stride", "zeros_like", "new_zeros"})


def differentiable(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` with the formulas of its custom functions made differentiable.

    Raises DoubleBackwardError for a formula that is marked as differentiable once, that switches
    the grad mode itself, or that is not seen to be linear in the gradient it is given.
    """
    graph = fx.Graph()
    copied = graph.graph_copy(gm.graph, {})
    bodies: dict[str, fx.GraphModule] = {}
    for node in gm.graph.nodes:
        for position, argument in enumerate(node.args):
            if not (isinstance(argument, fx.Node) and argument.op == "get_attr"):
                continue
            body = attribute(argument)
            if not isinstance(body, fx.GraphModule):
                continue
            changed = differentiable(body)
            if node.target is AUTOGRAD_FUNCTION and position == 1:
                changed = _with_grad(changed, node)
            if changed is not body:
                bodies[str(argument.target)] = changed
    if not bodies:
        return gm
    if not graph.find_nodes(op="output"):
        graph.output(copied)
    result = fx.GraphModule(gm, graph)
    for name, body in bodies.items():
        result.set_submodule(name, body)
    return result


def _with_grad(formula: fx.GraphModule, call: fx.Node) -> fx.GraphModule:
    """A custom backward without the no-grad region that Dynamo put around the whole of it."""
    if any(origins.inside(node, torch.autograd.function.__file__) for node in formula.graph.nodes):
        raise _refused("that is marked once_differentiable", call)
    switches = formula.graph.find_nodes(op="call_function", target=SET_GRAD_ENABLED)
    if switches and (len(switches) != 2 or switches[0].args[0] is not False):
        raise _refused("that switches the grad mode itself", call)
    nonlinear = _nonlinear(formula, _gradients(call))
    if nonlinear is not None:
        raise _refused(
            f"that is not linear in the gradient it is given (in {nonlinear})", nonlinear
        )
    if not switches:
        return formula
    graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(formula.graph, mapping))
    for switch in switches:
        graph.erase_node(mapping[switch])
    return fx.GraphModule(formula, graph)


def _gradients(call: fx.Node) -> int:
    """How many gradients a formula is given: one for each result of its function."""
    body = attribute(call.args[0])  # type: ignore[arg-type]
    results: Any = body.graph.output_node().args[0]
    return len(results[0])


def _nonlinear(formula: fx.GraphModule, gradients: int) -> fx.Node | None:
    """The first operation that makes more of a gradient than a linear function.

    Autograd adds all gradients that reach a value before it calls the formula once. Differentiated
    twice, a program calls it with a part of the sum at a time, which is the same for a linear
    formula only.
    """
    placeholders = formula.graph.find_nodes(op="placeholder")
    tainted: set[fx.Node] = set(placeholders[:gradients])
    nodes: list[fx.Node] = list(formula.graph.nodes)
    for node in nodes:
        reached = tainted.intersection(node.all_input_nodes)
        if node.op == "output" or not reached:
            continue
        name = _name(node)
        if name in _SHAPE_ONLY or node.target is getattr:
            continue
        if not _linear(node, name, tainted):
            return node
        tainted.add(node)
    return None


def _linear(node: fx.Node, name: str, tainted: set[fx.Node]) -> bool:
    """Whether the result is a linear function of what is tainted among the arguments."""
    leading = [isinstance(a, fx.Node) and a in tainted for a in node.args]
    if any(_touches(a, tainted) for a in node.kwargs.values()) or _rounds(node):
        return False
    keywords = node.kwargs.keys() - _HARMLESS
    if name.endswith("_") and not (leading and leading[0]):
        return False  # what it writes to goes by another name
    match name.removesuffix("_"):
        case each if each in _IN_EACH:
            bias = node.args[2] if len(node.args) > 2 and each != "einsum" else None
            return sum(leading) == 1 and bias is None and keywords <= _FACTORS
        case first if first in _IN_FIRST:
            divides = {"other"} if first in _QUOTIENTS else set()
            rest = any(_touches(a, tainted) for a in node.args[1:])
            return bool(leading) and leading[0] and not rest and keywords <= divides
        case together if together in _TOGETHER:
            return not keywords and all(_vanishes(a, tainted) for a in node.args)
        case "where":
            whole = len(node.args) == 3 and not keywords
            return whole and not leading[0] and all(_vanishes(a, tainted) for a in node.args[1:])
        case "masked_fill":
            whole = len(node.args) == 3 and not keywords and not leading[1]
            return whole and leading[0] and _vanishes(node.args[2:], tainted)
        case _:
            return False


def _touches(argument: Any, tainted: set[fx.Node]) -> bool:
    """Something tainted is in an argument."""
    found = False

    def visit(node: fx.Node) -> fx.Node:
        nonlocal found
        found = found or node in tainted
        return node

    map_arg(argument, visit)
    return found


def _rounds(node: fx.Node) -> bool:
    """The operation is asked for whole numbers."""
    return any(
        isinstance(a, torch.dtype) and not (a.is_floating_point or a.is_complex)
        for a in (*node.args, *node.kwargs.values())
    )


def _vanishes(argument: Any, tainted: set[fx.Node]) -> bool:
    """The argument is zero where everything tainted is."""
    if isinstance(argument, fx.Node):
        return argument in tainted
    if isinstance(argument, (tuple, list)):
        return all(_vanishes(a, tainted) for a in argument)
    return type(argument) in (int, float) and argument == 0


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _refused(what: str, at: fx.Node) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"double backward through a custom backward {what} is not possible",
        where=origins.where(at),
        todo="keep the custom function out of the compiled function",
    )
