"""Input pipelines as layers: readers of files, decoders, and layers that make batches of images.

A reader gives a batch at each call. In the `build` of a graph it is called at each step; batches of
a fixed size (raw features, images resized to one size) become tensors of the graph. With placement
and sbp each rank reads and decodes its own part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.compat.upstream.tensor_buffers import BufferTensor
from oneflow.core.device import DeviceLike
from oneflow.core.draws import mix_seed
from oneflow.core.dtype import DTypeLike, dtype_of, float32, uint8
from oneflow.core.errors import ConfigError, DTypeError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, SbpLike
from oneflow.functional.elementwise import cast, pick
from oneflow.functional.from_data import tensor
from oneflow.functional.shaping import flip, permute, reshape
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor, wrap
from oneflow.utils.data import images, records
from oneflow.utils.data.pipelines import Later, Place, Records, in_parallel, made, tensor_of

if TYPE_CHECKING:
    from oneflow.protos.record_pb2 import OFRecord

Array = np.ndarray[Any, Any]
Batch = BufferTensor | Later
"""Images or other arrays of their own shapes; in a graph, those of each step."""


class Reader(Module):
    """The base of readers: which part of the data this rank reads, and the seed of its order."""

    def __init__(
        self,
        device: DeviceLike | None,
        placement: Placement | None,
        sbp: SbpLike | None,
        seed: int | None,
        batch_size: int,
    ) -> None:
        super().__init__()
        self.place = Place.of(placement, sbp, device)
        self.device, self.placement, self.sbp = device, placement, sbp
        self.seed, self.batch_size = self.place.seed(seed), batch_size
        self.local_batch_size = self.place.share.batch(batch_size)


class OFRecordReader(Reader):
    """A batch of records of the parts `<prefix><number>` in a folder, again and again.

    part_name_suffix_length: digits of the number, -1 for as many as it has.  random_shuffle: each
    record is drawn from shuffle_buffer_size that wait.  shuffle_after_epoch: the order of the parts
    changes after each pass.  random_seed: -1 for one of the default generator.
    """

    def __init__(
        self,
        ofrecord_dir: str,
        batch_size: int = 1,
        data_part_num: int = 1,
        part_name_prefix: str = "part-",
        part_name_suffix_length: int = -1,
        random_shuffle: bool = False,
        shuffle_buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        random_seed: int | None = -1,
        device: DeviceLike | None = None,
        placement: Placement | None = None,
        sbp: SbpLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(device, placement, sbp, random_seed, batch_size)
        paths = records.part_paths(
            ofrecord_dir, data_part_num, part_name_prefix, part_name_suffix_length
        )
        share = self.place.share
        self._source = records.messages(paths, share, self.seed, shuffle_parts=shuffle_after_epoch)
        if random_shuffle:
            own = mix_seed(self.seed, share.number)
            self._source = records.shuffled(self._source, shuffle_buffer_size, own)

    def forward(self) -> Records | Later:
        """The next batch: to be given to decoders."""
        batch: Records | Later = made(self._read)
        return batch

    def _read(self) -> Records:
        parsed = [records.parse(next(self._source)) for _ in range(self.local_batch_size)]
        return Records(parsed, self.place)


def _feature(record: OFRecord, name: str) -> Any:
    """The list of numbers or bytes of a feature. Raises ConfigError if the record lacks it."""
    if name not in record.feature:
        known = ", ".join(sorted(record.feature))
        raise ConfigError(f"a record has no feature {name!r}; it has {known}")
    feature = record.feature[name]
    kind = feature.WhichOneof("kind")
    return getattr(feature, kind).value if kind else ()


def _bytes(record: OFRecord, name: str) -> bytes:
    values = _feature(record, name)
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ConfigError(f"feature {name!r} is not one text or image, but {len(values)} values")
    return bytes(values[0])


class OFRecordRawDecoder(Module):
    """A feature of numbers as a tensor (batch, *shape) of a dtype. Bytes are numbers of 8 bits.

    truncate (dim1_varying_length, auto_zero_padding mean it too): features that are longer are cut,
    shorter ones filled up with 0; else they raise ConfigError.
    """

    def __init__(
        self,
        blob_name: str,
        shape: Sequence[int],
        dtype: DTypeLike,
        dim1_varying_length: bool = False,
        truncate: bool = False,
        auto_zero_padding: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.blob_name, self.shape, self.dtype = blob_name, tuple(shape), dtype_of(dtype)
        self.fits = dim1_varying_length or truncate or auto_zero_padding

    def forward(self, input: Records | Later) -> Tensor:
        return tensor_of(self._decode, input)

    def _decode(self, batch: Records) -> Tensor:
        count = int(np.prod(self.shape))
        out = np.zeros((len(batch.messages), count), self.dtype.np)
        for row, record in zip(out, batch.messages, strict=True):
            values = self._numbers(_feature(record, self.blob_name))
            if len(values) != count and not self.fits:
                raise ConfigError(
                    f"feature {self.blob_name!r} has {len(values)} values, {count} are wanted: "
                    "truncate=True cuts it or fills it up"
                )
            row[: len(values)] = values[:count]
        return batch.place.tensor(out.reshape(len(out), *self.shape))

    def _numbers(self, values: Sequence[float | bytes]) -> Array:
        if len(values) and isinstance(values[0], bytes):
            kind = np.uint8 if self.dtype is uint8 else np.int8
            return np.frombuffer(values[0], kind)
        return np.asarray(values)


class OFRecordBytesDecoder(Module):
    """A feature of bytes as a tensor buffer of one-dimensional uint8 tensors."""

    def __init__(self, blob_name: str, name: str | None = None) -> None:
        super().__init__()
        self.blob_name = blob_name

    def forward(self, input: Records | Later) -> Batch:
        batch: Batch = made(self._decode, input)
        return batch

    def _decode(self, batch: Records) -> BufferTensor:
        found = [np.frombuffer(_bytes(r, self.blob_name), np.uint8) for r in batch.messages]
        return buffer_of([array.copy() for array in found], batch.place)


class OFRecordImageDecoder(Module):
    """A feature that is an encoded image as a tensor buffer of (H, W, C) uint8 tensors."""

    def __init__(self, blob_name: str, color_space: str = "BGR") -> None:
        super().__init__()
        images.channels_of(color_space)
        self.blob_name, self.color_space = blob_name, color_space

    def forward(self, input: Records | Later) -> Batch:
        batch: Batch = made(self._decode, input)
        return batch

    def _decode(self, batch: Records) -> BufferTensor:
        data = [_bytes(record, self.blob_name) for record in batch.messages]
        return buffer_of(in_parallel(self._image, list(enumerate(data))), batch.place)

    def _image(self, item: tuple[int, bytes]) -> Array:
        return images.decode(item[1], self.color_space)


class OFRecordImageDecoderRandomCrop(OFRecordImageDecoder):
    """The same, of each image a random part: a share random_area of its pixels, with a ratio of
    width to height in random_aspect_ratio.
    """

    def __init__(
        self,
        blob_name: str,
        color_space: str = "BGR",
        num_attempts: int = 10,
        random_seed: int | None = None,
        random_area: Sequence[float] = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
    ) -> None:
        super().__init__(blob_name, color_space)
        self.num_attempts, self.random_area = num_attempts, _pair(random_area)
        self.random_aspect_ratio = _pair(random_aspect_ratio)
        self._seeds = _Seeds(random_seed)

    def _decode(self, batch: Records) -> BufferTensor:
        self._seeds.begin(batch.place)
        return super()._decode(batch)

    def _image(self, item: tuple[int, bytes]) -> Array:
        pixels = super()._image(item)
        box = images.random_box(
            self._seeds.rng(item[0]),
            pixels.shape[0],
            pixels.shape[1],
            self.random_area,
            self.random_aspect_ratio,
            self.num_attempts,
        )
        return np.ascontiguousarray(images.cropped(pixels, box))


class OFRecordImageGpuDecoderRandomCropResize(Module):
    """Random parts of encoded images, all in one size: a tensor (batch, height, width, 3) of uint8,
    RGB. Decoded by the processor; num_workers, warmup_size and max_num_pixels change nothing.
    """

    def __init__(
        self,
        target_width: int,
        target_height: int,
        num_attempts: int | None = 10,
        seed: int | None = 0,
        random_area: Sequence[float] | None = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] | None = (0.75, 1.333333),
        num_workers: int | None = 3,
        warmup_size: int | None = 6400,
        max_num_pixels: int | None = 67108864,
    ) -> None:
        super().__init__()
        self.target_width, self.target_height = target_width, target_height
        self._options: dict[str, Any] = {
            "attempts": num_attempts or 10,
            "area": _pair(random_area or (0.08, 1.0)),
            "ratio": _pair(random_aspect_ratio or (0.75, 1.333333)),
        }
        self._seeds = _Seeds(seed)

    def forward(self, input: Batch) -> Tensor:
        """input: encoded images, as `OFRecordBytesDecoder` gives them."""
        return tensor_of(self._decode, input)

    def _decode(self, batch: BufferTensor) -> Tensor:
        self._seeds.begin(place_of(batch))
        pixels = in_parallel(self._image, list(enumerate(arrays_of(batch))))
        return place_of(batch).tensor(np.stack(pixels))

    def _image(self, item: tuple[int, Array]) -> Array:
        rng, data = self._seeds.rng(item[0]), item[1].tobytes()
        size = self.target_width, self.target_height
        return images.random_resized_crop(data, rng, *size, **self._options)


class _Seeds:
    """Random numbers of images: a function of the seed, the batch and the place in it, so that they
    do not depend on which thread is first.
    """

    def __init__(self, seed: int | None) -> None:
        self._given, self._seed, self._batch = seed, 0, 0

    def begin(self, place: Place) -> None:
        if not self._batch:
            self._seed = mix_seed(place.seed(self._given), place.share.number)
        self._batch += 1

    def rng(self, at: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, self._batch, at))


def _pair(values: Sequence[float]) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)


def buffer_of(arrays: Sequence[Array], place: Place) -> BufferTensor:
    """This rank's arrays as a tensor buffer."""
    buffer = BufferTensor((len(arrays),), [wrap(array) for array in arrays])
    buffer.place = place
    return buffer


