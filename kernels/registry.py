"""The kernel table: arithmetic under the op's name, per device kind.

    @kernel("relu")
    def relu(xp: ArrayModule, out: Array, x: Array) -> None:  # for NumPy and CuPy: xp is the module
        xp.maximum(x, 0, out=out)

    @fused_kernel("layer_norm_grad", workspace=sums)  # large float32 arrays on a CPU only
    def layer_norm_grad_fused(xp, d_x, *rest, begin_axis): ...

    @cuda_kernel("causal_softmax")  # CUDA C: for float32 and float64 on a GPU
    def causal_softmax_cuda(xp, out, x, *, scale): ...

    @view("transpose")
    def transpose(x, *, dims): return x.transpose(dims)

A kernel gets: xp, the outputs, the inputs, the workspace arrays, then all attrs as keywords (and
`rng=` for random ops). It writes into the outputs and allocates nothing of the size of the data:
arrays that it needs besides, it declares as workspace, by a function of the input types and attrs.
Shapes are taken from the arrays, never from attrs: on a shard the arrays are smaller than the attrs
say. Outputs named in `Op.mutates` are the very arrays of those inputs. A view function returns an
array that shares the input's memory, or None if that cannot be done (then the kernel of the same
name copies).
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import oneflow.kernels as package
from oneflow.core.dtype import float32
from oneflow.core.errors import DeviceError, InternalError
from oneflow.core.op import REGISTRY, Op, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import device_of, hardware_class, to_host

KernelFunction = Callable[..., None]
ViewFunction = Callable[..., Any]
Workspace = Callable[[tuple[TensorType, ...], dict[str, Any]], tuple[TensorType, ...]]
Binder = Callable[[tuple[TensorType, ...], dict[str, Any]], KernelFunction]


@dataclass(frozen=True)
class Kernel:
    """A kernel for one kind of device.

    function: see the top of this file. workspace: types of the extra arrays, of (input types,
    attrs).

    min_elements: taken only if the largest input or output has at least so many elements.
    dtypes: names of the dtypes of input 0 it is for; empty means any.
    bind: makes the function for certain input types and attrs; `function` then does so per call.
    for_device: makes the kernel of a kind of device; of one that selects other kernels.
    """

    function: KernelFunction
    workspace: Workspace | None = None
    min_elements: int = 0
    dtypes: tuple[str, ...] = ()
    bind: Binder | None = None
    for_device: Callable[[str], Kernel] | None = None

    def bound(self, types: tuple[TensorType, ...], attrs: dict[str, Any]) -> KernelFunction:
        """The function for inputs of these types: all that can be prepared once is prepared."""
        return self.function if self.bind is None else self.bind(types, attrs)


def taking(function: KernelFunction, path: str) -> KernelFunction:
    """`function`, with a note of the library that it calls, which `graph.debug(2)` tells."""
    function.__dict__["path"] = path
    return function


def path_of(function: KernelFunction) -> str:
    """The note of `taking`; "" if there is none."""
    return str(getattr(function, "path", ""))


_KERNELS: dict[tuple[str, str], list[Kernel]] = {}
_VIEWS: dict[str, ViewFunction] = {}
_loaded = False
_loading = threading.RLock()
_found: set[str] = set()
"""Names of the ops whose kernels have been imported."""


def kernel(
    name: str,
    *,
    device: str | None = None,
    workspace: Workspace | None = None,
    min_elements: int = 0,
    dtypes: tuple[str, ...] = (),
) -> Callable[[KernelFunction], KernelFunction]:
    """Registers a kernel for `device` ("cpu", "cuda" or a registered kind; None: all)."""

    def register(function: KernelFunction) -> KernelFunction:
        add_kernel(name, device or EVERY, Kernel(function, workspace, min_elements, dtypes))
        return function

    return register


FUSED_LEAST = 16384
"""Number of elements from which fused CPU kernels win, although waking the other threads costs
some microseconds. Smaller calls import no compiler.
"""


def fused_kernel(
    name: str, *, workspace: Workspace | None = None, min_elements: int = FUSED_LEAST
) -> Callable[[KernelFunction], KernelFunction]:
    """Registers a kernel for large float32 arrays on a CPU."""
    return kernel(
        name,
        device="cpu",
        workspace=workspace,
        min_elements=min_elements,
        dtypes=("float32",),
    )


def cuda_kernel(name: str) -> Callable[[KernelFunction], KernelFunction]:
    """Registers a kernel for float32 and float64 on a GPU; half precision goes to the one for all
    devices.
    """
    return kernel(name, device="cuda", dtypes=("float32", "float64"))


EVERY = ""
"""The kind under which kernels for every kind of device are registered."""


def add_kernel(name: str, device: str, made: Kernel) -> None:
    """Registers a kernel for a kind of device, or for `EVERY` one."""
    # A new list: threads that select while one imports see the old one.
    _KERNELS[name, device] = [*_KERNELS.get((name, device), ()), made]
    for known in [key for key in _candidates if key[0] == name]:
        _candidates.pop(known, None)


_candidates: dict[tuple[str, str], tuple[Kernel, ...]] = {}


def _kernels_for(name: str, device: str) -> tuple[Kernel, ...]:
    """The kernels of an op for a device: fused before generic and larger thresholds first, because
    `select` takes the first that fits; of equals the device's own first."""
    found = _candidates.get((name, device))
    if found is None:
        general = _KERNELS.get((name, EVERY), ())
        known = list(_KERNELS.get((name, device), ()))
        known += [k.for_device(device) if k.for_device else k for k in general]
        known.sort(key=lambda k: (-k.min_elements, not k.dtypes))
        found = _candidates[name, device] = tuple(known)
    return found


