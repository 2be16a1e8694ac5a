"""Graphs of cuDNN: attention of half floats, convolutions. NVIDIA's front end builds them, once for
each layout of their operands; a plan is run on CuPy's memory, in the order of its current stream,
and may be recorded.

`attention`, `attention_grad` and `conv` return a Plan, or why there is none, as text: the callers
have kernels of their own for all that is refused. Convolutions repeat to the bit and round float32
to nothing less. The gradient of attention adds d_q atomically: the variant that does not takes as
much memory as the scores would.

A target names the device of a plan: the current GPU, or a description of one (cuDNN compiles for
devices that are not there, so plans can be tested without a GPU).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

from oneflow.core.config import current_config
from oneflow.core.dtype import uint8
from oneflow.core.errors import DeviceError
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, address

log = logging.getLogger(__name__)
HALVES = ("float16", "bfloat16")
_KINDS = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}
_EXACT = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
"""Notes of engines that give less than float32."""
_ALIGNMENT = 16  # bytes, of every operand
_handles = threading.local()
_plans: dict[Hashable, Plan | str] = {}
MOST_PLANS = 4096
"""Plans that are remembered; beyond it all are forgotten."""


class Layout(NamedTuple):
    """An array as cuDNN sees it. strides: elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Plan(NamedTuple):
    """A graph that is ready to run. nbytes: of its workspace."""

    graph: Any
    nbytes: int

    def run(self, arrays: dict[int, Array], work: Array) -> None:
        """Start it. Raises DeviceError.

        arrays: by the numbers that the builder gave to its operands.
        """
        places = {number: address(array) for number, array in arrays.items()}
        try:
            self.graph.execute(places, address(work) if self.nbytes else 0, handle=handle())
        except RuntimeError as error:
            sizes = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in arrays.values())
            raise DeviceError(
                f"cuDNN failed to start a plan for {sizes}: {error}; ONEFLOW_CUDNN=0 leaves it out"
            ) from error


def layout_of(x: Array) -> Layout:
    return Layout(x.shape, tuple(s // x.itemsize for s in x.strides))


def packed(shape: tuple[int, ...]) -> Layout:
    """An array without gaps."""
    strides, size = [], 1
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return Layout(shape, tuple(reversed(strides)))


def without_gaps(x: Array) -> Array:
    """x where plans for arrays without gaps can read it: itself, or a copy."""
    import cupy

    made: Array = cupy.ascontiguousarray(x)
    return made.copy() if address(made) % _ALIGNMENT else made


def library() -> Any | None:
    """The front end; None if it is not installed, unusable here or switched off (ONEFLOW_CUDNN)."""
    return _library() if current_config().cudnn else None


@cache
def _library() -> Any | None:
    try:
        import cudnn
    except ImportError as error:
        log.debug("no cuDNN: %s", error)
        return None
    try:
        cudnn.destroy_handle(cudnn.create_handle())
    except (OSError, RuntimeError) as error:
        log.warning("cuDNN is installed and does not run here; other kernels are taken: %s", error)
        return None
    return cudnn


def handle() -> Any:
    """cuDNN for the current thread on the current GPU, in the order of the current stream."""
    import cudnn
    import cupy

    made: dict[int, Any] = _handles.__dict__.setdefault("made", {})
    index = cupy.cuda.runtime.getDevice()
    if index not in made:
        made[index] = cudnn.create_handle()
    cudnn.set_stream(handle=made[index], stream=cupy.cuda.get_current_stream().ptr)
    return made[index]


def planned(builder: Callable[..., Plan | str], *key: Hashable) -> Plan | str:
    """`builder(*key)` for the current GPU, built once."""
    if library() is None:
        return "no cuDNN"
    import cupy

    place = (cupy.cuda.runtime.getDevice(), builder.__name__, key)
    found = _plans.get(place)
    if found is None:
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        found = _plans[place] = builder(*key, target={"handle": handle()})
        log.debug("cuDNN, %s of %s: %s", builder.__name__, key, found)
    return found


def workspace(plan: Plan | str) -> tuple[TensorType, ...]:
    """The workspace of a kernel with a plan; none without."""
    return () if isinstance(plan, str) else (TensorType((max(plan.nbytes, 1),), uint8),)


def ran(plan: Plan | str, arrays: dict[int, Array], work: Array) -> bool:
    """Run a plan for arrays as they lie; False: they cannot be read there, or `work`, which was
    planned for arrays without gaps, is too small."""
    if isinstance(plan, str) or plan.nbytes > work.nbytes:
        return False
    if any(address(x) % _ALIGNMENT for x in arrays.values()):
        return False
    plan.run(arrays, work)
    return True


def _build(
    dtype: str, target: Attrs, fill: Callable[[Any, Any, Any], None], refused: tuple[str, ...] = ()
) -> Plan | str:
    """fill: makes the operations, of the graph, the front end and a function for operands.

    refused: notes of engines that are not taken.
    """
    import cudnn

    kinds, notes = cudnn.data_type, cudnn.numerical_note
    io_type = getattr(kinds, _KINDS[dtype])
    graph = cudnn.pygraph(
        io_data_type=io_type,
        intermediate_data_type=kinds.FLOAT,
        compute_data_type=kinds.FLOAT,
        **target,
    )

    def operand(number: int, layout: Layout, is_float32: bool = False) -> Any:
        made = graph.tensor(
            dim=list(layout.shape),
            stride=list(layout.strides),
            data_type=kinds.FLOAT if is_float32 else io_type,
        )
        return made.set_uid(number)

    try:
        fill(graph, cudnn, operand)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(notes, name) for name in refused])
        graph.check_support()
        graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return Plan(graph, graph.get_workspace_size())


