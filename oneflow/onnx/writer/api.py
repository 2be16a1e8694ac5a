"""`flow.onnx.export`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.distributed.world import world
from oneflow.graph.graph import Graph
from oneflow.io.files import AnyPath
from oneflow.nn.module import Module
from oneflow.onnx.errors import OnnxExportError
from oneflow.onnx.writer.dynamic import Axes, traced_dynamic
from oneflow.onnx.writer.tracing import Traced, TrainingMode, evaluating, exporting, traced
from oneflow.onnx.writer.writing import nbytes_of, write_model

if TYPE_CHECKING:
    import onnx

OPSET = 17
OLDEST = 7  # of operator sets that onnxruntime runs
"""The operator set that is written unless another one is asked for."""
LARGEST = 2_000_000_000
"""Weights of more bytes go to a file of their own: a file of ONNX has at most 2 GiB."""

Names = Mapping[str, "Mapping[int, str] | Sequence[int]"]


def export(
    model: Module | Graph,
    args: object = (),
    f: AnyPath | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_axes: Names | None = None,
    external_data: bool = False,
    training: TrainingMode | bool = False,
    weights: Mapping[str, object] | None = None,
    export_params: bool = True,
    do_constant_folding: bool = True,
    verbose: bool = False,
) -> onnx.ModelProto:
    """Write a module or a graph as an ONNX model, made of the logical graph that nn.Graph traces.

    Args:
        model: A module, in evaluation unless `training` says otherwise; or a graph, as it is.
        args: Example arguments: a tensor, or a tuple. A graph that was called needs none.
        f: The file to write; None: none is written.
        kwargs: Example arguments by keyword.
        input_names: Names of the input tensors; default: those of the parameters.
        output_names: Names of the results; default: keys of a dict, else "output" or "output.0"...
        opset_version: Version of the operator set; default: 17.
        dynamic_axes: Dims of any size, by the names of inputs: {"x": {0: "batch"}} or {"x": [0]}.
        external_data: Put weights into a file of their own beside `f`, as those over 2 GB are.
        training: EVAL; PRESERVE, or True, to leave the module in its mode; TRAINING.
        weights: Values of variables by name that are taken instead of the present ones.
        export_params: False raises OnnxExportError: weights are always written.
        do_constant_folding: PyTorch's, and changes nothing: runtimes fold constants.
        verbose: Print the model as text.

    Returns:
        The model. Weights have the names of the parameters.

    Raises:
        OnnxExportError: For an op that has no form in ONNX, with the user's file and line.

    Example:
        >>> import oneflow as flow
        >>> model = flow.nn.Sequential(flow.nn.Linear(4, 2), flow.nn.ReLU())
        >>> made = flow.onnx.export(model, flow.zeros(3, 4), dynamic_axes={"input": {0: "rows"}})
        >>> [node.op_type for node in made.graph.node]
        ['Gemm', 'Relu', 'Identity']
    """
    _require_onnx()
    if not export_params:
        raise OnnxExportError("onnx.export: a model without its weights is not written")
    given = args if isinstance(args, tuple) else (args,)
    named = dict(kwargs or {})
    opset = _opset(opset_version)
    with exporting(), evaluating(model, training):
        source = traced(model, given, named)
        axes = _axes(dynamic_axes or {}, source, input_names or (), output_names or ())
        if axes:
            source = traced_dynamic(model, given, named, axes)
    made = write_model(source, opset, input_names or (), output_names or (), weights)
    if nbytes_of(made) < LARGEST:
        _check(made)
    if f is not None and _writes(source):
        save(made, f, external_data)
    if verbose:
        print(_text_of(made))
    return made


def _opset(version: int | None) -> int:
    from onnx import defs

    newest = defs.onnx_opset_version()
    if version is not None and not OLDEST <= version <= newest:
        raise OnnxExportError(
            f"onnx.export: opset_version is {version}; it must be {OLDEST} to {newest}"
        )
    return OPSET if version is None else version


def _text_of(model: onnx.ModelProto) -> str:
    from onnx import printer

    return str(printer.to_text(model))


def _writes(source: Traced) -> bool:
    """Whether this rank writes the file: rank 0 of a graph that all ranks have."""
    return len(source.graph.rank_ids) == 1 or world().rank == 0


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise OnnxExportError(
            "flow.onnx needs the package onnx: pip install 'oneflow-actors[onnx]'"
        ) from None


def _check(model: onnx.ModelProto) -> None:
    from onnx import checker

    try:
        checker.check_model(model, full_check=True)
    except Exception as error:  # of protobuf, of the checker or of shape inference
        raise OnnxExportError(
            f"onnx.export: the model that was made is not valid: {error}"
        ) from error


def _axes(given: Names, source: Traced, names: Sequence[str], outputs: Sequence[str]) -> Axes:
    """Names of dynamic dims by the number of the input. Those of outputs follow from these."""
    known = [*names, *(name for name, _ in source.inputs[len(names) :])]
    found: dict[int, dict[int, str]] = {}
    for name, dims in given.items():
        if name in outputs or name in source.outputs:
            continue  # their sizes follow
        if name not in known:
            raise OnnxExportError(
                f"onnx.export: dynamic_axes names {name!r}; inputs are {', '.join(known)}"
            )
        number = known.index(name)
        ndim = source.inputs[number][1].ndim
        called = dims if isinstance(dims, Mapping) else {d: f"{name}_dim{d}" for d in dims}
        for dim, word in called.items():
            if not -ndim <= dim < ndim:
                raise OnnxExportError(
                    f"onnx.export: dynamic_axes names dim {dim} of {name}, which is "
                    f"{source.inputs[number][1]}"
                )
            found.setdefault(number, {})[dim % ndim] = str(word)
    return found


def save(model: onnx.ModelProto, path: AnyPath, external_data: bool = False) -> None:
    """Write a model, its weights beside it if asked or if they are too large."""
    import onnx

    path = os.fspath(path)
    if not external_data and nbytes_of(model) < LARGEST:
        onnx.save(model, path)
        return
    name = f"{os.path.basename(path)}.data"
    beside = os.path.join(os.path.dirname(path), name)
    if os.path.exists(beside):
        os.remove(beside)  # the library would append to it
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=1024)
