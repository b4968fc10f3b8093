"""Between the contract's numbering and the graph's flat one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from straightline.capture.contract import Contract, From, Subclass, ViewStep, places
from straightline.runtime.steps import aliases, subclasses
from straightline.runtime.writer import Writer


def graph_inputs(writer: Writer, contract: Contract, names: Sequence[str]) -> list[str]:
    """Flat expressions for the graph's placeholders: tokens, then the inputs taken apart."""
    flat = ["None"] * contract.forward_tokens
    for item, name in zip(contract.inputs, names, strict=True):
        source = (
            contract.arguments[item.argument].source if item.argument is not None else item.name
        )
        if item.inference:
            data = writer.name(f"{name}_data")
            writer.line(f"{data} = {name}.data")
            flat.append(data)
        else:
            flat += subclasses.unwrap(writer, item, name, source)
    return flat


def needed_values(contract: Contract) -> frozenset[int]:
    """Numbers of the values (mutated inputs, outputs, bases) that are not had from elsewhere."""
    mutated = len(contract.mutations)
    needed = set(range(mutated))
    for position, output in enumerate(contract.outputs):
        if aliases.needs_value(output):
            needed.add(mutated + position)
        if output.origin is From.VIEW_OF_BASE:
            assert output.base is not None
            needed.add(mutated + len(contract.outputs) + output.base)
    if contract.kind == "training":
        needed.update(range(mutated + len(contract.outputs), contract.returns))
    return frozenset(needed)


def returned(contract: Contract) -> tuple[int, ...]:
    """Numbers of the values that pass through the autograd function, in order."""
    needed = needed_values(contract)
    return tuple(n for n in range(contract.returns) if n in needed)


def flat_positions(contract: Contract, needed: Collection[int]) -> frozenset[int]:
    """Places among the graph's outputs of needed values and of all that follows the returned."""
    flat: set[int] = set(range(contract.forward_tokens))
    position = contract.forward_tokens
    for number, layout in enumerate(contract.return_layouts()):
        count = places(layout)
        if number in needed:
            flat.update(range(position, position + count))
        position += count
    rest = int(contract.rng.functional)
    saved = contract.saved
    rest += saved.tensors + saved.opaque + saved.numbers
    return frozenset(flat | set(range(position, position + rest)))


def wrapped(
    writer: Writer, contract: Contract, flat: Sequence[str], needed: Collection[int]
) -> list[str]:
    """One expression per value, subclasses put together; "None" for those not needed."""
    values = []
    parts = iter(flat)
    for number, layout in enumerate(contract.return_layouts()):
        if number in needed or not isinstance(layout, Subclass):
            values.append(subclasses.wrap_named(writer, layout, parts, "wrapped"))
        else:
            for _ in range(layout.places):
                next(parts)
            values.append("None")
    return values


def flat_returns(contract: Contract) -> int:
    """How many of the graph's outputs make up the values."""
    return sum(places(layout) for layout in contract.return_layouts())


def _read_by(replay: Sequence[ViewStep]) -> Iterator[str]:
    """Names in the sizes that views are made with."""
    pending: list[object] = [a for s in replay for a in (*s.arguments, *dict(s.keywords).values())]
    while pending:
        match pending.pop():
            case str() as expression:
                yield from re.findall(r"[^\W\d]\w*", expression)
            case tuple() as several:
                pending += several


def kept_inputs(contract: Contract) -> frozenset[str]:
    """Names of inputs and arguments that are needed after the graph ran."""
    kept = {contract.inputs[m.input].name for m in contract.mutations}
    for output in contract.outputs:
        if output.origin in (From.ARGUMENT, From.VIEW_OF_INPUT, From.IN_INPUT):
            assert output.base is not None
            of = contract.arguments if output.origin is From.ARGUMENT else contract.inputs
            kept.add(of[output.base].name)
    kept |= {contract.arguments[a].name for a in contract.restrided}
    kept |= {contract.arguments[a].name for a in contract.version_stays}
    kept |= {contract.arguments[m].name for b in contract.bases for m in b.mutated}
    kept |= {name for o in contract.outputs for name in _read_by(o.replay or ())}
    return frozenset(kept)
