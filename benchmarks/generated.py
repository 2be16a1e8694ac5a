"""Times what two code generators make of one expression: LLVM IR (kernels/expressions), and Python
text for numba, which this file writes; beside them PyTorch's eager mode and memcpy.

    python benchmarks/generated.py [--rounds 20] [--elements 1048576] [--json FILE]

Chains: GELU, SiLU, AdamW, dropout + residual, softmax, layer norm; one thread each, in turns in one
process, results compared first. compile: of one new kernel, without import and without disk cache.
GB/s counts each input and output once. ratio is PyTorch's time over that side's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from oneflow.core import dtype as dtypes
from oneflow.core.expression import (
    Expression,
    apply,
    constant,
    erfc,
    exp,
    largest,
    scalar,
    sigmoid,
    sqrt,
    symbols,
    total,
    where,
    word,
)
from oneflow.core.rng import Rng
from oneflow.kernels.expressions import native
from oneflow.kernels.expressions.loops import Array, Loop, Spec
from oneflow.kernels.fused import math as fused_math

Floats = np.ndarray[Any, Any]
REST_S = 0.005
COLUMNS = 256
SEED = 0x1234567890ABCDEF
_RANDOM = np.random.default_rng(0)


@dataclass
class Chain:
    """outputs, inputs: by name, in the order of the kernel's arguments; an output with an input's
    name overwrites it.  rows: is it a reduction over rows of COLUMNS?
    """

    name: str
    outputs: dict[str, Expression]
    inputs: dict[str, Floats]
    scalars: dict[str, float]
    torch_side: Callable[..., Any]
    rows: bool = False
    nbytes_per_element: int = 8
    is_random: bool = False


def adamw() -> dict[str, Expression]:
    param, grad, m, v = symbols("param grad m v")
    lr, step, decay = scalar("lr"), scalar("step"), scalar("decay")
    new_m = 0.9 * m + 0.1 * grad
    new_v = 0.999 * v + (1.0 - 0.999) * grad * grad
    rate = lr / (1 - constant(0.9) ** step)
    root = 1 / sqrt(1 - constant(0.999) ** step)
    move = rate * new_m / (sqrt(new_v) * root + 1e-8)
    return {"param": (1 - lr * decay) * param - move, "m": new_m, "v": new_v}


def chains(elements: int) -> list[Chain]:
    x, y = symbols("x y")
    gamma, beta = symbols("gamma beta")
    a, b, c, d = (_RANDOM.standard_normal(elements).astype(np.float32) for _ in range(4))
    rows = a.reshape(-1, COLUMNS)
    e = exp(x - largest(x))
    centred = x - total(x) * (1 / scalar("columns"))
    variance = total(centred * centred) * (1 / scalar("columns"))
    norm = centred * apply("rsqrt", variance + 1e-5) * gamma + beta
    weights = {"gamma": b[:COLUMNS].copy(), "beta": c[:COLUMNS].copy()}
    F = torch.nn.functional
    shape = (COLUMNS,)
    return [
        Chain("gelu", {"out": 0.5 * x * erfc(x * -(0.5**0.5))}, {"x": a}, {}, F.gelu),
        Chain("silu", {"out": x * sigmoid(x)}, {"x": a}, {}, F.silu),
        Chain(
            "adamw",
            adamw(),
            {"param": a.copy(), "grad": b, "m": c * 0.1, "v": d * d},
            {"lr": 1e-3, "step": 3.0, "decay": 0.01},
            torch_adamw,
            nbytes_per_element=28,
        ),
        Chain(
            "dropout + residual",
            {"out": where(word() >= scalar("least"), x * scalar("scale"), 0) + y},
            {"x": a, "y": b},
            {"least": round(0.1 * 2.0**32), "scale": 1 / 0.9},
            lambda x, y: F.dropout(x, 0.1) + y,
            nbytes_per_element=12,
            is_random=True,
        ),
        Chain("softmax", {"out": e / total(e)}, {"x": rows}, {}, lambda x: x.softmax(-1), True),
        Chain(
            "layer norm",
            {"out": norm},
            {"x": rows, **weights},
            {"columns": float(COLUMNS)},
            lambda x, g, b: F.layer_norm(x, shape, g, b),
            True,
        ),
    ]


def torch_adamw(param: Any, grad: Any, m: Any, v: Any) -> Any:
    step = torch.tensor(3.0)
    torch._fused_adamw_(
        [param], [grad], [m], [v], [], [step], lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01,
        eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return param


# ---- the LLVM side -------------------------------------------------------------------------------


def spec_of(chain: Chain) -> Spec:
    inputs = tuple(Array(name, dtypes.float32) for name in chain.inputs)
    scalars = tuple(
        (name, "int" if isinstance(value, int) else "float")
        for name, value in chain.scalars.items()
    )
    outputs = tuple((root, Array("", dtypes.float32)) for root in chain.outputs.values())
    return Spec(outputs, inputs, scalars, 2 if chain.rows else 1)


def llvm_side(chain: Chain) -> tuple[Callable[[], Floats], float]:
    spec = spec_of(chain)
    begin = time.perf_counter()
    text = Loop(spec, native.vector_bytes()).text("KERNEL")
    native._compiled(text, "0" * 64)
    seconds = time.perf_counter() - begin
    function = native.compile_spec(spec)
    outs, arrays = buffers(chain)
    first = next(iter(chain.inputs.values()))
    depth = spec.depth
    table = np.zeros(depth * (len(spec.outputs) + len(spec.inputs) + 1) + depth + 1, np.int64)
    table[: first.ndim] = first.shape
    for i, array in enumerate((*outs, *arrays)):
        if array.ndim == depth:
            table[depth * (i + 1) : depth * (i + 2)] = array.strides
    table[-1] = 1
    seed = (SEED,) if chain.is_random else ()
    ends = (table.ctypes.data, 1, 0, first.shape[0])

    def run() -> Floats:
        if function(*outs, *arrays, *chain.scalars.values(), *seed, *ends):
            raise SystemExit(f"{chain.name}: arrays refused")
        return outs[0]

    return run, seconds


def buffers(chain: Chain) -> tuple[list[Floats], list[Floats]]:
    arrays = {name: array.copy() for name, array in chain.inputs.items()}
    outs = [
        arrays[name] if name in arrays else np.empty_like(arrays["x"]) for name in chain.outputs
    ]
    return outs, list(arrays.values())


# ---- the numba side ------------------------------------------------------------------------------

_CALLS = {"exp": "exp", "sigmoid": "sigmoid", "sqrt": "np.sqrt", "erfc": "erfc"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "ge": ">="}


@fused_math.inlined
def first_word(index: Any, key: Any, fold: Any) -> Any:
    """The first Philox word of counter `index`; key, fold: the halves of the seed."""
    left = np.uint32(index & np.uint64(0xFFFFFFFF))
    right = np.uint32(index >> np.uint64(32)) ^ fold
    for _ in range(10):
        made = np.uint64(left) * np.uint64(0xD256D193)
        left = np.uint32(made >> np.uint64(32)) ^ key ^ right
        right = np.uint32(made & np.uint64(0xFFFFFFFF))
        key = np.uint32(key + np.uint32(0x9E3779B9))
    return left


@fused_math.inlined
def numba_erfc(x: Any) -> Any:
    phi, _ = fused_math.phi_and_density(-x * np.float32(2**0.5))
    return phi + phi


def numba_text(chain: Chain) -> str:
    """A Python function that numba is to compile: one loop, or one per pass over a row."""
    names = [*(f"out_{n}" for n in chain.outputs), *chain.inputs, *chain.scalars]
    lines = [f"def kernel({', '.join(names)}, key, fold):"]
    is_row = chain.rows
    pad = "    "
    if is_row:
        lines.append(pad + "for r in range(x.shape[0]):")
        pad += "    "
        lines += row_passes(chain, pad)
    size = "x.shape[1]" if is_row else f"{next(iter(chain.inputs))}.size"
    lines.append(f"{pad}for i in range({size}):")
    made = {}
    for n, (name, root) in enumerate(chain.outputs.items()):
        made[name] = f"v{n}"
        lines.append(f"{pad}    v{n} = {scalar_text(root, is_row)}")
    at = "[r, i]" if is_row else "[i]"
    lines += [f"{pad}    out_{name}{at} = {v}" for name, v in made.items()]
    return "\n".join(lines) + "\n"


def row_passes(chain: Chain, pad: str) -> list[str]:
    from oneflow.core.expression import walk

    lines = []
    for number, node in enumerate(walk(*chain.outputs.values())):
        if node.function in ("total", "largest"):
            start = "np.float32(0)" if node.function == "total" else "np.float32(-np.inf)"
            name = f"r{number}"
            lines.append(f"{pad}{name} = {start}")
            lines.append(f"{pad}for i in range(x.shape[1]):")
            term = scalar_text(node.args[0], True)
            combined = f"maximum({name}, {term})" if node.function == "largest" else ""
            lines.append(f"{pad}    {name} = {combined or f'{name} + {term}'}")
            _PASSES[node] = name
    return lines


_PASSES: dict[Expression, str] = {}


def scalar_text(node: Expression, is_row: bool) -> str:
    """One element's value, as Python text."""
    if node in _PASSES:
        return _PASSES[node]
    args = [scalar_text(a, is_row) for a in node.args]
    match node.function:
        case "input":
            is_full = is_row and node.value == "x"
            return f"{node.value}{'[r, i]' if is_full else '[i]'}"
        case "scalar":
            return str(node.value) if node.value in ("least", "step") else f"F({node.value})"
        case "constant":
            return f"F({node.value!r})"
        case "word":
            return "np.int64(first_word(np.uint64(i), key, fold))"
        case "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        case "pow":
            return f"F(np.float64({args[0]}) ** {args[1]})"
        case "rsqrt":
            return f"(F(1) / np.sqrt({args[0]}))"
        case name if name in _SIGNS:
            return f"({args[0]} {_SIGNS[name]} {args[1]})"
        case name:
            return f"{_CALLS[name]}({args[0]})"


