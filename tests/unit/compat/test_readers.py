"""Readers and decoders beside the written values, decoded by themselves: eagerly and in graphs."""

from __future__ import annotations

import io
import json
import math
import struct
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import oneflow as flow
from oneflow import nn
from oneflow.compat.upstream.tensor_buffers import BufferTensor
from oneflow.core.errors import ConfigError, GraphError, SbpError
from oneflow.graph.sources import Source, Sources
from oneflow.utils.data import images, records
from tests.support.waiting import WAIT_S

Array = np.ndarray[Any, Any]


def picture(number: int, height: int, width: int) -> Array:
    """Smooth colors that differ from picture to picture."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [y * 3 + number * 7, x * 2 + number * 11, (x + y) + number * 13]
    return np.stack(channels, -1).astype(np.uint8)


def encoded(pixels: Array) -> bytes:
    """A PNG of RGB pixels, made here so that no library is needed to write one."""
    import zlib

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three parts of 4 records: number i, its square, a picture of (8 + i % 3, 12)."""
    for part in range(3):
        numbers = range(4 * part, 4 * part + 4)
        records.write(
            tmp_path / f"part-{part:05d}",
            (
                {
                    "label": np.int32(i),
                    "square": np.array([i * i, -i], np.float32),
                    "long": np.array([i << 40], np.int64),
                    "encoded": encoded(picture(i, 8 + i % 3, 12)),
                    "name": f"n{i}",
                }
                for i in numbers
            ),
        )
    return tmp_path


def reader(folder: Path, **options: Any) -> nn.Module:
    return nn.OFRecordReader(
        str(folder), data_part_num=3, part_name_suffix_length=5, **{"batch_size": 5, **options}
    )


def labels(read: nn.Module, batches: int) -> list[int]:
    decode = nn.OFRecordRawDecoder("label", (), flow.int32)
    return [i for _ in range(batches) for i in decode(read()).tolist()]


def test_a_file_is_what_protobuf_says_it_is(folder: Path) -> None:
    data = (folder / "part-00000").read_bytes()
    (size,) = struct.unpack_from("<q", data)
    from oneflow.core.record.record_pb2 import OFRecord  # type: ignore[import-not-found]

    first = OFRecord.FromString(data[8 : 8 + size])
    assert first.feature["label"].int32_list.value == [0]
    assert first.feature["name"].bytes_list.value == [b"n0"]
    # Wire format by hand: field 1 of OFRecord {1: "x", 2: Feature{5: Int64List{1: packed [3]}}}.
    assert records.record({"x": np.int64(3)}).SerializeToString() == bytes(
        [0x0A, 10, 0x0A, 1, ord("x"), 0x12, 5, 0x2A, 3, 0x0A, 1, 3]
    )


def test_records_come_in_order_and_begin_anew(folder: Path) -> None:
    assert labels(reader(folder), 5) == [*range(12), *range(12), 0]


def test_features_of_every_kind(folder: Path) -> None:
    batch = reader(folder, batch_size=3)()
    square = nn.OFRecordRawDecoder("square", (2,), flow.float64)(batch)
    assert square.dtype is flow.float64 and square.tolist() == [[0, 0], [1, -1], [4, -2]]
    assert nn.OFRecordRawDecoder("long", (1,), flow.int64)(batch).tolist() == [
        [0],
        [1 << 40],
        [2 << 40],
    ]
    cut = nn.OFRecordRawDecoder("square", (1,), flow.float32, truncate=True)(batch)
    filled = nn.OFRecordRawDecoder("square", (3,), flow.float32, dim1_varying_length=True)(batch)
    assert cut.tolist() == [[0], [1], [4]] and filled.tolist()[2] == [4, -2, 0]
    text = nn.OFRecordRawDecoder("name", (2,), flow.uint8)(batch)
    assert text.tolist() == [[ord("n"), ord(str(i))] for i in range(3)]
    with pytest.raises(ConfigError, match="has 2 values, 3 are wanted"):
        nn.OFRecordRawDecoder("square", (3,), flow.float32)(batch)
    with pytest.raises(ConfigError, match="no feature 'nope'; it has encoded, label, long"):
        nn.OFRecordRawDecoder("nope", (), flow.float32)(batch)
    name = nn.OFRecordBytesDecoder("name")(batch)
    assert [bytes(a) for a in name.numpy()] == [b"n0", b"n1", b"n2"]


