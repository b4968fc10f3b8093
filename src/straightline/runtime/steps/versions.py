"""Versions of arguments move when eager's do, whichever way their new value reaches them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from straightline.capture.contract import Contract
from straightline.runtime.writer import Writer
from straightline.torch_private import switches


def emit_before(writer: Writer, contract: Contract) -> Mapping[int, str]:
    """Move what nothing else will move, ahead of what is saved; read what must stay.

    Returns the names that the versions of `contract.version_stays` are read into.
    """
    for argument in contract.version_moves:
        bump = writer.bind(torch.autograd.graph.increment_version, "increment_version")
        with writer.duty("mutation_epilogue"):
            writer.line(f"{bump}({contract.arguments[argument].name})")
    names = {}
    for argument in contract.version_stays:
        name = contract.arguments[argument].name
        names[argument] = writer.name(f"{name}_version")
        with writer.duty("mutation_epilogue"):
            writer.line(f"{names[argument]} = {name}._version")
    return names


def emit_after(writer: Writer, contract: Contract, before: Mapping[int, str]) -> None:
    """Put back the versions that were read."""
    for argument in contract.version_stays:
        put_back = writer.bind(switches.set_version, "set_version")
        name = contract.arguments[argument].name
        with writer.duty("mutation_epilogue"):
            writer.line(f"{put_back}(({name},), ({before[argument]},))")
