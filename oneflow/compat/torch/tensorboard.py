"""`torch.utils.tensorboard`: a writer of TensorBoard's files, over the package `tensorboard`.

`pip install 'oneflow-actors[tensorboard]'`; images need Pillow, figures Matplotlib.
"""

from __future__ import annotations

import importlib
import io
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from oneflow.core.errors import ArgumentError, OneFlowError, ShapeError
from oneflow.tensor.tensor import Tensor

__all__ = ["SummaryWriter"]

try:
    event_pb2 = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
except ImportError as error:
    raise ImportError(
        "utils.tensorboard needs the package tensorboard: pip install "
        "'oneflow-actors[tensorboard]'",
        name="tensorboard",
    ) from error

Array = np.ndarray[Any, Any]


class Event(Protocol):
    """A record of TensorBoard's files: see its event.proto."""

    wall_time: float
    step: int


def _plugin(name: str) -> Any:
    return importlib.import_module(f"tensorboard.plugins.{name}.summary_v2")


def _array(value: object) -> Array:
    """Return the values of a tensor, an array or a number."""
    if isinstance(value, Tensor):
        host = value.detach().cpu()
        return (host.float() if host.dtype.name == "bfloat16" else host).numpy()
    return np.asarray(value)


def _scalar(value: object) -> float:
    array = _array(value)
    if array.size != 1:
        raise ShapeError(f"SummaryWriter: a scalar is one number, got shape {array.shape}")
    return float(array.reshape(()))


def scalar(tag: str, value: object) -> Any:
    """Return the summary of a number."""
    one = summary_pb2.Summary.Value(tag=tag, simple_value=_scalar(value))
    return summary_pb2.Summary(value=[one])


def histogram(tag: str, values: object, buckets: int | None = None) -> Any:
    """Return the summary of the distribution of numbers."""
    return _plugin("histogram").histogram_pb(tag, _array(values).ravel(), buckets)


def text(tag: str, value: str) -> Any:
    """Return the summary of a text, which TensorBoard reads as Markdown."""
    return _plugin("text").text_pb(tag, value)


def image(tag: str, pixels: Array) -> Any:
    """Return the summary of an image of uint8, (height, width, channels)."""
    file = io.BytesIO()
    flat = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    importlib.import_module("PIL.Image").fromarray(flat).save(file, "PNG")
    height, width, channels = pixels.shape
    made = summary_pb2.Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=file.getvalue()
    )
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=made)])