def test_shuffled_records_follow_the_seed_and_are_all_there(folder: Path) -> None:
    def order(**options: Any) -> list[int]:
        return labels(reader(folder, batch_size=12, **options), 4)

    once = order(random_shuffle=True, shuffle_buffer_size=6, random_seed=3)
    assert once == order(random_shuffle=True, shuffle_buffer_size=6, random_seed=3)
    assert once != order(random_shuffle=True, shuffle_buffer_size=6, random_seed=4)
    counts = np.bincount(once, minlength=12)
    assert counts.sum() == 48 and counts.min() >= 3  # at most six of 54 wait at the end
    passes = np.reshape(order(shuffle_after_epoch=True, random_seed=5), (4, 12))
    assert [sorted(p) for p in passes.tolist()] == [list(range(12))] * 4
    assert len({tuple(p) for p in passes.tolist()}) > 1


def test_files_that_are_none_are_refused(folder: Path) -> None:
    (folder / "part-00002").write_bytes(b"\x05\0\0\0\0\0\0\0abc")
    with pytest.raises(ConfigError, match="part-00002: at byte 0"):
        labels(reader(folder), 2)
    (folder / "part-00001").unlink()
    with pytest.raises(ConfigError, match=r"no file part-00001 \(1 of 3 missing\)"):
        reader(folder)


@pytest.mark.parametrize(("number", "count", "wanted"), [
    (0, 2, [0, 1, 2, 3, 4, 5, 6, 7]), (1, 2, [8, 9, 10, 11]), (2, 3, [8, 9, 10, 11]),
])  # fmt: skip
def test_each_reader_of_several_has_parts_of_its_own(
    folder: Path, number: int, count: int, wanted: list[int]
) -> None:
    paths = records.part_paths(folder, 3, "part-", 5)
    found = records.messages(paths, records.Share(number, count), 0, shuffle_parts=False)
    read = [records.parse(next(found)).feature["label"].int32_list.value[0] for _ in wanted]
    assert read == wanted
    with pytest.raises(ConfigError, match="4 ranks cannot share 3 parts"):
        next(records.messages(paths, records.Share(0, 4), 0, shuffle_parts=False))
    with pytest.raises(ConfigError, match="5 samples cannot be split among 2"):
        records.Share(0, 2).batch(5)


def test_batches_of_a_placement_are_global(folder: Path) -> None:
    here: dict[str, Any] = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.split(0)}
    read = reader(folder, batch_size=4, **here)
    label = nn.OFRecordRawDecoder("label", (), flow.int32)(read())
    assert label.is_global and label.sbp == (flow.sbp.split(0),) and label.tolist() == [0, 1, 2, 3]
    flips = nn.CoinFlip(4, 1, **here)()
    assert flips.is_global and flips.shape == (4,)
    with pytest.raises(SbpError, match="dim 0"):
        reader(folder, placement=here["placement"], sbp=flow.sbp.split(1))
    with pytest.raises(SbpError, match="needs sbp"):
        reader(folder, placement=here["placement"])


def test_pictures_are_decoded_in_the_colors_asked_for(folder: Path) -> None:
    batch = reader(folder, batch_size=4)()
    rgb = nn.OFRecordImageDecoder("encoded", "RGB")(batch)
    bgr = nn.OFRecordImageDecoder("encoded")(batch)
    gray = nn.OFRecordImageDecoder("encoded", "GRAY")(batch)
    for i in range(4):
        wanted = picture(i, 8 + i % 3, 12)
        assert np.array_equal(rgb.numpy()[i], wanted)
        assert np.array_equal(bgr.numpy()[i], wanted[..., ::-1])
        level = wanted @ np.array([0.299, 0.587, 0.114])
        assert np.abs(gray.numpy()[i][..., 0] - level).max() <= 0.51
    data = nn.OFRecordBytesDecoder("encoded")(batch)
    again = nn.image.decode(color_space="RGB")(data)
    assert all(map(np.array_equal, again.numpy(), rgb.numpy()))
    with pytest.raises(ConfigError, match="no image"):
        nn.OFRecordImageDecoder("name")(batch)


