"""A front end of cuDNN that builds every plan and computes in NumPy, through the addresses, shapes
and strides that it is given: for tests of the requests of our kernels.
"""

from __future__ import annotations

import enum
from math import prod
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tests.unit.ops.attention_samples import attention, attention_grad

Array = np.ndarray[Any, Any]
SCRATCH_NBYTES = 48


class DataType(enum.Enum):
    HALF = np.float16
    BFLOAT16 = ml_dtypes.bfloat16
    FLOAT = np.float32


class Operand:
    """A tensor of a graph."""

    def __init__(self, dim: Any = (), stride: Any = (), data_type: Any = None) -> None:
        self.dim, self.stride, self.data_type = tuple(dim), tuple(stride), data_type
        self.uid, self.is_output = 0, False

    def set_uid(self, uid: int) -> Operand:
        self.uid = uid
        return self

    def set_output(self, is_output: bool) -> Operand:
        self.is_output = is_output
        return self

    def set_dim(self, dim: list[int]) -> Operand:
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride: list[int]) -> Operand:
        self.stride = tuple(stride)
        return self

    def set_data_type(self, data_type: DataType) -> Operand:
        self.data_type = data_type
        return self

    def at(self, address: int) -> Any:
        """The array that lies there."""
        import cupy

        kind = np.dtype(self.data_type.value)
        last = sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = cupy.cuda.UnownedMemory(address, (last + 1) * kind.itemsize, None)
        strides = tuple(s * kind.itemsize for s in self.stride)
        return cupy.ndarray(self.dim, kind, cupy.cuda.MemoryPointer(memory, 0), strides)


class Graph:
    """One operation. refuses_gaps: as engines that read only arrays without gaps."""

    refuses_gaps = False
    runs: list[str] = []  # of all graphs

    def __init__(self, **_: Any) -> None:
        self.inputs: list[Operand] = []
        self.outputs: list[Operand] = []

    def tensor(self, **described: Any) -> Operand:
        self.inputs.append(Operand(**described))
        return self.inputs[-1]

    def _make(self, name: str, count: int, inputs: list[Operand], **options: Any) -> Any:
        self.name, self.inputs, self.options = name, inputs, options
        self.outputs = [Operand() for _ in range(count)]
        return self.outputs if count > 1 else self.outputs[0]

    def sdpa(self, *, q: Any, k: Any, v: Any, is_inference: bool, **options: Any) -> Any:
        assert not is_inference
        return self._make("sdpa", 2, [q, k, v], **options)

    def sdpa_backward(
        self, *, q: Any, k: Any, v: Any, o: Any, dO: Any, stats: Any, **options: Any
    ) -> Any:
        return self._make("sdpa_backward", 3, [dO, q, k, v, o, stats], **options)

    def conv_fprop(self, *, image: Any, weight: Any, **windows: Any) -> Any:
        return self._make("conv_fprop", 1, [image, weight], **windows)

    def conv_dgrad(self, *, loss: Any, filter: Any, **windows: Any) -> Any:
        return self._make("conv_dgrad", 1, [loss, filter], **windows)

    def conv_wgrad(self, *, image: Any, loss: Any, **windows: Any) -> Any:
        return self._make("conv_wgrad", 1, [loss, image], **windows)

    def check_support(self) -> None:
        for x in self.inputs:
            step, is_packed = 1, True
            for n, stride in zip(reversed(x.dim), reversed(x.stride), strict=True):
                is_packed &= n == 1 or stride == step
                step *= n
            if self.refuses_gaps and not is_packed:
                raise NotSupported("no engine reads arrays with gaps")

    def _nothing(self, *_: Any) -> None:
        assert all(x.uid and x.data_type for x in (*self.inputs, *self.outputs))
        assert all(x.is_output for x in self.outputs)

    validate = build_operation_graph = create_execution_plans = _nothing
    deselect_numeric_notes = build_plans = _nothing

    def get_workspace_size(self) -> int:
        return SCRATCH_NBYTES

    def execute(self, places: dict[int, int], work: int, handle: Any) -> None:
        import cupy

        assert handle.stream == cupy.cuda.get_current_stream().ptr
        assert set(places) == {x.uid for x in (*self.inputs, *self.outputs)}
        assert all(address % 16 == 0 for address in places.values())
        scratch = Operand((SCRATCH_NBYTES // 4,), (1,), DataType.FLOAT).at(work)
        scratch[...] = np.nan
        self.runs.append(self.name)
        given = [cupy.asnumpy(x.at(places[x.uid])).astype(np.float64) for x in self.inputs]
        for x, made in zip(self.outputs, self._compute(given), strict=True):
            target = x.at(places[x.uid])
            assert target.size == prod(made.shape)
            target[...] = cupy.asarray(made.reshape(x.dim).astype(target.dtype))

    def _compute(self, given: list[Array]) -> tuple[Array, ...]:
        if self.name.startswith("sdpa"):
            options = {
                "scale": self.options["attn_scale"], "is_causal": self.options["use_causal_mask"]
            }  # fmt: skip
            return (
                attention(*given, **options)
                if self.name == "sdpa"
                else attention_grad(*given[:5], given[5][..., 0], **options)
            )
        return (self._convolve(*map(torch.tensor, given)).numpy(),)

    def _convolve(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: the image, else the gradient of the result."""
        windows = {key: tuple(value) for key, value in self.options.items()}
        convolve = (torch.nn.functional.conv2d, torch.nn.functional.conv3d)[a.ndim - 4]
        if self.name == "conv_fprop":
            return convolve(a, b, groups=a.shape[1] // b.shape[1], **windows)
        wanted = self.outputs[0].dim
        x = torch.zeros(wanted if self.name == "conv_dgrad" else b.shape, dtype=a.dtype)
        w = torch.zeros(wanted if self.name == "conv_wgrad" else b.shape, dtype=a.dtype)
        x, w = (x, b) if self.name == "conv_dgrad" else (b, w)
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        convolve(x, w, groups=x.shape[1] // w.shape[1], **windows).backward(a)
        made = x.grad if self.name == "conv_dgrad" else w.grad
        assert made is not None
        return made


class NotSupported(Exception):
    """No engine takes the graph."""


class Handle:
    stream: int


def _set_stream(*, handle: Handle, stream: int) -> None:
    handle.stream = stream


def front_end() -> ModuleType:
    """The module."""
    made: Any = ModuleType("cudnn")
    made.pygraph, made.data_type, made.cudnnGraphNotSupportedError = Graph, DataType, NotSupported
    made.create_handle, made.set_stream = Handle, _set_stream
    made.destroy_handle = lambda handle: None
    made.heur_mode = enum.Enum("heur_mode", "A FALLBACK")
    made.build_plan_policy = enum.Enum("build_plan_policy", "HEURISTICS_CHOICE")
    made.numerical_note = enum.Enum(
        "numerical_note",
        "NONDETERMINISTIC TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION",
    )
    return made