_PRECHECKS: dict[str, Callable[..., None]] = {}


def precheck(name: str) -> Callable[[KernelFunction], KernelFunction]:
    """Register the check that a CPU makes before an op that is declared by a formula runs: a
    function of outputs, inputs and attrs, which raises where the values are wrong."""

    def register(function: KernelFunction) -> KernelFunction:
        _PRECHECKS[name] = function
        return function

    return register


def is_checked(name: str) -> bool:
    """Does a CPU look at the values that the op `name` is given?"""
    return name in _PRECHECKS


def checked(name: str, function: KernelFunction, attrs: Attrs) -> KernelFunction:
    """`function`, behind the check of the op `name` with `attrs` if there is one."""
    check = _PRECHECKS.get(name)
    if check is None:
        return function

    def run(xp: ArrayModule, *arrays: Array, **_: object) -> None:
        check(*arrays, **attrs)
        function(xp, *arrays)

    return run


def view(name: str) -> Callable[[ViewFunction], ViewFunction]:
    """Registers the view function of an op."""

    def register(function: ViewFunction) -> ViewFunction:
        _VIEWS[name] = function
        return function

    return register


def select(name: str, device: str, types: tuple[TensorType, ...], numel: int) -> Kernel:
    """The kernel of op `name` on `device` for these input types; numel: of the largest array.

    Raises DeviceError if a registered kind has none and does not go by the host.
    """
    _load_for(name, device)
    if device not in ("cpu", "cuda"):
        own = hardware_class(device).kernel_of(name, types, numel)
        if own is not None:
            return own
    dtype = types[0].dtype.name if types else ""
    for candidate in _kernels_for(name, device):
        if numel >= candidate.min_elements and (not candidate.dtypes or dtype in candidate.dtypes):
            if dtype in HALVES and not candidate.dtypes and _widens(name, device):
                return _in_float32(name, device, types, numel)
            return candidate
    what = f"op {name} has no kernel for {device} and {[str(t) for t in types]}"
    if device in ("cpu", "cuda"):
        raise InternalError(what)
    if not hardware_class(device).goes_by_host:
        raise DeviceError(f"{what}: its package must register one (docs/DEVICES.md)")
    return _by_host(name, types, numel)


