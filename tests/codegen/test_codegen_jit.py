"""Programs: shared by content, freed with their last user; written out for any target; and memory
beside the kernel's own, which is never touched.
"""

import ctypes
import faulthandler
import gc
import mmap
import os
import weakref

import numpy as np
import pytest
from running import IDS, TARGETS, at, buffer, kernel, mapped, put

from straightline.codegen.llvm.call import function
from straightline.codegen.llvm.emit import emit
from straightline.codegen.llvm.host import chosen, host, runs_here
from straightline.codegen.llvm.jit import assembly, compile_kernels, object_code
from straightline.codegen.target import AVX2, AVX512, NEON, SSE4, best, named
from straightline.codegen.target import TARGETS as LEVELS
from straightline.ir import index as ix
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import b1, bf16, f32, f64, i64
from straightline.ir.index import Axis, Size, index
from straightline.ir.nodes import (
    Accumulate,
    Const,
    Declare,
    Fold,
    Folded,
    How,
    Load,
    Loop,
    Position,
    Statement,
    cast,
    op,
)

N = Size("n")
AXIS = Axis("i", index(N))


def scaled(factor: float, name: str = "scaled"):
    source, out = buffer("in", f32, N), buffer("out", f32, N)
    value = op("mul", op("exp", at(source, AXIS)), Const(f32, factor))
    return mapped(name, value, AXIS, [source], out)


def test_equal_kernels_are_one_program():
    one, two = compile_kernels([scaled(3.0)], host()), compile_kernels([scaled(3.0)], host())
    assert one is two
    assert compile_kernels([scaled(4.0)], host()) is not one


def test_a_program_is_freed_with_its_last_user():
    program = compile_kernels([scaled(5.0)], host())
    gone = weakref.ref(program)
    call = function(program, "scaled")
    del program
    gc.collect()
    assert gone() is not None
    del call
    gc.collect()
    assert gone() is None


def test_several_kernels_in_one_program():
    program = compile_kernels([scaled(2.0, "double"), scaled(3.0, "triple")], host())
    given, out = np.zeros(3, "float32"), np.zeros(3, "float32")
    for name, result in (("double", 2.0), ("triple", 3.0)):
        call = function(program, name)
        assert call([given.ctypes.data, out.ctypes.data], [3], 0, 3) == 0
        assert (out == result).all()
    with pytest.raises(KeyError, match="quadruple"):
        program.address("quadruple")


def test_text_assembly_and_object_of_a_program():
    program = compile_kernels([scaled(2.0)], host())
    assert 'define i64 @"scaled"' in program.llvm
    assert "scaled:" in program.assembly()
    assert b"scaled" in program.object()


REGISTERS = {"sse4.2": "%xmm", "avx2": "%ymm", "avx512": "%zmm", "neon": "v0.4s"}


@pytest.mark.parametrize("name", LEVELS)
def test_every_target_is_assembled_wherever_we_are(name):
    target = named(name)
    fold = Fold("f", "argmax", (f32, i64))
    source = buffer("in", bf16, N)
    rows: list[Statement] = [
        Declare(fold),
        Loop(
            AXIS,
            How.VECTOR,
            (Accumulate(fold, (cast(at(source, AXIS), f32), Position(index(AXIS)))),),
        ),
        put(buffer("best", i64), [], Folded(fold, 1)),
    ]
    best_of = kernel("best_of", rows, [source], [buffer("best", fold.dtypes[1])], [N])
    text = emit([scaled(2.0), best_of], target)
    written = assembly(text, target)
    assert REGISTERS[name] in written
    assert "scaled:" in written
    assert "best_of:" in written
    assert len(object_code(text, target)) > 500


def test_only_expected_functions_are_called():
    """Code stands for itself, but for what C's library has no instruction for."""
    for target in (SSE4, AVX2, AVX512, NEON):
        written = assembly(emit([scaled(2.0)], target), target)
        assert "callq" not in written
        assert "\tbl\t" not in written


def test_the_machine_gets_the_widest_level_that_it_reports():
    features = frozenset({"sse4.2", "popcnt"})
    assert best("x86_64", features) is SSE4
    features |= {"avx2", "fma", "f16c", "bmi2"}
    assert best("x86_64", features) is AVX2
    features |= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
    assert best("x86_64", features) is AVX512
    assert best("aarch64", frozenset()) is NEON
    assert best("x86_64", frozenset()) is None
    assert runs_here(host())
    assert chosen() is host()
    assert chosen(host().name).name == host().name
    foreign = "neon" if host().is_x86 else "avx2"
    with pytest.raises(ValueError, match=f"does not run code for {foreign}"):
        chosen(foreign)
    with pytest.raises(ValueError, match=r"no target 'sse9'; there are sse4\.2, avx2"):
        named("sse9")


# -- guard pages -----------------------------------------------------------------------------------


class Fenced:
    """A page of memory between two that nobody may touch."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self.map = mmap.mmap(-1, 3 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for fence in (start, start + 2 * page):
            assert protect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
        self.begin, self.end = start + page, start + 2 * page


def outcome(steps) -> int:
    """How a child process that does this ends."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        steps()
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [b1, bf16, f32, f64], ids=str)
def test_nothing_outside_of_a_buffer_is_touched(dtype, target):
    source, out = buffer("in", dtype, N), buffer("out", dtype, N)
    back = buffer("back", dtype, N)
    last = ix.sub(N, ix.add(AXIS, 1))
    fold = Fold("f", "max", (dtype,) if dtype is not bf16 else (f32,))
    value = at(source, AXIS)
    wide = cast(value, f32) if dtype is bf16 else value
    most = buffer("most", fold.dtypes[0])
    body: list[Statement] = [
        Declare(fold),
        Loop(
            AXIS,
            How.VECTOR,
            (
                put(out, [AXIS], value),
                put(back, [AXIS], Load(source, (last,))),
                Accumulate(fold, (wide,)),
            ),
        ),
        put(most, [], Folded(fold)),
    ]
    program = compile_kernels([kernel("copied", body, [source], [out, back, most], [N])], target)
    call = function(program, "copied")
    fences = [Fenced() for _ in range(3)]
    largest = np.zeros(1, MEMORY[fold.dtypes[0]])

    def steps() -> None:
        for length in (*range(70), 100, 127, 128, 129, 500):
            ends = [fence.end - length * dtype.bytes for fence in fences]
            for places in (ends, [fence.begin for fence in fences]):
                call([*places, largest.ctypes.data], [length])

    assert outcome(steps) == 0


def test_the_fence_holds():
    fence = Fenced()
    assert outcome(lambda: ctypes.string_at(fence.end - 1, 2)) != 0
    assert outcome(lambda: ctypes.string_at(fence.end - 2, 2)) == 0