def arrays_of(batch: BufferTensor) -> list[Array]:
    """The arrays of a tensor buffer."""
    return [part.numpy() for part in batch.parts]


def place_of(batch: BufferTensor) -> Place:
    """The ranks that a tensor buffer is spread over."""
    place = batch.place
    return place if isinstance(place, Place) else Place()


class CoinFlip(Reader):
    """An int8 tensor (batch,): 1 with the given probability, else 0."""

    def __init__(
        self,
        batch_size: int = 1,
        random_seed: int | None = None,
        probability: float = 0.5,
        device: DeviceLike | None = None,
        placement: Placement | None = None,
        sbp: SbpLike | None = None,
    ) -> None:
        super().__init__(device, placement, sbp, random_seed, batch_size)
        self.probability = probability
        self._rng = np.random.default_rng((self.seed, self.place.share.number))

    def forward(self) -> Tensor:
        return tensor_of(self._flip)

    def _flip(self) -> Tensor:
        flipped = self._rng.random(self.local_batch_size) < self.probability
        return self.place.tensor(flipped.astype(np.int8))


class CropMirrorNormalize(Module):
    """Images turned around where `mirror` is 1, cut out, minus `mean`, divided by `std`: a tensor
    (batch, C, H, W), or (batch, H, W, C) for the layout "NHWC".

    crop_h, crop_w: 0 for the whole image.  crop_pos_y, crop_pos_x: where the part lies, 0 to 1.
    mean, std: one number, or one for each channel.
    """

    def __init__(
        self,
        color_space: str = "BGR",
        output_layout: str = "NCHW",
        crop_h: int = 0,
        crop_w: int = 0,
        crop_pos_y: float = 0.5,
        crop_pos_x: float = 0.5,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        output_dtype: DTypeLike = float32,
    ) -> None:
        super().__init__()
        if output_layout not in ("NCHW", "NHWC"):
            raise ConfigError(f"output_layout {output_layout!r} is neither NCHW nor NHWC")
        self.channels = images.channels_of(color_space)
        self.output_layout, self.output_dtype = output_layout, dtype_of(output_dtype)
        self.crop_h, self.crop_w = crop_h, crop_w
        self.crop_pos_y, self.crop_pos_x = crop_pos_y, crop_pos_x
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))

    def forward(self, input: Tensor | Batch, mirror: Tensor | None = None) -> Tensor:
        """input: uint8 (batch, H, W, C), or a buffer of images (H, W, C)."""
        if isinstance(input, BufferTensor | Later):
            whole = tensor_of(self._cut, input)
        elif input.dtype is uint8:
            whole = self._cropped(input)
        else:
            raise DTypeError(f"CropMirrorNormalize: images are uint8, got {input.meta}")
        if mirror is not None:
            turned = reshape(mirror, (-1, 1, 1, 1)) != 0
            whole = pick(turned, flip(whole, 2), whole)
        out = (cast(whole, float32) - self._row(whole, self.mean)) / self._row(whole, self.std)
        out = permute(out, (0, 3, 1, 2)) if self.output_layout == "NCHW" else out
        return cast(out, self.output_dtype)

    def _row(self, like: Tensor, values: Sequence[float]) -> Tensor:
        where_to: dict[str, Any] = {}
        if like.is_global:
            where_to = {"placement": like.placement, "sbp": [BROADCAST] * like.placement.ndim}
        return tensor(list(values), dtype=float32, **where_to)

    def _part(self, height: int, width: int) -> images.Box:
        h, w = self.crop_h or height, self.crop_w or width
        if h > height or w > width:
            raise ConfigError(f"a part of {h}x{w} was asked of an image of {height}x{width}")
        top, left = int((height - h) * self.crop_pos_y), int((width - w) * self.crop_pos_x)
        return left, top, w, h

    def _cropped(self, batch: Tensor) -> Tensor:
        left, top, w, h = self._part(*batch.shape[1:3])
        part: Tensor = batch[:, top : top + h, left : left + w]
        return part

    def _cut(self, batch: BufferTensor) -> Tensor:
        parts = [images.cropped(a, self._part(*a.shape[:2])) for a in arrays_of(batch)]
        if len({p.shape for p in parts}) > 1:
            raise ConfigError(
                "CropMirrorNormalize: images have different sizes: give crop_h and crop_w, or "
                "resize them to one size first"
            )
        return place_of(batch).tensor(np.stack(parts))
