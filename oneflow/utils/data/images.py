"""Images as arrays (height, width, channels) of uint8: decoded, cropped, resized.

Done by OpenCV if it is installed, else by Pillow (`pip install 'oneflow-actors[vision]'`). Their
results differ by rounding, and Pillow smooths images that it makes smaller.
"""

from __future__ import annotations

import io
import math
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from oneflow.core.errors import ConfigError

Image = np.ndarray[Any, Any]
Box = tuple[int, int, int, int]
"""Left, top, width and height of a part of an image."""


@cache
def opencv() -> ModuleType | None:
    """OpenCV, or None if it is not installed. One thread: readers are parallel themselves."""
    try:
        library = import_module("cv2")
    except ImportError:
        return None
    library.setNumThreads(1)
    return library


@cache
def pillow() -> ModuleType:
    """Pillow. Raises ConfigError if it is not installed either."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ConfigError(
            "images need Pillow or OpenCV: pip install 'oneflow-actors[vision]'"
        ) from None


def has_pillow() -> bool:
    """Is Pillow installed?"""
    try:
        pillow()
    except ConfigError:
        return False
    return True


CHANNELS = {"BGR": 3, "RGB": 3, "GRAY": 1}


def channels_of(color_space: str) -> int:
    """Channels of a color space: BGR, RGB or GRAY. Raises ConfigError for another."""
    if color_space.upper() not in CHANNELS:
        raise ConfigError(f"color_space {color_space!r} is none of {', '.join(CHANNELS)}")
    return CHANNELS[color_space.upper()]


def decode(data: bytes, color_space: str = "RGB") -> Image:
    """The pixels of an encoded image (JPEG, PNG ...). Raises ConfigError if it cannot be read."""
    channels_of(color_space)
    library = opencv()
    pixels = _by_pillow(data) if library is None else _by_opencv(library, data)
    return _colored(pixels, color_space.upper(), is_bgr=library is not None)


def _by_opencv(library: ModuleType, data: bytes) -> Image:
    pixels: Image | None = library.imdecode(np.frombuffer(data, np.uint8), library.IMREAD_COLOR)
    if pixels is None:
        raise ConfigError(f"{len(data)} bytes are no image that OpenCV reads")
    return pixels


def _by_pillow(data: bytes) -> Image:
    library = pillow()
    try:
        return np.asarray(library.open(io.BytesIO(data)).convert("RGB"))
    except OSError as error:
        raise ConfigError(f"{len(data)} bytes are no image that Pillow reads: {error}") from None


def _colored(pixels: Image, color_space: str, *, is_bgr: bool) -> Image:
    if color_space == "GRAY":
        weights = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue (BT.601)
        gray = pixels @ (weights[::-1] if is_bgr else weights)
        return np.rint(gray).astype(np.uint8)[..., None]
    return pixels if is_bgr == (color_space == "BGR") else np.ascontiguousarray(pixels[..., ::-1])


def random_box(
    rng: np.random.Generator,
    height: int,
    width: int,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (0.75, 1.333333),
    attempts: int = 10,
) -> Box:
    """A part with a random share `area` of an image and a random ratio of width to height; if none
    fits, the largest part in the middle whose ratio is allowed (Szegedy and others, CVPR 2015).
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(attempts):
        size = height * width * rng.uniform(*area)
        shape = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(size * shape)), round(math.sqrt(size / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(width - w + 1), rng.integers(height - h + 1)
            return int(left), int(top), w, h
    shape = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * shape)), min(height, round(width / shape))
    return (width - w) // 2, (height - h) // 2, w, h


def cropped(pixels: Image, box: Box) -> Image:
    """A part of an image, sharing its memory."""
    left, top, width, height = box
    return pixels[top : top + height, left : left + width]


INTERPOLATIONS = ("auto", "nearest_neighbor", "nearest", "bilinear", "bicubic", "area")


def resized(pixels: Image, width: int, height: int, interpolation: str = "auto") -> Image:
    """An image in another size. interpolation: auto is area where the image becomes smaller, else
    bilinear. Raises ConfigError for an unknown one.
    """
    if interpolation not in INTERPOLATIONS:
        raise ConfigError(f"interpolation {interpolation!r} is none of {', '.join(INTERPOLATIONS)}")
    if pixels.shape[:2] == (height, width):
        return pixels
    if interpolation == "auto":
        grows = width * height >= pixels.shape[0] * pixels.shape[1]
        interpolation = "bilinear" if grows else "area"
    interpolation = interpolation.removesuffix("_neighbor")
    library = opencv()
    if library is not None:
        flag = getattr(library, "INTER_" + _OPENCV[interpolation])
        made: Image = library.resize(pixels, (width, height), interpolation=flag)
        return made if made.ndim == 3 else made[..., None]
    kind = getattr(pillow().Resampling, _PILLOW[interpolation])
    gray = pixels.shape[2] == 1
    whole = pillow().fromarray(pixels[..., 0] if gray else pixels)
    made = np.asarray(whole.resize((width, height), kind))
    return made[..., None] if gray else made


_OPENCV = {"nearest": "NEAREST", "bilinear": "LINEAR", "bicubic": "CUBIC", "area": "AREA"}
_PILLOW = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC", "area": "BOX"}


def random_resized_crop(
    data: bytes,
    rng: np.random.Generator,
    width: int,
    height: int,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (0.75, 1.333333),
    attempts: int = 10,
    color_space: str = "RGB",
) -> Image:
    """A random part of an encoded image in the size that is asked for.

    With Pillow a JPEG is decoded at a half, a quarter or an eighth of its size where the part has
    at least twice the pixels that are wanted in each direction, and only the part is converted.
    """
    if opencv() is not None:
        pixels = decode(data, color_space)
        box = random_box(rng, pixels.shape[0], pixels.shape[1], area, ratio, attempts)
        return resized(np.ascontiguousarray(cropped(pixels, box)), width, height, "bilinear")
    channels_of(color_space)
    library = pillow()
    try:
        image = library.open(io.BytesIO(data))
        full = image.size
        left, top, w, h = random_box(rng, full[1], full[0], area, ratio, attempts)
        shrink = max(1, min(w // width, h // height, 8))
        image.draft("RGB", (full[0] // shrink, full[1] // shrink))
        by_x, by_y = image.size[0] / full[0], image.size[1] / full[1]
        box = (left * by_x, top * by_y, (left + w) * by_x, (top + h) * by_y)
        image = image if image.mode == "RGB" else image.convert("RGB")
        made = image.resize((width, height), library.Resampling.BILINEAR, box)
    except OSError as error:
        raise ConfigError(f"{len(data)} bytes are no image that Pillow reads: {error}") from None
    return _colored(np.asarray(made), color_space.upper(), is_bgr=False)