def _by_host(name: str, types: tuple[TensorType, ...], numel: int) -> Kernel:
    """The CPU's kernel on copies of a device's arrays."""
    inner, op = select(name, "cpu", types, numel), REGISTRY[name]

    def bind(types: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
        function, num_outs = inner.bound(types, attrs), len(_outputs(op, types, attrs))
        keywords = attrs if inner.bind is None else {}
        extra = inner.workspace(types, attrs) if inner.workspace else ()

        def run(xp: ArrayModule, *arrays: Array, **given: object) -> None:
            hosts = [to_host(x) for x in arrays]
            work = [np.empty(t.shape, t.dtype.np) for t in extra]
            function(np, *hosts, *work, **(keywords | given))
            for out, host in zip(arrays[:num_outs], hosts, strict=False):
                device_of(out).copy(out, host)

        return taking(run, "host")

    return Kernel(inner.function, bind=bind)


HALVES = ("float16", "bfloat16")
IN_FLOAT32: set[tuple[str, str]] = set()
"""Pairs of an op and a kind of device, or EVERY one; registered kinds do as CPUs."""


def _widens(name: str, device: str) -> bool:
    kind = device if device == "cuda" else "cpu"
    return (name, EVERY) in IN_FLOAT32 or (name, kind) in IN_FLOAT32


def compute_in_float32(*names: str, device: str | None = None) -> None:
    """Have half floats of these ops computed by their kernels for float32 and rounded once, on
    `device` (None: on every kind), unless a kernel names a half dtype among its own.

    For kernels that add up more than a few numbers: a bfloat16 sum of ones stops growing at 256, a
    float16 one at 2048.
    """
    IN_FLOAT32.update((name, device or EVERY) for name in names)


def _widened(types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    return tuple([t.with_dtype(float32) if t.dtype.name in HALVES else t for t in types])


def _outputs(op: type[Op], types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """The output types of a call, also of a shard, whose attrs say where it lies, too."""
    known = op.attrs
    return infer_types(
        op, types, attrs if known is None else {k: v for k, v in attrs.items() if k in known}
    )


def _in_float32(name: str, device: str, types: tuple[TensorType, ...], numel: int) -> Kernel:
    """A kernel that copies half floats to float32 arrays, its first workspace, and back."""
    op = REGISTRY[name]
    inner = select(name, device, _widened(types), numel)

    def workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        arrays = (*_outputs(op, types, attrs), *types)
        copies = _widened(tuple([t for t in arrays if t.dtype.name in HALVES]))
        own = inner.workspace(_widened(types), attrs) if inner.workspace else ()
        return (*copies, *own)

    def bind(types: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
        outs = _outputs(op, types, attrs)
        halves = [i for i, t in enumerate((*outs, *types)) if t.dtype.name in HALVES]
        function = inner.bound(_widened(types), attrs)
        num_outs, num_arrays = len(outs), len(outs) + len(types)
        keywords = attrs if inner.bind is None else {}

        def run(xp: ArrayModule, *given: Array, **_: object) -> None:
            arrays = [*given[:num_arrays], *given[num_arrays + len(halves) :]]
            for i, copy in zip(halves, given[num_arrays:], strict=False):
                arrays[i] = copy.reshape(-1)[: given[i].size].reshape(given[i].shape)
                if i >= num_outs:
                    arrays[i][...] = given[i]
            function(xp, *arrays, **keywords)
            for i in halves:
                if i < num_outs:
                    given[i][...] = arrays[i]

        return taking(run, path_of(function))

    return Kernel(inner.function, workspace, bind=bind)


def _load_for(name: str, device: str) -> None:
    if device == "cpu":
        if name not in _found:
            _load_kernels_of(name)
        return
    load()
    hardware_class(device).load_kernels()


def num_kernels(name: str, device: str) -> int:
    """Count the kernels that `select` may choose from: while the number stays, it answers as
    before.
    """
    _load_for(name, device)
    return len(_kernels_for(name, device))


def variants(name: str, device: str) -> tuple[Kernel, ...]:
    """Every kernel of an op on a device, for tests."""
    load()
    return _kernels_for(name, device)


def find_view(name: str) -> ViewFunction | None:
    """Return the view function of op `name`; None if it has none."""
    if name not in _found:
        _load_kernels_of(name)
    return _VIEWS.get(name)


def load() -> None:
    """Imports every kernel file once, but for those that need CuPy."""
    global _loaded
    if _loaded:
        return
    with _loading:
        for name in _files():
            importlib.import_module(f"oneflow.kernels.{name}")
        _loaded = True


@cache
def _files() -> tuple[str, ...]:
    """Names of the kernel files, but for those that need CuPy."""
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(n for n in found if n != "registry" and not n.startswith("cuda"))


def homes(name: str) -> tuple[str, ...]:
    """Names of the kernel files of op `name`: the one called as its file in `oneflow/ops`, and
    `elementwise` if it is declared by a formula. Empty for an op that is not declared.
    """
    op = REGISTRY.get(name)
    if op is None:
        return ()
    own = op.infer.__module__.rpartition(".")[2]
    return ("elementwise", own) if op.formula is not None else (own,)


def _load_kernels_of(name: str) -> None:
    """Import the files of one op's kernels only: the first op of a program needs few of them."""
    for home in () if _loaded else homes(name):
        if home in _files():
            importlib.import_module(f"oneflow.kernels.{home}")
    if not _kernels_for(name, "cpu") and name not in _VIEWS:
        load()  # of an op that is declared elsewhere: by a test, or by a user
    _found.add(name)