def test_random_parts_lie_in_their_pictures_and_follow_the_seed(folder: Path) -> None:
    def parts(seed: int) -> list[Array]:
        decode = nn.OFRecordImageDecoderRandomCrop("encoded", "RGB", random_seed=seed)
        found: list[Array] = list(decode(reader(folder, batch_size=12)()).numpy())
        return found

    first = parts(1)
    assert all(map(np.array_equal, first, parts(1)))
    assert {a.shape for a in first} != {a.shape for a in parts(2)}
    for i, part in enumerate(first):
        whole = picture(i, 8 + i % 3, 12)
        left, top = (
            (int(part[0, 0, 1]) - 11 * i % 256) % 256 // 2,
            (int(part[0, 0, 0]) - 7 * i) % 256 // 3,
        )
        assert np.array_equal(part, whole[top : top + part.shape[0], left : left + part.shape[1]])


def test_boxes_have_the_area_and_ratio_asked_for() -> None:
    rng = np.random.default_rng(0)
    boxes = [images.random_box(rng, 300, 400, (0.2, 0.5), (0.5, 2.0)) for _ in range(300)]
    for left, top, width, height in boxes:
        assert 0 <= left <= 400 - width and 0 <= top <= 300 - height
        assert 0.19 < width * height / 120_000 < 0.51 and 0.49 < width / height < 2.02
    # No part of a tenth of the width fits all of a strip: the middle, as wide as may be.
    assert images.random_box(rng, 10, 100, (0.9, 1.0)) == (43, 0, 13, 10)


def test_pictures_in_another_size() -> None:
    flat = [np.full((h, w, 3), c, np.uint8) for h, w, c in ((10, 20, 30), (40, 20, 60))]
    batch = BufferTensor((2,), [flow.from_numpy(a) for a in flat])
    out, scale, none = nn.image.Resize((6, 4))(batch)
    assert out.shape == (2, 4, 6, 3) and none is None
    assert np.unique(out[0].numpy()) == [30] and np.unique(out[1].numpy()) == [60]
    assert scale.numpy() == pytest.approx(np.array([[6 / 20, 4 / 10], [6 / 20, 4 / 40]]))
    out, scale, size = nn.image.Resize(15, max_size=25, keep_aspect_ratio=True)(batch)
    # 10 x 20: the longer side would be 30, so it is 25; 40 x 20: it would be 30 as well.
    assert [a.shape for a in out.numpy()] == [(12, 25, 3), (25, 12, 3)]
    assert size.tolist() == [[25, 12], [12, 25]]
    assert scale.numpy() == pytest.approx(np.array([[1.25, 1.2], [0.6, 0.625]]))
    halves = images.resized(np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 8, 2, 2, "area")
    assert halves[..., 0].tolist() == [[20, 36], [84, 100]]  # means of 2 x 2
    with pytest.raises(ConfigError, match="width, height"):
        nn.image.Resize(3)
    with pytest.raises(ConfigError, match="'cubic' is none of"):
        images.resized(flat[0], 2, 2, "cubic")


def test_pictures_normalised_turned_and_aligned() -> None:
    pixels = [picture(i, 3 + i, 5 - i) for i in range(3)]
    batch = BufferTensor((3,), [flow.from_numpy(a) for a in pixels])
    flipped = nn.image.flip()(batch, flow.tensor([1, 2, 3], dtype=flow.int8)).numpy()
    assert np.array_equal(flipped[0], pixels[0][:, ::-1])
    assert np.array_equal(flipped[1], pixels[1][::-1])
    assert np.array_equal(flipped[2], pixels[2][::-1, ::-1])
    normal = nn.image.normalize(std=(2, 4, 8), mean=(1, 2, 3))(batch).numpy()
    assert np.allclose(normal[1], (pixels[1] - np.array([1.0, 2, 3])) / [2, 4, 8])
    aligned = nn.image.batch_align((8, 8, 3), flow.float32, 4)(batch)
    assert aligned.shape == (3, 8, 8, 3) and np.array_equal(aligned[2, :5, :3].numpy(), pixels[2])
    assert aligned[2, 5:].abs().sum() == 0 and aligned[2, :, 3:].abs().sum() == 0


