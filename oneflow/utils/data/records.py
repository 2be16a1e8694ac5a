"""Records of upstream's data sets: features by name, in files of length-prefixed messages.

A data set is a folder of parts (`part-00000`, ...). Each rank of a placement that splits the batch
reads parts of its own, again and again: a stream has no end, and a batch may reach over the end of
a pass.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.draws import mix_seed
from oneflow.core.errors import ConfigError
from oneflow.core.whole_files import PendingFile

if TYPE_CHECKING:
    from oneflow.protos.record_pb2 import OFRecord

_LENGTH = struct.Struct("<q")
_MOST = 1 << 31  # bytes of a message that protobuf reads

Value = bytes | str | Sequence[float] | Sequence[bytes] | np.ndarray[Any, Any]


def record(features: Mapping[str, Value]) -> OFRecord:
    """The record of these features: bytes, texts (as UTF-8), lists of bytes, or numbers by their
    dtype. Raises ConfigError for other dtypes.
    """
    from oneflow.protos.record_pb2 import OFRecord

    made = OFRecord()
    for name, value in features.items():
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            value = [value]
        if isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
            made.feature[name].bytes_list.value.extend(value)
            continue
        numbers = np.atleast_1d(np.asarray(value))
        kind = _LISTS.get(numbers.dtype.name)
        if kind is None:
            raise ConfigError(
                f"record: feature {name!r} has {numbers.dtype}, which no record holds"
            )
        getattr(made.feature[name], kind).value.extend(numbers.reshape(-1).tolist())
    return made


_LISTS = {
    "float32": "float_list",
    "float64": "double_list",
    "int32": "int32_list",
    "int64": "int64_list",
}


def write(path: str | Path, features: Iterable[Mapping[str, Value]]) -> int:
    """Write a file of records, which appears when it is whole, and return their number."""
    number = 0
    with PendingFile(Path(path)) as file:
        for one in features:
            data = record(one).SerializeToString()
            file.write(_LENGTH.pack(len(data)) + data)
            number += 1
    return number


def read(path: str | Path) -> Iterator[bytes]:
    """The messages of a file, as bytes. Raises ConfigError where it is cut off or no such file."""
    with open(path, "rb", current_config().read_nbytes) as file:
        while head := file.read(_LENGTH.size):
            yield _message(file, head, path)


def _message(file: BinaryIO, head: bytes, path: str | Path) -> bytes:
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
    data = file.read(size) if 0 <= size < _MOST else b""
    if len(data) != size:
        at = file.tell() - len(data) - len(head)
        raise ConfigError(f"{path}: at byte {at} there is no whole record; is it an OFRecord file?")
    return data


def parse(data: bytes) -> OFRecord:
    """The record of a message. Raises ConfigError if it is none."""
    from google.protobuf.message import DecodeError

    from oneflow.protos.record_pb2 import OFRecord

    made = OFRecord()
    try:
        made.ParseFromString(data)
    except DecodeError as error:
        raise ConfigError(f"a message of {len(data)} bytes is no OFRecord: {error}") from None
    return made


@dataclass(frozen=True)
class Share:
    """The part of the work that one of `count` readers does: the `number`-th."""

    number: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """This reader's part of 0 ... total - 1: parts differ by one at most, larger ones first."""
        base, extra = divmod(total, self.count)
        start = self.number * base + min(self.number, extra)
        return range(start, start + base + (self.number < extra))

    def batch(self, size: int) -> int:
        """Samples of this reader's part of a batch. Raises ConfigError if parts would differ."""
        if size % self.count:
            raise ConfigError(f"a batch of {size} samples cannot be split among {self.count} ranks")
        return size // self.count


def part_paths(folder: str | Path, count: int, prefix: str, suffix_length: int) -> list[Path]:
    """Paths of the parts of a data set. suffix_length: digits of the number; -1: as many as it has.

    Raises ConfigError for parts that are missing.
    """
    digits = max(suffix_length, 0)
    paths = [Path(folder) / f"{prefix}{i:0{digits}d}" for i in range(count)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"{folder} has no file {missing[0]} ({len(missing)} of {count} missing)")
    return paths


def messages(
    paths: Sequence[Path], share: Share, seed: int, *, shuffle_parts: bool
) -> Iterator[bytes]:
    """Messages of this reader's parts, pass after pass without end.

    shuffle_parts: the parts are dealt out anew after each pass. Raises ConfigError if there are
    fewer parts than readers, or no records.
    """
    if len(paths) < share.count:
        raise ConfigError(f"{share.count} ranks cannot share {len(paths)} parts: each needs one")
    for epoch in count():
        order = list(paths)
        if shuffle_parts and epoch:
            np.random.default_rng(mix_seed(seed, epoch)).shuffle(order)
        found = False
        for i in share.of(len(order)):
            for message in read(order[i]):
                found = True
                yield message
        if not found:
            raise ConfigError(f"{paths[0].parent}: the parts of this rank hold no record")


def shuffled(source: Iterator[bytes], size: int, seed: int) -> Iterator[bytes]:
    """Items of an endless source in a random order: each is drawn from `size` that wait."""
    rng = np.random.default_rng(seed)
    waiting = list(islice(source, size))
    while True:
        at = int(rng.integers(size))
        yield waiting[at]
        waiting[at] = next(source)
