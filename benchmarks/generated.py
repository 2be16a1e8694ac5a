"""Times the loops that kernels/expressions makes, beside PyTorch's eager mode and memcpy.

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

from oneflow.core import dtype as dtypes
from oneflow.core.expression import (
    Expression,
    apply,
    constant,
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
from oneflow.kernels.expressions.loops import Loop, LoopArray, Spec
from oneflow.ops.activation import Gelu

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
        Chain("gelu", {"out": Gelu.formula(approximate="none")}, {"x": a}, {}, F.gelu),
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
    inputs = tuple(LoopArray(name, dtypes.float32) for name in chain.inputs)
    scalars = tuple(
        (name, "int" if isinstance(value, int) else "float")
        for name, value in chain.scalars.items()
    )
    outputs = tuple((root, LoopArray("", dtypes.float32)) for root in chain.outputs.values())
    return Spec(outputs, inputs, scalars, 2 if chain.rows else 1)


def llvm_side(chain: Chain) -> tuple[Callable[[], Floats], float]:
    spec = spec_of(chain)
    begin = time.perf_counter()
    text = Loop(spec, native.vector_bytes()).text("KERNEL")
    native._compiled(text, "0" * 64, steps=True)
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


# ---- measuring -----------------------------------------------------------------------------------


def sides_of(chain: Chain) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    llvm, llvm_s = llvm_side(chain)
    _, arrays = buffers(chain)
    tensors = [torch.from_numpy(a) for a in arrays]

    def theirs() -> Any:
        return chain.torch_side(*tensors)

    results = {"llvm": llvm().copy(), "torch": theirs().numpy().copy()}
    if chain.is_random:
        x, y = chain.inputs.values()
        words, _ = Rng(SEED, x.shape, (0,)).words(x.shape)
        kept = words >= chain.scalars["least"]
        results["torch"] = np.where(kept, x * np.float32(chain.scalars["scale"]), 0) + y
    error = np.abs(results["llvm"] - results["torch"]).max()
    if not error < 5e-6:
        raise SystemExit(f"{chain.name}: llvm and torch differ by {error:.1e}")
    return {"llvm": llvm, "torch": theirs}, {"llvm": llvm_s}


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
        for side in ("llvm", "torch"):
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
