"""PyTorch's own operator database through the backend, forward and backward, against eager.

    python scripts/opinfo.py --json opinfo.json                  every operator, two samples each
    python scripts/opinfo.py --samples 20 --shard 0/4 --json 0.json
    python scripts/opinfo.py --ops softmax,nn.functional.linear
    python scripts/opinfo.py --variant inplace                    what writes to its first argument
    python scripts/opinfo.py --order 2 --dtype float64            gradients of gradients

Every sample that eager can run is compiled by the backend and by torch's aot_eager, in one process.
Outputs, gradients, the arguments after the call, and which outputs are arguments or share their
memory are compared. A process that dies or hangs costs one operator, and shows as a crash. Results
are kept as lines beside the JSON file (`.jsonl`): with `--resume` a run that was stopped goes on
from there. Exit status 1 when the backend fails a sample that aot_eager passes, falls back for one
that aot_eager compiles, or takes the process with it. aot_eager refuses to differentiate gradients,
so in the second order whatever is not as in eager counts.

`compiled` counts the samples of which the backend was given at least one graph; `stock_compiled`
is aot_eager's count. Of the others (`never_compiled`) Dynamo captures nothing. `share_in_kernels`
is, per operator, the share of samples all of whose operations ran in kernels; one of views alone
has none.

Needs expecttest, numpy and packaging beside torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from isolate import Worker, serve
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

STOCK = "aot_eager"
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex64": torch.complex64,
    "int64": torch.int64,
    "bool": torch.bool,
}


UNINITIALISED = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "resize_", "resize_as_"),
    }
)
"""Operators whose values are whatever the memory held: only what describes them is compared."""


SHARES = ("in_kernels", "partly_in_kernels", "as_aten")
"""Samples by where the operations of their graphs ran: all in kernels, some, or none."""


@dataclass(frozen=True)
class Case:
    """One sample of an operator. `roots` makes of its result what may be differentiated: of
    eigenvectors, say, only what does not depend on their phase.
    """

    operator: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    roots: Callable[[Any], Any]
    inplace: bool
    order: int


@dataclass(frozen=True)
class Outcome:
    """What one run of a sample gave. `aliases` has a word for each output that is an argument or
    shares its memory; `gradients` are those of the highest order, and of all below.
    """

    outputs: list[Any]
    arguments: list[Any]
    aliases: list[str]
    gradients: list[torch.Tensor | None]


# -- one sample ------------------------------------------------------------------------------------


def fresh(value: Any) -> Any:
    """The sample's arguments anew, with their strides, so that no run sees another's mutation."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        copy = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        if 0 in tensor.stride() and tensor.numel() > 1:
            copy = tensor.detach().clone()
        else:
            copy.copy_(tensor.detach())
        return copy.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copied, value)


def run(function: Callable[..., Any], case: Case) -> Outcome:
    """Forward and backward from random tangents; the generators start alike in every run."""
    args, kwargs = fresh(case.arguments)
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if wants_gradient(leaf)]
    if case.inplace:  # what requires grad may be written to only where it is no leaf
        args = (pytree.tree_map_only(torch.Tensor, torch.clone, args[0]), *args[1:])
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if is_tensor(leaf)]
    torch.manual_seed(0)
    result = function(*args, **kwargs)
    outputs = pytree.tree_leaves(result)
    aliases = [alias(output, given) for output in outputs]
    after = [tensor.detach().clone() for tensor in given]
    roots = [root for root in pytree.tree_leaves(case.roots(result)) if wants_gradient(root)]
    gradients = differentiate(roots, leaves, case.order) if roots and leaves else []
    return Outcome([detached(output) for output in outputs], after, aliases, gradients)