def numba_side(chain: Chain) -> tuple[Callable[[], Floats], float]:
    names = {
        "np": np, "F": np.float32, "exp": fused_math.exp, "sigmoid": fused_math.sigmoid,
        "maximum": fused_math.maximum, "erfc": numba_erfc,
        "first_word": first_word,
    }  # fmt: skip
    exec(numba_text(chain), names)
    loop = njit(fastmath=fused_math.REORDER, error_model="numpy", nogil=True)(names["kernel"])
    outs, arrays = buffers(chain)
    keys = np.uint32(SEED & 0xFFFFFFFF), np.uint32(SEED >> 32)

    def run() -> Floats:
        loop(*outs, *arrays, *chain.scalars.values(), *keys)
        return outs[0]

    begin = time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    for array, fresh in zip(arrays, chain.inputs.values(), strict=True):
        array[...] = fresh
    return run, seconds


# ---- measuring -----------------------------------------------------------------------------------


def sides_of(chain: Chain) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    llvm, llvm_s = llvm_side(chain)
    numba, numba_s = numba_side(chain)
    _, arrays = buffers(chain)
    tensors = [torch.from_numpy(a) for a in arrays]

    def theirs() -> Any:
        return chain.torch_side(*tensors)

    results = {"llvm": llvm().copy(), "numba": numba().copy(), "torch": theirs().numpy().copy()}
    if chain.is_random:
        x, y = chain.inputs.values()
        words, _ = Rng(SEED, x.shape, (0,)).words(x.shape)
        kept = words >= chain.scalars["least"]
        results["torch"] = np.where(kept, x * np.float32(chain.scalars["scale"]), 0) + y
    for side in ("llvm", "numba"):
        error = np.abs(results[side] - results["torch"]).max()
        if not error < 5e-6:
            raise SystemExit(f"{chain.name}: {side} and torch differ by {error:.1e}")
    return {"llvm": llvm, "numba": numba, "torch": theirs}, {"llvm": llvm_s, "numba": numba_s}


