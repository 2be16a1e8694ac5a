"""Random trees of objects, saved and loaded again; and their files cut short or with other bytes.

    python -m tests.fuzz.files --programs 10000 --seed 0

A program is a tree of containers, plain values, tensors of all dtypes and layouts in memory, some
of which share memory or are there several times. Loaded again it must be the same: values, dtypes,
shapes, which tensors need gradients, and which share memory. Then bytes of the file are
changed or taken away: the result must be an error of ours, or a tree that compares equal but
for elements that a changed byte may change.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
from oneflow.core.errors import InternalError, OneFlowError

DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"),
    *("complex64", "complex128"),
)
DAMAGES = 12
"""Damaged files tried for each tree."""


class Drawing:
    """Draws one tree. tensors: those so far, which later ones may share memory with."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tensors: list[Any] = []

    def tree(self, depth: int = 0) -> Any:
        kinds: tuple[Callable[[int], Any], ...] = (
            self._dict, self._list, self._tuple, self._ordered, self._tensor, self._tensor,
            self._again, self._plain, self._array,
        )  # fmt: skip
        return self.rng.choice(kinds if depth < 3 else kinds[4:])(depth + 1)

    def _several(self, depth: int) -> list[Any]:
        return [self.tree(depth) for _ in range(self.rng.randrange(4))]

    def _key(self) -> Any:
        return self.rng.choice(("w", "a.b", "", 3, -1, True, 2.5, "ä/\\\n", "__class__", (1, "k")))

    def _dict(self, depth: int) -> Any:
        return {self._key(): value for value in self._several(depth)}

    def _ordered(self, depth: int) -> Any:
        return OrderedDict((self._key(), value) for value in self._several(depth))

    def _list(self, depth: int) -> Any:
        return self._several(depth)

    def _tuple(self, depth: int) -> Any:
        return tuple(self._several(depth))

    def _plain(self, _: int) -> Any:
        return self.rng.choice(
            (None, True, 0, -(1 << 70), 1.5, math.inf, -0.0, "", "text\0", b"\xff\0", 1 + 2j,
             slice(1, None, 2), {1, 2}, frozenset({"a"}), range(3), flow.float32, flow.Size([2])),
        )  # fmt: skip

    def _array(self, _: int) -> Any:
        shape = tuple(self.rng.randrange(4) for _ in range(self.rng.randrange(3)))
        kind = self.rng.choice(("float32", "int64", "bool", "uint16", "complex64"))
        return np.arange(math.prod(shape)).reshape(shape).astype(kind)

    def _tensor(self, _: int) -> Any:
        rng = self.rng
        dtype = getattr(flow, rng.choice(DTYPES))
        shape = [rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randrange(4))]
        numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(-50, 50, shape)
        x = flow.tensor(numbers).to(dtype)
        if x.ndim > 1 and rng.random() < 0.3:
            x = x.transpose(0, 1)
        if x.ndim and x.shape[0] > 1 and rng.random() < 0.3:
            x = x[::2]
        if dtype.is_floating_point and rng.random() < 0.4:
            x = flow.nn.Parameter(x) if rng.random() < 0.5 else x.detach().requires_grad_()
        self.tensors.append(x)
        return x

    def _again(self, depth: int) -> Any:
        """A tensor that is there already, a view of it, or a tensor over the same memory."""
        if not self.tensors:
            return self._tensor(depth)
        x = self.rng.choice(self.tensors)
        kind = self.rng.randrange(3)
        if kind == 0:
            return x
        y = x.detach() if kind == 1 or not x.ndim else x.detach()[:1]
        self.tensors.append(y)
        return y


# ---- comparison ----------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Path -> value of all that is no container."""
    if isinstance(value, dict):
        found: dict[str, Any] = {path: (type(value).__name__, len(value))}
        for key, one in value.items():
            found |= leaves(one, f"{path}/{type(key).__name__}:{key!r}")
        return found
    if type(value) in (list, tuple):
        found = {path: (type(value).__name__, len(value))}
        for i, one in enumerate(value):
            found |= leaves(one, f"{path}/{i}")
        return found
    return {path: value}


