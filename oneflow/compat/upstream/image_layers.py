"""Images of their own sizes as layers: decoded, resized, turned around, made one batch.

Each takes and gives tensor buffers of images (H, W, C); in a graph they stand for those of each
step (oneflow/utils/data/pipelines.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow.compat.upstream.readers import Array, Batch, arrays_of, buffer_of, place_of
from oneflow.compat.upstream.tensor_buffers import BufferTensor
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DTypeLike, dtype_of, uint8
from oneflow.core.errors import ConfigError
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor
from oneflow.utils.data import images
from oneflow.utils.data.pipelines import in_parallel, made, tensor_of

INTERPOLATIONS = {"Linear": "bilinear", "NN": "nearest_neighbor", "Cubic": "bicubic"}


class ImageResize(Module):
    """Images in another size, as (images, scale, new size).

    target_size: (width, height): the images are a tensor (batch, height, width, channels), scale a
    float32 tensor (batch, 2) of width and height, the new size None.  keep_aspect_ratio:
    target_size is the length of the shorter side (resize_side="longer": of the longer), as far as
    the other one is not longer than max_size (shorter than min_size); the images are a buffer,
    scale and new size (width, height; int32) tensors.  Other arguments are older spellings.
    """

    def __init__(
        self,
        target_size: int | Sequence[int] | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        keep_aspect_ratio: bool = False,
        resize_side: str = "shorter",
        channels: int = 3,
        dtype: DTypeLike | None = None,
        interpolation_type: str = "auto",
        name: str | None = None,
        color_space: str | None = None,
        interp_type: str | None = None,
        resize_shorter: int = 0,
        resize_x: int = 0,
        resize_y: int = 0,
    ) -> None:
        super().__init__()
        if resize_x > 0 and resize_y > 0:
            target_size, keep_aspect_ratio = (resize_x, resize_y), False
        if resize_shorter > 0:
            target_size, keep_aspect_ratio, resize_side = resize_shorter, True, "shorter"
        if resize_side not in ("shorter", "longer"):
            raise ConfigError(f"resize_side {resize_side!r} is neither shorter nor longer")
        self.channels = channels if color_space is None else images.channels_of(color_space)
        self.interpolation = interpolation_type
        if interp_type is not None:
            self.interpolation = INTERPOLATIONS.get(interp_type, interp_type)
        self.keep_aspect_ratio, self.resize_longer = keep_aspect_ratio, resize_side == "longer"
        self.min_size, self.max_size = min_size or 0, max_size or 0
        self.dtype = dtype_of(dtype or uint8)
        self.size = _sizes(target_size, 1 if keep_aspect_ratio else 2)

    def forward(self, input: Batch) -> tuple[Tensor | Batch, Tensor, Tensor | None]:
        done = made(self._resized, input)
        scale = tensor_of(self._scale, input, done)
        if self.keep_aspect_ratio:
            return done, scale, tensor_of(self._new_size, done)
        return tensor_of(self._stacked, done), scale, None

    def _resized(self, batch: BufferTensor) -> BufferTensor:
        return buffer_of(in_parallel(self._one, arrays_of(batch)), place_of(batch))

    def _one(self, pixels: Array) -> Array:
        width, height = self._wanted(*pixels.shape[:2])
        return images.resized(pixels, width, height, self.interpolation)

    def _wanted(self, height: int, width: int) -> tuple[int, int]:
        """Width and height of an image when it is resized."""
        if not self.keep_aspect_ratio:
            return self.size[0], self.size[1]
        short, long = sorted((height, width))
        one, bound = self.size[0], self.min_size if self.resize_longer else self.max_size
        if self.resize_longer:
            other = round(one * short / long)
            short_now, long_now = (
                (bound, round(bound * long / short)) if other < bound else (other, one)
            )
        else:
            other = round(one * long / short)
            over = bound and other > bound
            short_now, long_now = (round(bound * short / long), bound) if over else (one, other)
        return (short_now, long_now) if width <= height else (long_now, short_now)

    def _stacked(self, batch: BufferTensor) -> Tensor:
        whole = np.stack(arrays_of(batch))
        if whole.shape[-1] != self.channels:
            raise ConfigError(f"images have {whole.shape[-1]} channels, not {self.channels}")
        return place_of(batch).tensor(whole.astype(self.dtype.np, copy=False))

    def _scale(self, before: BufferTensor, after: BufferTensor) -> Tensor:
        old, new = _widths_and_heights(before), _widths_and_heights(after)
        return place_of(before).tensor((new / old).astype(np.float32))

    def _new_size(self, batch: BufferTensor) -> Tensor:
        return place_of(batch).tensor(_widths_and_heights(batch).astype(np.int32))


def _sizes(target: int | Sequence[int] | None, count: int) -> tuple[int, ...]:
    sizes = (target,) if isinstance(target, int) else tuple(target or ())
    if len(sizes) != count or not all(isinstance(s, int) and s > 0 for s in sizes):
        wanted = "one number" if count == 1 else "(width, height)"
        raise ConfigError(f"ImageResize: target_size is {target!r}, but {wanted} is needed")
    return sizes


def _widths_and_heights(batch: BufferTensor) -> Array:
    return np.array([a.shape[1::-1] for a in arrays_of(batch)], np.float64)


class _EachImage(Module):
    """The base of layers that do something with each image of a buffer by itself."""

    def forward(self, input: Batch) -> Batch:
        batch: Batch = made(self._all, input)
        return batch

    def _all(self, batch: BufferTensor) -> BufferTensor:
        return buffer_of(in_parallel(self._one, arrays_of(batch)), place_of(batch))

    @abstractmethod
    def _one(self, array: Array) -> Array:
        """The image that becomes of one image."""


class ImageDecode(_EachImage):
    """Encoded images (one-dimensional uint8 tensors) as pixels (H, W, C) of a dtype."""

    def __init__(self, dtype: DTypeLike = uint8, color_space: str = "BGR") -> None:
        super().__init__()
        images.channels_of(color_space)
        self.dtype, self.color_space = dtype_of(dtype), color_space

    def _one(self, array: Array) -> Array:
        pixels = images.decode(array.tobytes(), self.color_space)
        return pixels.astype(self.dtype.np, copy=False)


class ImageNormalize(_EachImage):
    """Images minus `mean`, divided by `std`, in float32. mean, std: a number per channel."""

    def __init__(self, std: Sequence[float], mean: Sequence[float]) -> None:
        super().__init__()
        self.std, self.mean = np.asarray(std, np.float32), np.asarray(mean, np.float32)

    def _one(self, array: Array) -> Array:
        done: Array = (array.astype(np.float32) - self.mean) / self.std
        return done


class ImageFlip(Module):
    """Images turned around by a code for each: 0 not, 1 left to right, 2 upside down, 3 both."""

    def forward(self, images: Batch, flip_code: Tensor | int) -> Batch:
        code = flip_code if isinstance(flip_code, int) else flip_code.detach()
        batch: Batch = made(_flipped, images, code)
        return batch


def _flipped(batch: BufferTensor, flip_code: Tensor | int) -> BufferTensor:
    arrays = arrays_of(batch)
    codes = flip_code if isinstance(flip_code, int) else flip_code.numpy()
    each = np.broadcast_to(np.asarray(codes).reshape(-1), len(arrays))
    turned = [
        a[:: -1 if c & 2 else 1, :: -1 if c & 1 else 1] for a, c in zip(arrays, each, strict=True)
    ]
    return buffer_of([np.ascontiguousarray(a) for a in turned], place_of(batch))


class ImageBatchAlign(Module):
    """Images as one tensor (batch, H, W, C), filled up with 0 at the right and below.

    H and W are the largest in the batch, rounded up to a multiple of `alignment`. shape: the
    largest (H, W, C) there may be; in a graph, whose tensors have one size, the size there is.
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike, alignment: int) -> None:
        super().__init__()
        if alignment < 1:
            raise ConfigError(f"ImageBatchAlign: alignment must be at least 1, got {alignment}")
        self.shape, self.dtype, self.alignment = tuple(shape), dtype_of(dtype), alignment

    def forward(self, input: Batch) -> Tensor:
        fill: Callable[..., Tensor] = self._largest if current_mode().reads_later else self._aligned
        return tensor_of(fill, input)

    def _aligned(self, batch: BufferTensor) -> Tensor:
        sizes = [a.shape for a in arrays_of(batch)]
        return self._filled(batch, max(s[0] for s in sizes), max(s[1] for s in sizes))

    def _largest(self, batch: BufferTensor) -> Tensor:
        return self._filled(batch, *self.shape[:2])

    def _filled(self, batch: BufferTensor, height: int, width: int) -> Tensor:
        arrays = arrays_of(batch)
        sizes = [-(-n // self.alignment) * self.alignment for n in (height, width)]
        out = np.zeros((len(arrays), *sizes, arrays[0].shape[2]), self.dtype.np)
        for row, array in zip(out, arrays, strict=True):
            if any(n > bound for n, bound in zip(array.shape, row.shape, strict=True)):
                raise ConfigError(f"an image of {array.shape} is larger than {row.shape}")
            row[: array.shape[0], : array.shape[1]] = array
        return place_of(batch).tensor(out)


class TensorBufferToListOfTensors(Module):
    """The tensors of a buffer, as a tuple. The arguments are upstream's, and not needed."""

    def __init__(
        self,
        out_shapes: object = None,
        out_dtypes: object = None,
        out_num: int = 1,
        dynamic_out: bool = False,
    ) -> None:
        super().__init__()

    def forward(self, input: BufferTensor) -> tuple[Any, ...]:
        return input.parts