def differentiate(
    roots: list[torch.Tensor], leaves: list[torch.Tensor], order: int
) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    gradients: list[torch.Tensor | None] = []
    for remaining in reversed(range(order)):
        tangents = [
            torch.randn(root.shape, generator=generator, dtype=root.dtype) for root in roots
        ]
        found = torch.autograd.grad(
            roots, leaves, tangents, allow_unused=True, create_graph=remaining > 0
        )
        gradients += [detached(gradient) for gradient in found]
        roots = [gradient for gradient in found if wants_gradient(gradient)]
        if not roots:
            break
    return gradients


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def alias(output: Any, given: list[torch.Tensor]) -> str:
    """Which argument an output is, or shares memory with."""
    if not is_tensor(output):
        return ""
    for index, tensor in enumerate(given):
        if output is tensor:
            return f"argument {index}"
    for index, tensor in enumerate(given):
        if memory(output) and memory(output) == memory(tensor):
            return f"memory of argument {index}"
    return ""


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def difference(expected: Outcome, got: Outcome, values: bool) -> str | None:
    """The first difference; of values only when eager gives the same ones twice."""
    if expected.aliases != got.aliases:
        return f"outputs are {got.aliases}, in eager {expected.aliases}"
    for index, (want, have) in enumerate(zip(expected.arguments, got.arguments, strict=True)):
        found = unlike(want, have, values, strides=True)
        if found:
            return f"argument {index} after the call: {found}"
    if len(expected.outputs) != len(got.outputs):
        return f"{len(got.outputs)} outputs for {len(expected.outputs)}"
    for index, (want, have) in enumerate(zip(expected.outputs, got.outputs, strict=True)):
        found = unlike(want, have, values, strides=True)
        if found:
            return f"output {index}: {found}"
    if len(expected.gradients) != len(got.gradients):
        return f"{len(got.gradients)} gradients for {len(expected.gradients)}"
    for index, (want, have) in enumerate(zip(expected.gradients, got.gradients, strict=True)):
        if want is None or have is None:
            zero = next((grad for grad in (want, have) if grad is not None), None)
            found = None if zero is None or not zero.count_nonzero() else f"{want} became {have}"
        else:
            found = unlike(want, have, values, strides=False)
        if found:
            return f"gradient {index}: {found}"
    return None


def unlike(want: Any, have: Any, values: bool, strides: bool) -> str | None:
    if not isinstance(want, torch.Tensor):
        nan = want != want and have != have
        same = type(want) is type(have) and (not values or want == have or nan)
        return None if same else f"{want} became {have}"
    for attribute in ("requires_grad", "shape", "dtype", "layout"):
        if getattr(want, attribute) != getattr(have, attribute):
            return f"{attribute} differs"
    # A dimension of size one, or an empty tensor, has no stride that matters.
    strides = strides and want.layout == torch.strided and min(want.shape, default=0) > 1
    if strides and want.stride() != have.stride():
        return f"strides {have.stride()} for {want.stride()}"
    if not values:
        return None
    try:
        torch.testing.assert_close(have, want, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


def text_of(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    lines = [line for line in lines if "TORCHDYNAMO_VERBOSE" not in line]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"[:400]


# -- one operator ----------------------------------------------------------------------------------


def compiled(
    backend: str, operator: Callable[..., Any], dynamic: bool | None
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    made: Callable[..., Any] = torch.compile(call, backend=backend, dynamic=dynamic)
    return made


def try_backend(
    backend: str, case: Case, expected: Outcome, values: bool, dynamic: bool | None
) -> tuple[str | None, int]:
    """What went wrong, if anything, and how many graphs the backend was given."""
    torch._dynamo.reset()
    counters.clear()
    # What would break the graph for its size or its value is to reach the backend too.
    capture = torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    )
    try:
        with capture:
            got = run(compiled(backend, case.operator, dynamic), case)
    except Exception as error:  # noqa: BLE001 - any failure of a sample is its result
        return text_of(error), counters["stats"]["unique_graphs"]
    return difference(expected, got, values), counters["stats"]["unique_graphs"]


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """How many operations of the graphs compiled meanwhile are in kernels, and how many run as
    ATen; views and numbers are neither.
    """
    from straightline.kernels import compile as kernels
    from straightline.lower.graph import Computed, Extern

    found: Counter[str] = Counter()
    lower = kernels.lower

    def watching(*arguments: Any) -> Any:
        lowered = lower(*arguments)
        for value in lowered.values.values():
            found["kernel"] += isinstance(value, Computed)
            found["aten"] += isinstance(value, Extern)
        return lowered

    with mock.patch.object(kernels, "lower", watching):
        yield found


def eager_outcome(case: Case) -> tuple[Outcome, bool] | str:
    """Eager's result, and whether a second run repeats it; or why eager cannot run it."""
    try:
        first, second = run(case.operator, case), run(case.operator, case)
    except Exception as error:  # noqa: BLE001 - there is nothing to compare with
        return text_of(error)
    return first, difference(first, second, values=True) is None


def fallback_reasons() -> list[str]:
    """Why graphs fell back since the last call."""
    if "straightline" not in sys.modules:
        return []
    from straightline.report import fallbacks

    reasons = sorted(fallbacks.counts())
    fallbacks.clear()
    return reasons


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """All samples of one operator through both backends."""
    from torch.testing._internal import common_methods_invocations as database

    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    # Random operators come wrapped in a seed, which Dynamo cannot capture; `run` sets its own.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    info = next(info for info in database.op_db if full_name(info) == question["op"])
    dtype = DTYPES[question["dtype"]]
    result: dict[str, Any] = {"op": question["op"], "skipped": None, "samples": 0}
    result |= {"passed": 0, "stock_passed": 0, "compiled": 0, "stock_compiled": 0, "graphs": 0}
    result |= dict.fromkeys(SHARES, 0)
    result |= {"failures": [], "stock_failures": [], "eager_failures": [], "fallbacks": []}
    operator = info.inplace_variant if question["variant"] == "inplace" else info.op
    skipped = unfit(info, operator, dtype, question)
    if skipped:
        return result | {"skipped": skipped}
    backward = dtype in info.supported_backward_dtypes("cpu") and info.supports_autograd
    start = time.perf_counter()
    torch.manual_seed(0)
    for index, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=backward)):
        if index >= question["samples"]:
            break
        case = Case(
            operator,
            ((sample.input, *sample.args), dict(sample.kwargs)),
            sample.output_process_fn_grad,
            question["variant"] == "inplace",
            question["order"],
        )
        one_sample(case, index, question, result)
        if time.perf_counter() - start > question["budget"]:
            break
    return result | {"seconds": round(time.perf_counter() - start, 2)}