def test_crop_mirror_normalize() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (4, 9, 11, 3), dtype=np.uint8)
    mirror = np.array([0, 1, 1, 0], np.int8)
    mean, std = [123.0, 117.0, 104.0], [58.0, 57.0, 56.0]
    wanted = pixels[:, 1:7, 2:9].astype(np.float64)  # (9 - 6) * 0.5 and (11 - 7) * 0.5, cut off
    wanted[mirror == 1] = wanted[mirror == 1][:, :, ::-1]
    wanted = ((wanted - mean) / std).transpose(0, 3, 1, 2)
    layer = nn.CropMirrorNormalize("RGB", "NCHW", 6, 7, mean=mean, std=std)
    whole, turned = flow.from_numpy(pixels), flow.from_numpy(mirror)
    assert np.allclose(layer(whole, turned).numpy(), wanted, atol=1e-5)
    buffer = BufferTensor((4,), [flow.from_numpy(p) for p in pixels])
    assert np.allclose(layer(buffer, turned).numpy(), wanted, atol=1e-5)
    plain = nn.CropMirrorNormalize(output_layout="NHWC", output_dtype=flow.float16)(whole)
    assert plain.dtype is flow.float16 and np.array_equal(plain.numpy(), pixels.astype(np.float16))
    mixed = BufferTensor((2,), [flow.from_numpy(p) for p in (pixels[0], pixels[1, :5])])
    with pytest.raises(ConfigError, match="different sizes"):
        nn.CropMirrorNormalize("RGB")(mixed)


def test_coins_fall_as_often_as_asked_and_follow_the_seed() -> None:
    flips = nn.CoinFlip(10_000, 7, 0.3)().numpy()
    assert flips.dtype == np.int8 and set(flips.tolist()) == {0, 1}
    assert abs(flips.mean() - 0.3) < 4 * math.sqrt(0.21 / 10_000)
    assert np.array_equal(flips, nn.CoinFlip(10_000, 7, 0.3)().numpy())


