"""`flow.data`: a data set that upstream fetches for its examples."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oneflow.core.errors import OneFlowError

__all__ = ["load_mnist"]

Part = tuple[NDArray[np.float32], NDArray[np.int32]]
FILES = {
    "train": ("train-images-idx3", "train-labels-idx1"),
    "test": ("t10k-images-idx3", "t10k-labels-idx1"),
}
NUMBERS_BEFORE = {"idx3": 16, "idx1": 8}
"""Bytes of the header of a file, by its kind."""


def load_mnist(
    train_batch_size: int = 100,
    test_batch_size: int = 100,
    data_format: str = "NCHW",
    root: str | Path = "data-test/mnist",
) -> tuple[Part, Part]:
    """MNIST from its four files in `root`, which may be packed (.gz): ((train images, labels),
    (test images, labels)), images as floats of 0 to 1 of (batches, batch, 1, 28, 28).

    Nothing is downloaded: OneFlowError says which file is missing.
    """
    if data_format not in ("NCHW", "NHWC"):
        raise ValueError(f"data_format is NCHW or NHWC, got {data_format!r}")
    sizes = {"train": train_batch_size, "test": test_batch_size}
    train, test = (_part(Path(root), *FILES[p], sizes[p], data_format) for p in FILES)
    return train, test


def _part(root: Path, images: str, labels: str, batch: int, data_format: str) -> Part:
    pixels, classes = _bytes(root, images), _bytes(root, labels)
    count = len(classes) // batch
    one = (1, 28, 28) if data_format == "NCHW" else (28, 28, 1)
    shaped = pixels[: count * batch * 784].reshape(count, batch, *one)
    return shaped.astype(np.float32) / np.float32(255), (
        classes[: count * batch].reshape(count, batch).astype(np.int32)
    )


def _bytes(root: Path, name: str) -> NDArray[np.uint8]:
    plain, packed = root / f"{name}-ubyte", root / f"{name}-ubyte.gz"
    if plain.exists():
        raw = plain.read_bytes()
    elif packed.exists():
        raw = gzip.decompress(packed.read_bytes())
    else:
        raise OneFlowError(
            f"data.load_mnist: neither {plain} nor {packed} is there, and nothing is downloaded; "
            "put the four files of MNIST there"
        )
    return np.frombuffer(raw, np.uint8, offset=NUMBERS_BEFORE[name[-4:]])