def described(x: Any) -> Any:
    """All of a leaf that must come back."""
    if isinstance(x, flow.Tensor):
        kind = type(x).__name__, str(x.dtype), tuple(x.shape), x.requires_grad
        return *kind, np.ascontiguousarray(x.detach()._array).tobytes()
    if isinstance(x, np.ndarray):
        return "array", str(x.dtype), x.shape, x.tobytes()
    return type(x).__name__, repr(x)


def sharing(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of tensors of one shape over the same memory, by their paths."""
    tensors = [(path, x) for path, x in tree.items() if isinstance(x, flow.Tensor) and x.numel()]
    return [
        (p, q)
        for i, (p, x) in enumerate(tensors)
        for q, y in tensors[:i]
        if x.shape == y.shape and x._array.ctypes.data == y._array.ctypes.data
    ]


def compared(wanted: Any, got: Any) -> str:
    """The first difference of two trees."""
    a, b = leaves(wanted), leaves(got)
    if a.keys() != b.keys():
        return f"other places: {sorted(a.keys() ^ b.keys())[:4]}"
    for path, x in a.items():
        if described(x) != described(b[path]):
            return f"{path}: {described(x)} became {described(b[path])}"
    if lost := set(sharing(a)) ^ set(sharing(b)):
        return f"one tensor or two: {sorted(lost)[:2]}"
    return ""


# ---- programs ------------------------------------------------------------------------------------


def fault_of(seed: int, folder: Path) -> str:
    """The fault of one program, "" if there is none."""
    rng = random.Random(seed)
    tree = Drawing(rng).tree()
    way = rng.choice(("file", "buffer", "folder"))
    path = folder / "saved"
    try:
        data = _saved(tree, way, path)
        if fault := compared(tree, _loaded(way, path, data)):
            return fault
        return _damaged(rng, way, path, data)
    finally:
        for name in os.listdir(folder):
            target = folder / name
            if target.is_dir():
                for inner in target.iterdir():
                    inner.unlink()
                target.rmdir()
            else:
                target.unlink()


def _saved(tree: Any, way: str, path: Path) -> bytes:
    if way == "buffer":
        file = io.BytesIO()
        flow.save(tree, file)
        return file.getvalue()
    flow.save(tree, path, save_as_external_data=way == "folder")
    return _file_of(way, path).read_bytes()


def _file_of(way: str, path: Path) -> Path:
    return next(path.iterdir()) if way == "folder" else path


def _loaded(way: str, path: Path, data: bytes) -> Any:
    if way == "buffer":
        return flow.load(io.BytesIO(data))
    _file_of(way, path).write_bytes(data)
    return flow.load(path)


def _damaged(rng: random.Random, way: str, path: Path, data: bytes) -> str:
    for _ in range(DAMAGES):
        broken = _broken(rng, data)
        try:
            found = _loaded(way, path, broken)
            for x in leaves(found).values():
                described(x)
        except InternalError as error:
            return f"a defect after damage: {error}"
        except OneFlowError as error:
            if not str(error):
                return f"{type(error).__name__} without words"
        except Exception as error:
            return f"{type(error).__name__} after damage: {error}"
    return ""


def _broken(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some changed, taken away or put in; most often near the beginning."""
    kind = rng.randrange(4)
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.6:
        at = min(at, rng.randrange(1200))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[at:]
    if kind == 2:
        return data[:at] + data[at + rng.randrange(1, 9) :]
    broken = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = min(at, len(data) - 1) if data else 0
        broken[place] ^= 1 << rng.randrange(8)
        at = rng.randrange(len(data))
    return bytes(broken)


def run(programs: int, seed: int) -> list[str]:
    """The faults of so many programs, each with the seed that makes it again."""
    found = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(programs):
            one = seed * 1_000_003 + number
            try:
                fault = fault_of(one, Path(folder))
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            if fault:
                found.append(f"program {one}: {fault}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = run(args.programs, args.seed)
    for one in found[:30]:
        print(one[:400])
    print(f"{args.programs} programs, {len(found)} faults")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