def test_a_graph_reads_a_batch_at_each_step(folder: Path) -> None:
    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.read = reader(folder, batch_size=4)
            self.label = nn.OFRecordRawDecoder("label", (), flow.int32)
            self.image = nn.OFRecordImageDecoder("encoded", "RGB")
            self.resize = nn.image.Resize((6, 4))
            self.coin = nn.CoinFlip(4, 3)
            self.normal = nn.CropMirrorNormalize("RGB", mean=[10.0] * 3, std=[2.0] * 3)

        def build(self, factor: Any) -> Any:
            batch = self.read()
            image = self.resize(self.image(batch))[0]
            coin = self.coin()
            return self.label(batch) * factor, self.normal(image, coin), image, coin

    train = Train()
    seen: list[int] = []
    for step in range(1, 5):
        label, normal, image, coin = train(flow.tensor(step, dtype=flow.int32))
        numbers = (label.numpy() // step).tolist()
        seen += numbers
        for row, number in enumerate(numbers):
            small = images.resized(picture(number, 8 + number % 3, 12), 6, 4)
            assert np.array_equal(image[row].numpy(), small)  # of the same batch as the label
            turned = small[:, ::-1] if coin[row].item() else small
            wanted = (turned.astype(np.float64) - 10) / 2
            assert np.allclose(normal[row].numpy(), wanted.transpose(2, 0, 1))
    assert seen == [*range(12), 0, 1, 2, 3]


def test_a_graph_of_micro_batches_reads_whole_batches(folder: Path) -> None:
    class Twice(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.label = (
                reader(folder, batch_size=4),
                nn.OFRecordRawDecoder("label", (), flow.int32),
            )
            self.config.set_gradient_accumulation_steps(2)

        def build(self) -> Any:
            return self.label(self.read()) + 100

    twice = Twice()
    assert [twice().tolist() for _ in range(2)] == [[100, 101, 102, 103], [104, 105, 106, 107]]


class Labels(nn.Graph):
    def __init__(self, read: nn.Module) -> None:
        super().__init__()
        self.read, self.label = read, nn.OFRecordRawDecoder("label", (), flow.int32)

    def build(self) -> Any:
        return self.label(self.read())


def test_a_graph_reads_one_step_ahead_of_what_is_read_next(folder: Path) -> None:
    read = reader(folder, batch_size=2)
    first, second = Labels(read), Labels(read)
    found = [first().tolist(), second().tolist()]  # each has read two batches
    found += [labels(read, 1), first().tolist(), second().tolist()]
    assert found == [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7]]


def test_a_step_does_not_wait_for_the_next_input_to_be_read() -> None:
    asked, may_read = threading.Event(), threading.Event()

    def read(step: object) -> Any:
        asked.set()
        assert may_read.wait(WAIT_S)
        return flow.ones(2)

    sources = Sources([Source("source.0", read, flow.zeros(2))])
    assert sources.take()["source.0"].tolist() == [0, 0]
    assert asked.wait(WAIT_S)  # it is read already, while nobody has asked for a second step
    may_read.set()
    assert sources.take()["source.0"].tolist() == [1, 1]


def test_what_reading_raises_comes_with_the_step_that_wants_it() -> None:
    read = iter([ValueError("no more"), flow.ones(2)])

    def take(step: object) -> Any:
        found = next(read)
        if isinstance(found, Exception):
            raise found
        return found

    sources = Sources([Source("source.0", take, flow.zeros(2))])
    sources.take()
    with pytest.raises(ValueError, match="no more"):
        sources.take()
    assert sources.take()["source.0"].tolist() == [1, 1]


def test_a_graph_refuses_input_of_another_size(folder: Path) -> None:
    class Align(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.bytes = reader(folder, batch_size=1), nn.OFRecordBytesDecoder("name")
            self.normal = nn.CropMirrorNormalize("GRAY")

        def build(self) -> Any:
            return self.normal(flow.utils.data.pipelines.made(grown, self.bytes(self.read())))

    def grown(batch: BufferTensor) -> BufferTensor:
        size = 1 + int(batch.numpy()[0][1]) - ord("0")
        return BufferTensor((1,), [flow.zeros(size, 2, 1, dtype=flow.uint8)])

    align = Align()
    assert align().shape == (1, 1, 1, 2)
    with pytest.raises(GraphError, match=r"source.0 of the graph read uint8\[1, 2, 2, 1\] after"):
        align()


def test_raw_rows(tmp_path: Path) -> None:
    rows = np.arange(60, dtype=np.int16).reshape(10, 2, 3)
    for name, part in (("a", rows[:4]), ("b", rows[4:])):
        (tmp_path / name).write_bytes(part.tobytes())
    files = [str(tmp_path / name) for name in "ab"]
    plain = nn.RawReader(files, (2, 3), flow.int16, 4, random_shuffle=False)
    assert np.array_equal(
        np.concatenate([plain().numpy() for _ in range(3)]), rows[[*range(10), 0, 1]]
    )
    mixed = nn.RawReader(files, (2, 3), flow.int16, 10, random_seed=1)
    first, second = mixed().numpy(), mixed().numpy()
    assert (
        sorted(first[:, 0, 0].tolist())
        == sorted(second[:, 0, 0].tolist())
        == rows[:, 0, 0].tolist()
    )
    assert not np.array_equal(first, second)
    blocks = nn.RawReader(files, (2, 3), flow.int16, 10, shuffle_block_size=24, random_seed=1)()
    assert all(b == a + 6 for a, b in blocks[:, 0, 0].numpy().reshape(5, 2).tolist())
    with pytest.raises(ConfigError, match="rows of 7"):
        nn.RawReader(files[0], (7,), flow.int16, 1)


def write_tokens(prefix: Path, documents: list[list[int]]) -> None:
    """Megatron's indexed data set: one sequence a document."""
    sizes = np.array([len(d) for d in documents], np.int32)
    tokens = np.array([t for d in documents for t in d], np.uint16)
    starts = np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64) * 2
    bounds = np.arange(len(documents) + 1, dtype=np.int64)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(bounds))
    prefix.with_suffix(".idx").write_bytes(
        head + sizes.tobytes() + starts.tobytes() + bounds.tobytes()
    )
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())