def fastest(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Shortest seconds of a call of each side, in turns."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for key, side in sides.items():
            time.sleep(REST_S)
            side()
            begin = time.perf_counter()
            for _ in range(3):
                side()
            best[key] = min(best[key], (time.perf_counter() - begin) / 3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    source, target = np.zeros(args.elements, np.float32), np.zeros(args.elements, np.float32)
    copy = fastest({"copy": lambda: np.copyto(target, source)}, args.rounds)["copy"]
    memcpy = 8 * args.elements / copy / 1e9
    print(f"memcpy {memcpy:.1f} GB/s; {args.elements} elements")
    print(f"{'chain':20s} {'side':6s} {'compile ms':>10s} {'us':>8s} {'GB/s':>6s} {'ratio':>6s}")
    rows = []
    for chain in chains(args.elements):
        sides, compile_s = sides_of(chain)
        best = fastest(sides, args.rounds)
        for side in ("llvm", "numba", "torch"):
            rate = chain.nbytes_per_element * args.elements / best[side] / 1e9
            ratio = best["torch"] / best[side]
            compiled = f"{compile_s[side] * 1e3:10.1f}" if side in compile_s else " " * 10
            print(
                f"{chain.name:20s} {side:6s} {compiled} {best[side] * 1e6:8.0f} "
                f"{rate:6.1f} {ratio:6.2f}"
            )
            row = {"chain": chain.name, "side": side, "seconds": best[side], "gb_per_s": rate}
            rows.append({**row, "ratio": ratio, "compile_s": compile_s.get(side)})
    if args.json:
        results = {"memcpy_gb_per_s": memcpy, "elements": args.elements, "rows": rows}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
