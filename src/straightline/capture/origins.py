"""Where a graph's node comes from in the user's program: file, line, text, and a name for it."""

from __future__ import annotations

import ast
import functools
import itertools
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx

_FRAME = re.compile(
    r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n(?P<text>[^\n]*)'
)
_TORCH = str(Path(torch.__file__).parent)
# Parts of a source path that say how a module holds a thing and not which thing it is.
_HOLDERS = frozenset(
    {"_parameters", "_buffers", "_modules", "L", "G", "self", "parameters", "modules", "buffers"}
)


@dataclass(frozen=True)
class Origin:
    """A line of the user's program."""

    file: str
    line: int
    text: str

    @property
    def short(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def origin(node: fx.Node) -> Origin | None:
    """The innermost line outside torch that led to `node`, else torch's own innermost line."""
    return parse(node.meta.get("stack_trace"))


SEVERAL = "straightline_origins"
"""In the meta of a node that does the work of several: the origin of each, where it has one."""


def all_of(node: fx.Node) -> tuple[Origin, ...]:
    """The lines that led to a node, or to those that it does the work of; in order of files."""
    found = node.meta.get(SEVERAL) or (origin(node),)
    known = {(o.file, o.line): o for o in found if o is not None}
    return tuple(known[key] for key in sorted(known))


def short(lines: Sequence[Origin]) -> str:
    """Lines in few words: `net.py:14-16, 20`."""
    parts = []
    for file, of_file in itertools.groupby(lines, lambda each: each.file):
        numbers = [each.line for each in of_file]
        starts = [at for at, n in enumerate(numbers) if at == 0 or n != numbers[at - 1] + 1]
        runs = [numbers[a:b] for a, b in itertools.pairwise([*starts, len(numbers)])]
        ranges = (str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        parts.append(f"{Path(file).name}:{', '.join(ranges)}")
    return "; ".join(parts)


def module(node: fx.Node) -> str | None:
    """The module of the user's that a node is in, `self.fc1`, where Dynamo says."""
    stack = node.meta.get("nn_module_stack")
    return source_text(str(next(reversed(stack.values()))[0])) if stack else None


def first(gm: fx.GraphModule) -> Origin | None:
    """The first line of the user's program that a graph has something of."""
    found = (origin(node) for node in gm.graph.nodes if node.op.startswith("call"))
    return next((o for o in found if o is not None), None)


def where(node: fx.Node) -> str | None:
    """`file:line` in the user's program of a node, or of the nearest that it feeds."""
    seen: set[fx.Node] = set()
    queue = [node]
    while queue:
        at = queue.pop(0)
        found = origin(at)
        if found is not None:
            return f"{found.file}:{found.line}"
        seen.add(at)
        queue.extend(user for user in at.users if user not in seen)
    return None


def inside(node: fx.Node, file: str) -> bool:
    """Whether code of `file` led to `node`."""
    trace = node.meta.get("stack_trace") or ""
    return any(frame["file"] == file for frame in _FRAME.finditer(trace))


@functools.lru_cache(maxsize=4096)
def parse(stack_trace: str | None) -> Origin | None:
    """The innermost line outside torch of a stack trace as torch records it."""
    if not stack_trace:
        return None
    frames = list(_FRAME.finditer(stack_trace))
    if not frames:
        return None
    outside = [f for f in frames if not f["file"].startswith(_TORCH)]
    frame = (outside or frames)[-1]
    return Origin(frame["file"], int(frame["line"]), frame["text"].strip())


@functools.lru_cache(maxsize=4096)
def assigned_name(text: str) -> str | None:
    """The name that a line of the user's assigns its result to."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    if any(isinstance(part, ast.Lambda) for part in ast.walk(statement)):
        return None  # what it computes is not what the line assigns
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return name
        case _:
            return None


def identifier(text: str) -> str:
    """`text` made into a name that can stand in source."""
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    if name[0].isdigit():
        name = f"v{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def input_name(source: str) -> str:
    """A readable name for what the user's program reaches as `source`.

    `L['self']._modules['fc1']._parameters['weight']` becomes `fc1_weight`, `L['x']` becomes `x`.
    """
    parts = re.findall(r"[A-Za-z_]\w*|\d+", source)
    kept = [p for p in parts if p not in _HOLDERS] or parts[-1:] or ["value"]
    return identifier("_".join(kept))


def source_text(source: str) -> str:
    """`source` as the user would write it: `self.fc1.weight`."""
    text = re.sub(r"^[LG]\['(\w+)'\]", r"\1", source)
    return re.sub(r"\.(?:_parameters|_buffers|_modules)\['([^']+)'\]", r".\1", text)