def test_token_sequences(tmp_path: Path) -> None:
    prefix = tmp_path / "text"
    documents = [[10, 11, 12], [20], [30, 31, 32, 33], [40, 41]]
    write_tokens(prefix, documents)
    flat = [t for d in documents for t in d]
    plain = nn.GPTIndexedBinDataReader(str(prefix), 4, 4, 2, shuffle=False)
    endless = flat + flat
    wanted = [endless[i * 4 : i * 4 + 5] for i in range(4)]
    assert plain().dtype is flow.int64
    plain = nn.GPTIndexedBinDataReader(str(prefix), 4, 4, 2, shuffle=False)
    assert [*plain().tolist(), *plain().tolist(), *plain().tolist()] == [*wanted, *wanted[:2]]
    half = nn.GPTIndexedBinDataReader(
        str(prefix), 2, 2, 2, flow.int32, shuffle=False, split_sizes=[1, 1], split_index=1
    )()
    assert half.tolist() == [[30, 31, 32], [32, 33, 40]]
    mixed = nn.GPTIndexedBinDataReader(str(prefix), 3, 6, 6, random_seed=2)().tolist()
    assert mixed == nn.GPTIndexedBinDataReader(str(prefix), 3, 6, 6, random_seed=2)().tolist()
    pairs = {(a, b) for d in documents for a, b in pairwise(d)}
    ends = {(a[-1], b[0]) for a in documents for b in documents}
    assert all((a, b) in pairs | ends for row in mixed for a, b in pairwise(row))
    with pytest.raises(ConfigError, match="no index"):
        (tmp_path / "bad.idx").write_bytes(b"no index at all")
        nn.GPTIndexedBinDataReader(str(tmp_path / "bad"), 2, 2, 2)


def test_annotated_pictures(tmp_path: Path) -> None:
    sizes = {7: (8, 12), 3: (12, 8), 5: (8, 10), 9: (9, 9)}  # id -> height, width
    for key, (height, width) in sizes.items():
        (tmp_path / f"{key}.png").write_bytes(encoded(picture(key, height, width)))
    boxes = {7: [[1, 2, 4, 3]], 3: [[0, 0, 100, 100], [2, 2, 1, 1]], 5: [[2, 1, 3, 3]]}
    notes = [
        {"image_id": key, "category_id": 90 if key == 3 else 18, "bbox": box, "iscrowd": 0,
         "segmentation": [[box[0], box[1], box[0] + 1, box[1], box[0], box[1] + 2]]}
        for key, own in boxes.items() for box in own
    ]  # fmt: skip
    notes.append({"image_id": 9, "category_id": 18, "bbox": [0, 0, 5, 5], "iscrowd": 1})
    shown = [
        {"id": key, "file_name": f"{key}.png", "height": h, "width": w}
        for key, (h, w) in sizes.items()
    ]
    kinds = [{"id": 90, "name": "b"}, {"id": 18, "name": "a"}]
    path = tmp_path / "notes.json"
    path.write_text(json.dumps({"images": shown, "annotations": notes, "categories": kinds}))
    read = nn.COCOReader(str(path), str(tmp_path), 2, shuffle=False)
    data, ids, size, box, label, points, places = read()
    assert ids.tolist() == [5, 7] and size.tolist() == [[8, 10], [8, 12]]  # wide ones first come
    assert bytes(data.numpy()[0]) == (tmp_path / "5.png").read_bytes()
    assert box.numpy()[1].tolist() == [[1, 2, 4, 4]] and label.numpy()[1].tolist() == [1]
    assert points.numpy()[1].tolist() == [[1, 2], [2, 2], [1, 4]]
    assert places.numpy()[1].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    _, ids, _, box, label, *_ = read()
    assert ids.tolist() == [3, 3]  # the one tall image has waited for another
    assert box.numpy()[0].tolist() == [[0, 0, 7, 11]] and label.numpy()[0].tolist() == [2]


def test_what_is_missing_without_a_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(images, "import_module", missing)
    for cached in (images.opencv, images.pillow):
        cached.cache_clear()
    try:
        assert images.opencv() is None and not images.has_pillow()
        with pytest.raises(ConfigError, match=r"Pillow or OpenCV.*oneflow-actors\[vision\]"):
            images.decode(b"")
    finally:
        for cached in (images.opencv, images.pillow):
            cached.cache_clear()


def test_jpegs_are_decoded_no_larger_than_needed() -> None:
    y, x = np.mgrid[0:512, 0:768]
    pixels = np.stack([x / 4, y / 4, 128 + 0 * x], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    for seed in range(6):
        box = images.random_box(np.random.default_rng(seed), 512, 768)
        got = images.random_resized_crop(file.getvalue(), np.random.default_rng(seed), 64, 64)
        left, top, width, height = box
        column = (left + (np.arange(64) + 0.5) * width / 64 - 0.5) / 4
        row = (top + (np.arange(64) + 0.5) * height / 64 - 0.5) / 4
        assert np.abs(got[..., 0].mean(0) - column).max() < 3
        assert np.abs(got[..., 1].mean(1) - row).max() < 3