def unfit(info: Any, operator: Any, dtype: torch.dtype, question: dict[str, Any]) -> str | None:
    """Why an operator has nothing to say to the question."""
    if dtype not in info.supported_dtypes("cpu"):
        return f"no {question['dtype']} on the CPU"
    if operator is None:
        return f"no {question['variant']} variant"
    if question["order"] > 1 and not info.supports_gradgrad:
        return "no second derivative"
    return None


def one_sample(case: Case, index: int, question: dict[str, Any], result: dict[str, Any]) -> None:
    eager = eager_outcome(case)
    if isinstance(eager, str):
        result["eager_failures"].append({"sample": index, "failure": eager})
        return
    expected, repeats = eager
    repeats = repeats and question["op"] not in UNINITIALISED
    dynamic = question["dynamic"]
    result["samples"] += 1
    with watched() as ran:
        failure, graphs = try_backend(question["backend"], case, expected, repeats, dynamic)
    result["in_kernels"] += ran["kernel"] > 0 and ran["aten"] == 0
    result["partly_in_kernels"] += ran["kernel"] > 0 and ran["aten"] > 0
    result["as_aten"] += ran["kernel"] == 0 and ran["aten"] > 0
    result["passed"] += failure is None
    result["graphs"] += graphs
    result["compiled"] += graphs > 0
    reasons = fallback_reasons()
    if case.order == 1:
        stock, graphs = try_backend(STOCK, case, expected, repeats, dynamic)
        result["stock_passed"] += stock is None
        result["stock_compiled"] += graphs > 0
        if stock is not None:
            result["stock_failures"].append({"sample": index, "failure": stock})
    else:
        stock = None
    if reasons:
        result["fallbacks"].append(
            {"sample": index, "reasons": reasons, "stock_compiles": graphs > 0 and stock is None}
        )
    if failure is not None:
        result["failures"].append(
            {"sample": index, "failure": failure, "stock_passes": stock is None}
        )


# -- all operators ---------------------------------------------------------------------------------


def full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def names(options: argparse.Namespace) -> list[str]:
    from torch.testing._internal.common_methods_invocations import op_db

    known = sorted({full_name(info) for info in op_db})
    if options.ops:
        wanted = options.ops.split(",")
        missing = sorted(set(wanted) - set(known))
        if missing:
            raise SystemExit(f"no such operator: {', '.join(missing)}")
        known = wanted
    shard, count = map(int, options.shard.split("/"))
    return known[shard::count]


