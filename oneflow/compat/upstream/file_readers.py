"""Readers of data sets in other files: COCO's annotations, raw numbers, tokens of Megatron."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from oneflow.compat.upstream.readers import Array, Batch, Reader, buffer_of
from oneflow.compat.upstream.tensor_buffers import BufferTensor
from oneflow.core.device import DeviceLike
from oneflow.core.draws import mix_seed
from oneflow.core.dtype import DTypeLike, dtype_of, int64
from oneflow.core.errors import ConfigError
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike
from oneflow.tensor.tensor import Tensor
from oneflow.utils.data.pipelines import made, tensor_of


def orders(total: int, seed: int, *, shuffle: bool) -> Iterator[int]:
    """0 ... total - 1 again and again, each time in a new order of the seed's."""
    for epoch in count():
        order = np.arange(total)
        if shuffle:
            np.random.default_rng(mix_seed(seed, epoch)).shuffle(order)
        yield from order.tolist()


class RawReader(Reader):
    """Rows of a shape and dtype out of binary files that hold nothing else, again and again.

    shuffle_block_size: bytes that stay together when rows are shuffled, 0 for a row. Gives tensors
    (batch, *shape). Raises ConfigError for a file that ends inside of a row.
    """

    def __init__(
        self,
        files: str | Sequence[str],
        shape: Sequence[int],
        dtype: DTypeLike,
        batch_size: int,
        random_shuffle: bool = True,
        shuffle_block_size: int = 0,
        random_seed: int | None = None,
        placement: Placement | None = None,
        sbp: SbpLike | None = None,
    ) -> None:
        super().__init__(None, placement, sbp, random_seed, batch_size)
        self.shape, self.dtype = tuple(shape), dtype_of(dtype)
        paths = [files] if isinstance(files, str) else list(files)
        self._rows = [self._mapped(Path(path)) for path in paths]
        self._ends = np.cumsum([len(rows) for rows in self._rows])
        nbytes = int(np.prod(self.shape)) * self.dtype.np.itemsize
        block = max(1, shuffle_block_size // nbytes)
        share = self.place.share
        own = share.of(int(self._ends[-1]))
        if not own:
            raise ConfigError(f"RawReader: {paths} hold no row for this rank")
        blocks = orders(-(-len(own) // block), self.seed + share.number, shuffle=random_shuffle)
        self._order = (i for b in blocks for i in own[b * block : (b + 1) * block])

    def _mapped(self, path: Path) -> Array:
        numbers = np.memmap(path, self.dtype.np, "r") if path.stat().st_size else np.zeros(0)
        size = int(np.prod(self.shape))
        if len(numbers) % size:
            raise ConfigError(f"{path} does not consist of rows of {size} {self.dtype}")
        return numbers.reshape(-1, *self.shape)

    def forward(self) -> Tensor:
        return tensor_of(self._read)

    def _read(self) -> Tensor:
        rows = [self._row(next(self._order)) for _ in range(self.local_batch_size)]
        return self.place.tensor(np.stack(rows))

    def _row(self, index: int) -> Array:
        which = int(np.searchsorted(self._ends, index, side="right"))
        row: Array = self._rows[which][index - (self._ends[which - 1] if which else 0)]
        return row


class GPTIndexedBinDataReader(Reader):
    """Token sequences (batch, seq_length + 1) out of Megatron's indexed data set `<prefix>.idx` and
    `<prefix>.bin`: documents in a random order, one after another, cut into sequences that share
    their first and last token, in a random order.

    num_samples: sequences until the order begins anew; passes over the documents are repeated until
    there are enough.  split_sizes, split_index: shares of the documents, and which is read.
    """

    def __init__(
        self,
        data_file_prefix: str,
        seq_length: int,
        num_samples: int,
        batch_size: int,
        dtype: DTypeLike = int64,
        shuffle: bool = True,
        random_seed: int | None = None,
        split_sizes: Sequence[float] | None = None,
        split_index: int | None = None,
        device: DeviceLike | None = None,
        placement: Placement | None = None,
        sbp: SbpLike | None = None,
    ) -> None:
        super().__init__(device, placement, sbp, random_seed, batch_size)
        self.seq_length, self.num_samples, self.dtype = seq_length, num_samples, dtype_of(dtype)
        shares = np.cumsum([0, *(split_sizes or (1,))]) / sum(split_sizes or (1,))
        index = split_index or 0
        if not 0 <= index < len(shares) - 1:
            raise ConfigError(f"split_index {index} is out of range for {split_sizes}")
        self._tokens, starts = _indexed(data_file_prefix)
        number = len(starts) - 1
        first, end = (round(float(share) * number) for share in shares[index : index + 2])
        self._stream = _documents(starts, first, end, self.seed, shuffle=shuffle)
        self._parts: list[tuple[int, int]] = []
        self._ends = np.zeros(1, np.int64)
        self._find(num_samples * seq_length + 1)
        self._order = orders(num_samples, mix_seed(self.seed, 1 << 20), shuffle=shuffle)

    def _find(self, tokens: int) -> None:
        """Collects documents until they have enough tokens."""
        total, ends = 0, [0]
        for start, end in self._stream:
            self._parts.append((start, end))
            total += end - start
            ends.append(total)
            if total >= tokens:
                break
        self._ends = np.array(ends)

    def forward(self) -> Tensor:
        return tensor_of(self._read)

    def _read(self) -> Tensor:
        rows = [next(self._order) for _ in range(self.batch_size)]
        own = self.place.share.of(self.batch_size)
        batch = np.stack([self._sequence(rows[i]) for i in own]).astype(self.dtype.np)
        return self.place.tensor(batch)

    def _sequence(self, index: int) -> Array:
        begin = index * self.seq_length
        at, left, found = int(np.searchsorted(self._ends, begin, side="right")) - 1, begin, []
        wanted = self.seq_length + 1
        while wanted:
            start, end = self._parts[at]
            start += left - int(self._ends[at])
            piece = self._tokens[start : min(end, start + wanted)]
            found.append(piece)
            wanted -= len(piece)
            at += 1
            left = int(self._ends[at])
        return np.concatenate(found)


_MAGIC = b"MMIDIDX\x00\x00"
_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float32,
          7: np.float64, 8: np.uint16}  # fmt: skip


def _indexed(prefix: str) -> tuple[Array, Array]:
    """The tokens of a data set, and where each document begins, the end of the last included."""
    path = Path(f"{prefix}.idx")
    data = path.read_bytes()
    head = struct.Struct("<QBQQ")
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + head.size:
        raise ConfigError(f"{path} is no index of Megatron's memory-mapped data sets")
    _, code, sequences, documents = head.unpack_from(data, len(_MAGIC))
    if code not in _CODES:
        raise ConfigError(f"{path}: tokens of kind {code}, known are {sorted(_CODES)}")
    kind, at = np.dtype(_CODES[code]), len(_MAGIC) + head.size
    sizes = np.frombuffer(data, np.int32, sequences, at)
    bounds = np.frombuffer(data, np.int64, documents, at + sequences * (4 + 8))
    tokens = np.memmap(f"{prefix}.bin", kind, "r")
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return tokens, ends[bounds]


def _documents(
    starts: Array, first: int, end: int, seed: int, *, shuffle: bool
) -> Iterator[tuple[int, int]]:
    """Begin and end of documents first ... end - 1, pass after pass."""
    if end <= first or starts[end] == starts[first]:
        raise ConfigError(f"documents {first} to {end} of the data set hold no token")
    for i in orders(end - first, seed, shuffle=shuffle):
        yield int(starts[first + i]), int(starts[first + i + 1])


class COCOReader(Reader):
    """Images of COCO with their annotations (crowds left out), again and again: a tuple of

    encoded images, ids (int64), sizes (batch, 2) of height and width (int32), and buffers of boxes
    (n, 4) as left, top, right, bottom (float32), labels from 1 (int32), points of polygons (m, 2)
    (float32), and of each point its number, polygon and object (m, 3) (int32).

    group_by_aspect_ratio: wide and tall images are in different batches.
    remove_images_without_annotations: those without a box.  stride_partition: a rank takes every
    n-th image, not a block of them.
    """

    def __init__(
        self,
        annotation_file: str,
        image_dir: str,
        batch_size: int,
        shuffle: bool = True,
        random_seed: int | None = None,
        group_by_aspect_ratio: bool = True,
        remove_images_without_annotations: bool = True,
        stride_partition: bool = True,
        device: DeviceLike | None = None,
        placement: Placement | None = None,
        sbp: SbpLike | None = None,
    ) -> None:
        super().__init__(device, placement, sbp, random_seed, batch_size)
        self._folder = Path(image_dir)
        self._images, self._notes, self._labels = _annotations(Path(annotation_file))
        chosen = [
            key for key in sorted(self._images)
            if self._notes.get(key) or not remove_images_without_annotations
        ]  # fmt: skip
        share = self.place.share
        if stride_partition:
            own = chosen[share.number :: share.count]
        else:
            block = share.of(len(chosen))
            own = chosen[block.start : block.stop]
        if not own:
            raise ConfigError(f"{annotation_file} has no image for this rank")
        order = orders(len(own), self.seed + share.number, shuffle=shuffle)
        self._ids = (own[i] for i in order)
        self._groups = group_by_aspect_ratio
        self._waiting: dict[bool, list[int]] = {False: [], True: []}

    def forward(self) -> tuple[Batch | Tensor, ...]:
        ids = made(self._next)
        return (
            made(self._encoded, ids),
            tensor_of(self._numbers, ids),
            tensor_of(self._sizes, ids),
            *(made(part, ids) for part in (self._boxes, self._kinds, self._points, self._places)),
        )

    def _next(self) -> list[int]:
        while True:
            key = next(self._ids)
            image = self._images[key]
            wide = self._groups and image["width"] >= image["height"]
            batch = self._waiting[wide]
            batch.append(key)
            if len(batch) == self.local_batch_size:
                self._waiting[wide] = []
                return batch

    def _encoded(self, ids: list[int]) -> BufferTensor:
        names = [self._folder / self._images[key]["file_name"] for key in ids]
        return self._buffer([np.frombuffer(bytearray(n.read_bytes()), np.uint8) for n in names])

    def _numbers(self, ids: list[int]) -> Tensor:
        return self.place.tensor(np.array(ids, np.int64))

    def _sizes(self, ids: list[int]) -> Tensor:
        found = [(self._images[key]["height"], self._images[key]["width"]) for key in ids]
        return self.place.tensor(np.array(found, np.int32))

    def _boxes(self, ids: list[int]) -> BufferTensor:
        boxes = [[note["box"] for note in self._notes.get(key, ())] for key in ids]
        return self._buffer([np.array(b, np.float32).reshape(-1, 4) for b in boxes])

    def _kinds(self, ids: list[int]) -> BufferTensor:
        kinds = [[self._labels[n["category_id"]] for n in self._notes.get(k, ())] for k in ids]
        return self._buffer([np.array(k, np.int32) for k in kinds])

    def _points(self, ids: list[int]) -> BufferTensor:
        found = [[xy for _, xy in self._outline(key)] for key in ids]
        return self._buffer([np.array(f, np.float32).reshape(-1, 2) for f in found])

    def _places(self, ids: list[int]) -> BufferTensor:
        found = [[place for place, _ in self._outline(key)] for key in ids]
        return self._buffer([np.array(f, np.int32).reshape(-1, 3) for f in found])

    def _outline(self, key: int) -> Iterator[tuple[tuple[int, int, int], tuple[float, float]]]:
        """(number, polygon, object) and (x, y) of each point of an image's polygons."""
        for number, note in enumerate(self._notes.get(key, ())):
            for which, polygon in enumerate(note.get("segmentation") or ()):
                for at in range(len(polygon) // 2):
                    yield (at, which, number), (polygon[2 * at], polygon[2 * at + 1])

    def _buffer(self, arrays: Sequence[Array]) -> BufferTensor:
        return buffer_of(arrays, self.place)


Notes = dict[int, list[dict[str, Any]]]


def _annotations(path: Path) -> tuple[dict[int, dict[str, Any]], Notes, dict[int, int]]:
    """Images by id; their annotations that have a box; labels from 1 by id of the category."""
    data = json.loads(path.read_text())
    if not {"images", "annotations", "categories"} <= data.keys():
        raise ConfigError(f"{path} has no images, annotations and categories, as COCO's files have")
    shown = {int(image["id"]): image for image in data["images"]}
    notes: Notes = {}
    for note in data["annotations"]:
        image = shown.get(int(note["image_id"]))
        if image is None or note.get("iscrowd"):
            continue
        box = _box(note["bbox"], image["width"], image["height"])
        if box is not None:
            notes.setdefault(int(note["image_id"]), []).append({**note, "box": box})
    kinds = sorted(int(category["id"]) for category in data["categories"])
    return shown, notes, {kind: i + 1 for i, kind in enumerate(kinds)}


def _box(box: Sequence[float], width: int, height: int) -> tuple[float, ...] | None:
    """Left, top, right and bottom pixel of a box, inside of the image; None for an empty one."""
    left, top = min(max(box[0], 0.0), width - 1), min(max(box[1], 0.0), height - 1)
    right = min(max(box[0] + max(box[2] - 1, 0), 0.0), width - 1)
    bottom = min(max(box[1] + max(box[3] - 1, 0), 0.0), height - 1)
    return (left, top, right, bottom) if right > left and bottom > top else None
