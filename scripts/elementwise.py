"""Runs one expression of exact operations over arrays, as machine code of its own.

It knows nothing of kernels: a scalar loop in LLVM's text, which LLVM vectorises. The numbers it
gives are those of the IR's definition, so that functions can be swept over all of float32.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from straightline.ir.dtypes import DType, Kind, b1, f32, f64, i32, i64, u32, u64
from straightline.ir.nodes import Const, Expr, Load, Op, walk

TYPES = {b1: "i1", f32: "float", f64: "double", i32: "i32", u32: "i32", i64: "i64", u64: "i64"}
NUMPY = {f32: np.float32, f64: np.float64}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_CALLS = {
    "abs": "fabs", "min": "minimum", "max": "maximum", "sqrt": "sqrt", "fma": "fma",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven",
    "copysign": "copysign",
}  # fmt: skip
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_COMPARISONS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_kept: list[Any] = []
_ready = False


def _constant(node: Const) -> str:
    if node.dtype.is_float:
        return f"0x{struct.unpack('Q', struct.pack('d', node.value))[0]:016X}"
    return str(node.value).lower() if node.dtype is b1 else str(int(node.value))


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0

    def line(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def call(self, name: str, dtype: DType, args: list[str], suffix: str | None = None) -> str:
        kind = TYPES[dtype]
        mangled = f"@llvm.{name}.{suffix or {'float': 'f32', 'double': 'f64'}.get(kind, kind)}"
        self.declared.add(f"declare {kind} {mangled}({', '.join([kind] * len(args))})")
        return self.line(f"call {kind} {mangled}({', '.join(f'{kind} {a}' for a in args)})")

    def op(self, node: Op, args: list[str]) -> str:
        of = node.args[0].dtype
        kind = TYPES[of]
        name = node.name
        match name:
            case "select":
                to = TYPES[node.dtype]
                return self.line(f"select i1 {args[0]}, {to} {args[1]}, {to} {args[2]}")
            case "cast":
                return self.cast(of, node.dtype, args[0])
            case "bitcast":
                if TYPES[node.dtype] == kind:
                    return args[0]
                return self.line(f"bitcast {kind} {args[0]} to {TYPES[node.dtype]}")
            case "neg":
                return self.line(
                    f"fneg {kind} {args[0]}" if of.is_float else f"sub {kind} 0, {args[0]}"
                )
            case "not":
                return self.line(f"xor {kind} {args[0]}, {'true' if of is b1 else -1}")
            case "shl" | "shr":
                how = "shl" if name == "shl" else "ashr" if of.is_signed else "lshr"
                return self.line(f"{how} {kind} {args[0]}, {args[1]}")
            case "ldexp":
                power = self.line(f"fptosi {kind} {args[1]} to i32")
                intrinsic = f"@llvm.ldexp.{'f32' if of is f32 else 'f64'}.i32"
                self.declared.add(f"declare {kind} {intrinsic}({kind}, i32)")
                return self.line(f"call {kind} {intrinsic}({kind} {args[0]}, i32 {power})")
            case "mulhi":
                wide, extend = f"i{2 * of.bits}", "sext" if of.is_signed else "zext"
                left, right = (self.line(f"{extend} {kind} {arg} to {wide}") for arg in args)
                product = self.line(f"mul {wide} {left}, {right}")
                upper = self.line(f"lshr {wide} {product}, {of.bits}")
                return self.line(f"trunc {wide} {upper} to {kind}")
            case _ if name in _COMPARISONS:
                if of.is_float:
                    how = f"fcmp {'une' if name == 'ne' else 'o' + name}"
                else:
                    sign = "" if name in ("eq", "ne") else "s" if of.is_signed else "u"
                    how = f"icmp {sign}{name}"
                return self.line(f"{how} {kind} {args[0]}, {args[1]}")
            case _ if of.is_float and name in _FLOAT:
                return self.line(f"{_FLOAT[name]} {kind} {args[0]}, {args[1]}")
            case _ if of.is_float:
                return self.call(_CALLS[name], of, args)
            case _:
                return self.line(f"{_INTEGER[name]} {kind} {args[0]}, {args[1]}")

    def cast(self, of: DType, to: DType, value: str) -> str:
        kind, target = TYPES[of], TYPES[to]
        if of.is_float and to.is_float:
            return self.line(
                f"{'fpext' if to.bits > of.bits else 'fptrunc'} {kind} {value} to {target}"
            )
        if of.is_float:
            least = -(2.0 ** (to.bits - 1))
            low, high = (
                f"0x{struct.unpack('Q', struct.pack('d', v))[0]:016X}" for v in (least, -least)
            )
            above = self.line(f"fcmp oge {kind} {value}, {low}")
            below = self.line(f"fcmp olt {kind} {value}, {high}")
            fits = self.line(f"and i1 {above}, {below}")
            safe = self.line(f"select i1 {fits}, {kind} {value}, {kind} {low}")
            return self.line(f"fptosi {kind} {safe} to {target}")
        if to.is_float:
            signed = of.kind is Kind.SIGNED
            return self.line(f"{'sitofp' if signed else 'uitofp'} {kind} {value} to {target}")
        if of.bits == to.bits:
            return value
        how = "trunc" if of.bits > to.bits else "sext" if of.is_signed else "zext"
        return self.line(f"{how} {kind} {value} to {target}")


def text(result: Expr, inputs: tuple[Load, ...]) -> str:
    """LLVM's text of `void f(inputs*, output, i64 count)`."""
    writer = _Writer()
    names: dict[Expr, str] = {}
    for node in walk(result):
        match node:
            case Const():
                names[node] = _constant(node)
            case Load():
                kind = TYPES[node.dtype]
                at = writer.line(f"getelementptr {kind}, ptr %p{inputs.index(node)}, i64 %i")
                names[node] = writer.line(f"load {kind}, ptr {at}")
            case Op(_, _, args):
                names[node] = writer.op(node, [names[a] for a in args])
            case _:
                raise TypeError(f"no elementwise expression: {node}")
    kind = TYPES[result.dtype]
    at = writer.line(f"getelementptr {kind}, ptr %out, i64 %i")
    pointers = ", ".join(f"ptr noalias %p{k}" for k in range(len(inputs)))
    body = "\n".join(writer.lines)
    declared = "\n".join(sorted(writer.declared))
    return f"""
define void @f({pointers}, ptr noalias %out, i64 %n) #0 {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{body}
  store {kind} {names[result]}, ptr {at}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
{declared}
attributes #0 = {{ nounwind "prefer-vector-width"="512" }}
"""


def machine() -> Any:
    global _ready
    if not _ready:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _ready = True
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        codemodel="small",
        jit=True,
    )


def compiled(result: Expr, inputs: tuple[Load, ...]) -> Callable[..., np.ndarray]:
    """A function of contiguous arrays, one for each of `inputs`, all of one size."""
    target = machine()
    module = llvm.parse_assembly(text(result, inputs))
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine())
    engine.finalize_object()
    _kept.append(engine)
    types = [ctypes.c_void_p] * (len(inputs) + 1)
    entry = ctypes.CFUNCTYPE(None, *types, ctypes.c_int64)(engine.get_function_address("f"))

    def run(*arrays: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is None:
            out = np.empty(arrays[0].shape, NUMPY[result.dtype])
        for array, load in zip(arrays, inputs, strict=True):
            assert array.flags.c_contiguous
            assert array.dtype == NUMPY[load.dtype]
        if out.size:
            entry(*(a.ctypes.data for a in arrays), out.ctypes.data, out.size)
        return out

    return run