def earlier(lines: Path | None, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The results that an earlier run with the same settings left."""
    if lines is None or not lines.exists():
        return {}
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    return {
        record["result"]["op"]: record["result"]
        for record in records
        if record["settings"] == settings
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    settings = {
        key: getattr(options, key)
        for key in ("backend", "dtype", "variant", "order", "samples", "dynamic", "budget")
    }
    lines = options.json.with_suffix(".jsonl") if options.json else None
    if lines is not None and not options.resume:
        lines.unlink(missing_ok=True)
    done = earlier(lines, settings)
    command = [sys.executable, "-W", "ignore", __file__, "--worker"]
    worker = Worker(command, options.timeout, options.batch)
    results: list[dict[str, Any]] = []
    todo = names(options)
    for index, name in enumerate(todo):
        result = done.get(name)
        if result is None:
            reply = worker.ask({"op": name} | settings)
            result = {"op": name} | reply
            if lines is not None:
                with lines.open("a") as file:
                    file.write(json.dumps({"settings": settings, "result": result}) + "\n")
            for failure in result.get("failures", []):
                if failure["stock_passes"]:
                    print(f"{name} sample {failure['sample']}: {failure['failure']}", flush=True)
        if "crash" in result:
            print(f"{name}: {result['crash']}", flush=True)
        results.append(result)
        if index % 50 == 49:
            print(f"{index + 1} of {len(todo)}", flush=True)
    worker.close()
    return results


def summary(
    options: argparse.Namespace, results: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    ran = [result for result in results if "crash" not in result and not result["skipped"]]
    total: Counter[str] = Counter()
    for result in ran:
        counted = ("samples", "passed", "stock_passed", "compiled", "stock_compiled", "graphs")
        for key in (*counted, *SHARES):
            total[key] += result[key]
        total["eager_fails"] += len(result["eager_failures"])
    return {
        "backend": options.backend,
        "stock": STOCK,
        "torch": torch.__version__,
        "dtype": options.dtype,
        "variant": options.variant,
        "order": options.order,
        "seconds": round(seconds, 1),
        "operators": len(results),
        "operators_run": sum(result["samples"] > 0 for result in ran),
        **total,
        "fails_but_stock_passes": [
            {"op": result["op"], **failure}
            for result in ran
            for failure in result["failures"]
            if failure["stock_passes"]
        ],
        "passes_but_stock_fails": sum(
            failure["sample"] not in {own["sample"] for own in result["failures"]}
            for result in ran
            for failure in result["stock_failures"]
        ),
        "fallbacks": [
            {"op": result["op"], **fallback}
            for result in ran
            for fallback in result["fallbacks"]
            if fallback["stock_compiles"]
        ],
        "fallbacks_where_stock_cannot": sum(
            not fallback["stock_compiles"] for result in ran for fallback in result["fallbacks"]
        ),
        "crashes": {result["op"]: result["crash"] for result in results if "crash" in result},
        "share_in_kernels": {
            r["op"]: round(r["in_kernels"] / r["samples"], 3) for r in ran if r["samples"]
        },
        "never_compiled": sorted(r["op"] for r in ran if r["samples"] and not r["compiled"]),
        "skipped": {r["op"]: r["skipped"] for r in results if r.get("skipped")},
        "results": results,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="straightline")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--variant", choices=("function", "inplace"), default="function")
    parser.add_argument("--order", type=int, default=1, help="2: gradients of gradients too")
    parser.add_argument("--samples", type=int, default=2, help="samples per operator, at most")
    parser.add_argument("--dynamic", action="store_const", const=True, help="symbolic sizes")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator from the i-th")
    parser.add_argument("--ops", help="only these, comma-separated")
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--resume", action="store_true", help="keep what a stopped run found")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds of samples per operator"
    )
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds until it is a hang")
    parser.add_argument("--batch", type=int, default=60, help="operators that a process sees")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.worker:
        serve(answer)
        return 0
    start = time.perf_counter()
    report = summary(options, measure(options), time.perf_counter() - start)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for key, value in report.items():
        if key not in ("results", "skipped"):
            print(f"{key}: {value}")
    return 1 if report["fails_but_stock_passes"] or report["fallbacks"] or report["crashes"] else 0


if __name__ == "__main__":
    sys.exit(main())
