"""What the emitter knows of a machine: a `Target` is its parameter, and part of every cache key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Target:
    """A machine to make code for.

    `bits` of a vector register, and how many `registers` there are. `fma`: a fused multiply-add in
    one instruction. `masked`: the smallest element in bytes that is loaded and stored under a mask
    at the price of a plain access; None where there is no such thing. `gather`: elements are
    gathered by one instruction. `half`: f16 is converted by one instruction. `scalef`: there is
    an instruction for `x * 2**n`. `caches` are the sizes of L1 and L2 in bytes.
    """

    name: str
    triple: str
    cpu: str
    features: str = ""
    bits: int = 128
    registers: int = 16
    fma: bool = False
    masked: int | None = None
    gather: bool = False
    half: bool = False
    scalef: bool = False
    caches: tuple[int, int] = (32 << 10, 1 << 20)
    threads: int = 1

    @property
    def vector_bytes(self) -> int:
        return self.bits // 8

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")


_LINUX = "x86_64-unknown-linux-gnu"

# LLVM's `x86-64-v2` and so on are the levels of the System V ABI.
SSE4 = Target("sse4.2", _LINUX, "x86-64-v2")
AVX2 = Target("avx2", _LINUX, "x86-64-v3", bits=256, fma=True, masked=4, gather=True, half=True)
AVX512 = Target(
    "avx512", _LINUX, "x86-64-v4",
    bits=512, registers=32, fma=True, masked=1, gather=True, half=True, scalef=True,
)  # fmt: skip
NEON = Target(
    "neon", "aarch64-unknown-linux-gnu", "generic", "+neon", registers=32, fma=True, half=True
)

TARGETS: Mapping[str, Target] = {target.name: target for target in (SSE4, AVX2, AVX512, NEON)}

# The baseline that a machine of an architecture surely meets.
BASELINES: Mapping[str, Target] = {"x86_64": SSE4, "aarch64": NEON}

_NEEDS: tuple[tuple[Target, tuple[str, ...]], ...] = (
    (AVX512, ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "bmi2", "fma", "f16c")),
    (AVX2, ("avx2", "fma", "f16c", "bmi2")),
    (SSE4, ("sse4.2", "popcnt")),
)


def named(name: str) -> Target:
    """The target with this name."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(f"no target {name!r}; there are {', '.join(TARGETS)}") from None


def best(architecture: str, features: frozenset[str]) -> Target | None:
    """The widest level that a machine meets which reports these features; None below all."""
    if architecture != "x86_64":
        return BASELINES.get(architecture)
    for target, needed in _NEEDS:
        if features.issuperset(needed):
            return target
    return None


def runs_on(target: Target, architecture: str, features: frozenset[str]) -> bool:
    """Whether a machine that reports these features runs code for `target`."""
    if not target.triple.startswith(architecture):
        return False
    needed = next((needed for level, needed in _NEEDS if level.name == target.name), ())
    return features.issuperset(needed)


def tuned(target: Target, triple: str, cpu: str, features: str, threads: int) -> Target:
    """`target` with the very machine's name and features, under the same name."""
    return replace(target, triple=triple, cpu=cpu, features=features, threads=threads)
