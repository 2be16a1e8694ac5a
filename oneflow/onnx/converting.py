"""The two functions of upstream's `oneflow_onnx`: a graph as a model, and compared with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.functional.from_data import tensor
from oneflow.graph.graph import Graph
from oneflow.graph.tree import map_tensors, tensors_of
from oneflow.io.checkpoint import load
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.api import export
from oneflow.onnx.writer.tracing import arguments_of, traced
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import onnxruntime

RTOL, ATOL = 1e-2, 1e-5
"""The relative and absolute tolerance of comparisons with the runtime."""
DEVICES = ("cpu", "gpu", "cpu_global", "gpu_global")


def export_onnx_model(
    graph: Graph,
    external_data: bool = False,
    opset: int | None = None,
    flow_weight_dir: str | os.PathLike[str] | None = None,
    onnx_model_path: str | os.PathLike[str] | None = None,
    dynamic_batch_size: bool = False,
) -> tuple[str, Callable[[], None]]:
    """Write a compiled graph as an ONNX model.

    Args:
        graph: Called once, or compiled by `_compile`.
        external_data: Put weights into a file of their own.
        opset: Version of the operator set; default: 17.
        flow_weight_dir: A saved state dict of the graph, whose weights are taken.
        onnx_model_path: A file, or a folder, which gets model.onnx; default: that of temporary
            files.
        dynamic_batch_size: Let dim 0 of all inputs have any size.

    Returns:
        The file, and a function without arguments that upstream's users call in the end.

    Raises:
        OnnxExportError: For an op that has no form in ONNX, and for a graph that was never called.
    """
    path = os.fspath(tempfile.gettempdir() if onnx_model_path is None else onnx_model_path)
    if os.path.isdir(path):
        path = os.path.join(path, "model.onnx")
    weights = None if flow_weight_dir is None else _weights(load(flow_weight_dir))
    axes = None
    if dynamic_batch_size:
        inputs = traced(graph, (), {}).inputs
        axes = {name: {0: "batch_size"} for name, type_ in inputs if type_.ndim}
    export(
        graph,
        (),
        path,
        opset_version=opset,
        dynamic_axes=axes,
        external_data=external_data,
        weights=weights,
    )
    return path, _nothing


def _nothing() -> None:
    """Weights go from the graph into the model, so there is no folder of them to remove."""


def _weights(state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tensors of a state dict, of which those of graphs have one of each module, by their names."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            found |= _weights(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
    return found


def convert_to_onnx_and_check(
    graph: Graph,
    print_outlier: bool = True,
    external_data: bool = False,
    ort_optimize: bool = True,
    opset: int | None = None,
    flow_weight_dir: str | os.PathLike[str] | None = None,
    onnx_model_path: str | os.PathLike[str] | None = None,
    dynamic_batch_size: bool = False,
    device: str = "cpu",
    input_tensor_range: Sequence[float] | None = None,
) -> None:
    """Write a compiled graph as a model, and compare both on random inputs.

    Args:
        graph: See `export_onnx_model`, also for the arguments that are not named here.
        print_outlier: Print the elements that differ too much.
        ort_optimize: Let onnxruntime optimize the model.
        dynamic_batch_size: As for the export; other batches cannot be compared, as the graph has
            one.
        device: Where the graph runs: cpu, gpu, cpu_global or gpu_global.
        input_tensor_range: (low, high) of the random inputs; default: -10 to 10.

    Raises:
        AssertionError: If results differ by more than 1e-2 of them and 1e-5.
    """
    if device not in DEVICES:
        raise OnnxExportError(f"device is one of {', '.join(DEVICES)}, got {device!r}")
    low, high = (-10, 10) if input_tensor_range is None else input_tensor_range
    if low >= high:
        raise OnnxExportError(f"input_tensor_range must rise, got {input_tensor_range}")
    path, _ = export_onnx_model(
        graph, external_data, opset, flow_weight_dir, onnx_model_path, dynamic_batch_size
    )
    args, kwargs = arguments_of(graph)
    rng = np.random.default_rng()
    given = map_tensors((args, kwargs), lambda x: _random(x, rng, low, high, device))
    expected = tensors_of(graph(*given[0], **given[1]))
    session = _session(path, ort_optimize)
    names = [i.name for i in session.get_inputs()]
    feeds = dict(zip(names, (x.numpy() for x in tensors_of(given)), strict=True))
    for want, got in zip(expected, session.run(None, feeds), strict=True):
        compare(got, want.numpy(), print_outlier)


def _random(x: Tensor, rng: np.random.Generator, low: float, high: float, device: str) -> Tensor:
    array = rng.uniform(low, high, x.meta.shape).astype(x.meta.dtype.np)
    made = tensor(array)
    if device.endswith("_global") or x._placement is not None:
        placement = x._placement or Placement("cuda" if device.startswith("gpu") else "cpu", [0])
        made = made.to_global(placement=placement, sbp=x._sbp or [BROADCAST])
    elif device == "gpu":
        made = made.to("cuda")
    found: Tensor = made
    return found


def _session(path: str, optimizes: bool) -> onnxruntime.InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise OnnxExportError(
            "convert_to_onnx_and_check needs onnxruntime: pip install 'oneflow-actors[onnx]'"
        ) from None
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    level = levels.ORT_ENABLE_EXTENDED if optimizes else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], print_outlier: bool) -> None:
    """Raise AssertionError where two arrays differ by more than RTOL and ATOL."""
    is_close = np.isclose(got, want, rtol=RTOL, atol=ATOL, equal_nan=True)
    if is_close.all():
        return
    if print_outlier:
        for place in np.argwhere(~is_close)[:100]:
            at = tuple(map(int, place))
            print(f"onnx{list(at)} = {got[at]}, oneflow{list(at)} = {want[at]}")
    raise AssertionError(
        f"{(~is_close).sum()} of {is_close.size} elements of a result {got.dtype}{list(got.shape)} "
        f"differ by more than {RTOL} of them and {ATOL}"
    )