def _give(made: Any, number: int, layout: Layout, kind: Any) -> None:
    """Make a tensor of the graph an output, which lies so."""
    made.set_output(True).set_uid(number).set_dim(list(layout.shape))
    made.set_stride(list(layout.strides)).set_data_type(kind)


# ---- attention: arrays are (batch, heads, rows, elements) ----------------------------------------

OUT, STATISTICS, Q, K, V, D_OUT, D_Q, D_K, D_V = range(1, 10)


def _column(q: Layout) -> Layout:
    """Statistics: one number per row of q."""
    return packed((*q.shape[:3], 1))


def attention(
    dtype: str, q: Layout, k: Layout, v: Layout, scale: float, is_causal: bool, *, target: Attrs
) -> Plan | str:
    """Operands: Q, K, V; outputs without gaps: OUT, STATISTICS (the log of the sum of exponentials
    of each row, float32)."""
    if dtype not in HALVES:
        return f"no attention of {dtype}"

    def fill(graph: Any, cudnn: Any, operand: Any) -> None:
        out, statistics = graph.sdpa(
            q=operand(Q, q), k=operand(K, k), v=operand(V, v), is_inference=False,
            attn_scale=scale, use_causal_mask=is_causal,
        )  # fmt: skip
        kinds = cudnn.data_type
        _give(out, OUT, packed((*q.shape[:3], v.shape[3])), getattr(kinds, _KINDS[dtype]))
        _give(statistics, STATISTICS, _column(q), kinds.FLOAT)

    return _build(dtype, target, fill)


def attention_grad(
    dtype: str,
    d_out: Layout,
    q: Layout,
    k: Layout,
    v: Layout,
    out: Layout,
    scale: float,
    is_causal: bool,
    *,
    target: Attrs,
) -> Plan | str:
    """Operands: D_OUT, Q, K, V, OUT, STATISTICS; outputs without gaps: D_Q, D_K, D_V."""
    if dtype not in HALVES:
        return f"no attention of {dtype}"

    def fill(graph: Any, cudnn: Any, operand: Any) -> None:
        made = graph.sdpa_backward(
            q=operand(Q, q), k=operand(K, k), v=operand(V, v), o=operand(OUT, out),
            dO=operand(D_OUT, d_out), stats=operand(STATISTICS, _column(q), True),
            attn_scale=scale, use_causal_mask=is_causal,
        )  # fmt: skip
        kind = getattr(cudnn.data_type, _KINDS[dtype])
        for number, gradient, like in zip((D_Q, D_K, D_V), made, (q, k, v), strict=True):
            _give(gradient, number, packed(like.shape), kind)

    return _build(dtype, target, fill)


# ---- convolutions: arrays are (samples, channels, spatial ...) -----------------------------------

IMAGE, WEIGHT, RESULT = range(1, 4)


def conv(
    which: str,
    dtype: str,
    image: Layout,
    weight: Layout,
    result: Layout,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    *,
    target: Attrs,
) -> Plan | str:
    """RESULT = IMAGE with windows of WEIGHT ("forward"), or one of its gradients: for IMAGE
    ("data") or for WEIGHT ("filter"), which is the output then. Groups follow from the channels.
    """
    if dtype not in _KINDS:
        return f"no convolution of {dtype}"

    def fill(graph: Any, cudnn: Any, operand: Any) -> None:
        windows = {"padding": list(padding), "stride": list(stride), "dilation": list(dilation)}
        kind = getattr(cudnn.data_type, _KINDS[dtype])
        if which == "forward":
            made = graph.conv_fprop(
                image=operand(IMAGE, image), weight=operand(WEIGHT, weight), **windows
            )
            _give(made, RESULT, result, kind)
        elif which == "data":
            made = graph.conv_dgrad(
                loss=operand(RESULT, result), filter=operand(WEIGHT, weight), **windows
            )
            _give(made, IMAGE, image, kind)
        else:
            made = graph.conv_wgrad(
                image=operand(IMAGE, image), loss=operand(RESULT, result), **windows
            )
            _give(made, WEIGHT, weight, kind)

    refused = ("NONDETERMINISTIC", *(_EXACT if dtype == "float32" else ()))
    return _build(dtype, target, fill, refused)