def hparams(
    hparam_dict: Mapping[str, Any],
    metric_dict: Mapping[str, Any],
    hparam_domain_discrete: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Return the summaries of options of a run and of the names of its results."""
    made = importlib.import_module("tensorboard.plugins.hparams.summary_v2")
    kinds = {type(value) for value in hparam_dict.values()}
    if not kinds <= {bool, int, float, str}:
        raise ArgumentError(f"hparams: values are bools, numbers or texts, got {dict(hparam_dict)}")
    domains = hparam_domain_discrete or {}
    options = [
        made.HParam(name, made.Discrete(domains[name]) if name in domains else None)
        for name in hparam_dict
    ]
    results = [made.Metric(name) for name in metric_dict]
    return made.hparams_config_pb(options, results), made.hparams_pb(dict(hparam_dict))


def _pixels(value: object, dataformats: str) -> Array:
    """Return images as uint8 of (height, width, channels); several beside each other.

    Floats are of [0, 1].
    """
    array = _array(value)
    if len(dataformats) != array.ndim or set(dataformats) - set("NCHW"):
        raise ShapeError(
            f"SummaryWriter: shape {array.shape} has no dims {dataformats!r}; give dataformats"
        )
    order = [dataformats.index(c) for c in "NHWC" if c in dataformats]
    array = array.transpose(order)
    if "C" not in dataformats:
        array = array[..., None]
    if "N" in dataformats:
        array = np.concatenate(list(array), 1)
    if array.shape[-1] not in (1, 3, 4):
        raise ShapeError(f"SummaryWriter: an image has 1, 3 or 4 channels, got {array.shape[-1]}")
    if array.dtype.kind == "f":
        array = (array * 255.0).clip(0, 255)
    return np.ascontiguousarray(array.astype(np.uint8))


class SummaryWriter:
    """A writer of TensorBoard's files.

    log_dir: the folder; `runs/<time>_<host><comment>` by default.  purge_step: of a run that is
    taken up again, the step from which on older events in the folder count no more.  max_queue,
    flush_secs: values that wait for the writing thread, and how long at most.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
    ) -> None:
        if not log_dir:
            stamp = time.strftime("%b%d_%H-%M-%S")
            log_dir = Path("runs") / f"{stamp}_{socket.gethostname()}{comment}"
        self.log_dir = os.fspath(log_dir)
        self.purge_step = purge_step
        self._options = (max_queue, flush_secs, filename_suffix)
        self._writers: dict[str, Any] = {}
        if purge_step is not None:
            status = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._event(event_pb2.Event(session_log=status), purge_step, None)

    def _file(self, below: str = "") -> Any:
        """Return the file of the run, or of a part of it, opened when it is first needed."""
        if below not in self._writers:
            kind = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            folder = str(Path(self.log_dir, below)) if below else self.log_dir
            self._writers[below] = kind.EventFileWriter(folder, *self._options)
        return self._writers[below]

    def _event(
        self, event: Event, step: int | None, walltime: float | None, below: str = ""
    ) -> None:
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(_scalar(step))
        self._file(below).add_event(event)

    def _add(
        self, summary: object, step: int | None, walltime: float | None, below: str = ""
    ) -> None:
        self._event(event_pb2.Event(summary=summary), step, walltime, below)

    def get_logdir(self) -> str:
        """Return the folder."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Write a number."""
        self._add(scalar(tag, scalar_value), global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Write several numbers that one chart shows, each as a run of its own."""
        for name, value in tag_scalar_dict.items():
            below = f"{main_tag.replace('/', '_')}_{name}"
            self._add(scalar(main_tag, value), global_step, walltime, below)

    def add_histogram(
        self,
        tag: str,
        values: object,
        global_step: int | None = None,
        bins: str = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Write the distribution of numbers. max_bins: at most so many bars."""
        self._add(histogram(tag, values, max_bins), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: object,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Write an image: floats of [0, 1], or uint8."""
        self._add(image(tag, _pixels(img_tensor, dataformats)), global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: object,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Write images beside each other."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_figure(
        self,
        tag: str,
        figure: object,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Write a figure of Matplotlib, or a list of them; close: and close it."""
        for one in figure if isinstance(figure, list) else [figure]:
            agg = importlib.import_module("matplotlib.backends.backend_agg")
            canvas = agg.FigureCanvasAgg(one)
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())[..., :3]
            self.add_image(tag, pixels, global_step, walltime, "HWC")
            if close:
                importlib.import_module("matplotlib.pyplot").close(one)

    def add_text(
        self,
        tag: str,
        text_string: str,
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Write a text, which TensorBoard shows as Markdown."""
        self._add(text(tag, text_string), global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Write options of a run and its results, as a run below this one."""
        below = str(time.time()) if run_name is None else run_name
        for summary in hparams(hparam_dict, metric_dict, hparam_domain_discrete):
            self._add(summary, None, None, below)
        for name, value in metric_dict.items():
            self._add(scalar(name, value), global_step, None, below)

    def flush(self) -> None:
        """Write all that waits."""
        for one in self._writers.values():
            one.flush()

    def close(self) -> None:
        """Write all that waits, and close the files."""
        for one in self._writers.values():
            one.close()
        self._writers.clear()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse(self, name: str, instead: str) -> NoReturn:
        raise OneFlowError(f"SummaryWriter.{name}: not there; {instead}")

    def add_graph(self, *_: object, **__: object) -> NoReturn:
        """Refuse: TensorBoard shows traces of PyTorch."""
        self._refuse("add_graph", "print(graph) shows the ops of an nn.Graph")

    def add_embedding(self, *_: object, **__: object) -> NoReturn:
        """Refuse: save the vectors with `flow.save`."""
        self._refuse("add_embedding", "save the vectors with flow.save")

    def add_audio(self, *_: object, **__: object) -> NoReturn:
        """Refuse: write the sound as a file."""
        self._refuse("add_audio", "write the sound as a file")

    def add_pr_curve(self, *_: object, **__: object) -> NoReturn:
        """Refuse: TensorBoard's own code for it needs TensorFlow."""
        self._refuse("add_pr_curve", "draw the curve with Matplotlib and add_figure")

    add_video: Callable[..., NoReturn] = add_audio
    add_mesh: Callable[..., NoReturn] = add_embedding
