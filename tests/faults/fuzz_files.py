"""Files that come from strangers or from broken disks: archives and checkpoints."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .fuzz_inputs import (
    NUMBERS,
    Verdict,
    WrongError,
    judged,
    mutated,
    scratch,
    watched,
)

# ---- archives ------------------------------------------------------------------------------------


def fuzz_archives(verdict: Verdict, seeds: range) -> None:
    """Working directories: no archive makes it so that anything appears outside of its folder."""
    from oneflow.launcher.daemon.archive import ArchiveError, unpack

    with scratch() as folder:
        source, outside = folder / "x.tar", folder / "outside"
        outside.mkdir()
        (outside / "kept").write_text("kept")
        for seed in watched(seeds):
            rng = random.Random(seed)
            source.write_bytes(_archive(rng, outside))
            target = folder / "jobs" / "work"
            with judged(verdict, seed, (ArchiveError,)):
                unpack(source, target)
            _nothing_outside(verdict, seed, folder)
            _remove(folder / "jobs")


def _nothing_outside(verdict: Verdict, seed: int, folder: Path) -> None:
    outside = folder / "outside"
    there = sorted(p.name for p in folder.iterdir())
    if there not in (["jobs", "outside", "x.tar"], ["outside", "x.tar"]):
        verdict.blame(f"seed {seed}: {there} appeared")
    if [p.name for p in outside.iterdir()] != ["kept"] or (outside / "kept").read_text() != "kept":
        verdict.blame(f"seed {seed}: something was written outside")
    left = [p.name for p in (folder / "jobs").iterdir()] if (folder / "jobs").is_dir() else []
    if left not in ([], ["work"]):
        verdict.blame(f"seed {seed}: {left} is left")


def _remove(folder: Path) -> None:
    import shutil

    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _archive(rng: random.Random, outside: Path) -> bytes:
    buffer = io.BytesIO()
    form = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        many = rng.random() < 0.01
        for _ in range(rng.choice((500, 2000)) if many else rng.choice((1, 2, 3, 6))):
            _add(rng, tar, outside)
    data = buffer.getvalue()
    if rng.random() < 0.3:
        data = _header_mutated(rng, data)
    packed = _packed(rng, data)
    return mutated(rng, packed) if rng.random() < 0.1 else packed


def _add(rng: random.Random, tar: tarfile.TarFile, outside: Path) -> None:
    names = ("a", "b/c", "a/x", "l", "l/kept", "../up", "/abs", "b/../../up", ".", "..", "")
    info = tarfile.TarInfo(
        rng.choice((*names, f"{outside}/kept", "d" * 200, "d" * 300, "a\\b", "\u00e9"))
    )
    types = (b"0", b"0", b"0", b"5", b"2", b"2", b"1", b"3", b"4", b"6", b"7", b"S", b"V", b"z")
    info.type = rng.choice(types)
    links = ("a", "..", "../..", "/etc/passwd", str(outside), f"{outside}/kept", "b/../..", "l", "")
    info.linkname = rng.choice(links)
    info.mode = rng.choice((0o644, 0o755, 0o4777, 0o000, 0o7777))
    info.uid = rng.choice((0, 1000, 2**21))
    info.devmajor, info.devminor = 1, 3
    content = b""
    if info.type in (b"0", b"7"):
        content = bytes(rng.choice((0, 1, 600, 100_000)))
    info.size = len(content)
    if rng.random() < 0.1 and tar.format == tarfile.PAX_FORMAT:
        sizes = str(rng.choice(NUMBERS))
        info.pax_headers = {rng.choice(("path", "linkpath", "size", "GNU.sparse.map", "x")): sizes}
    try:
        tar.addfile(info, io.BytesIO(content))
    except (ValueError, OverflowError):
        return  # this form of archive cannot say it


def _header_mutated(rng: random.Random, data: bytes) -> bytes:
    """A field of a header is another, and the sum of the header is right again."""
    found = bytearray(data)
    at = 512 * rng.randrange(max(len(data) // 512 - 2, 1))
    start, size = rng.choice(((0, 100), (124, 12), (100, 8), (156, 1), (157, 100), (345, 155)))
    values = (b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-1\0", b"../../x\0", b"0")
    value = rng.choice((*values, rng.randbytes(min(size, 12))))[:size]
    found[at + start : at + start + len(value)] = value
    found[at + 148 : at + 156] = b" " * 8
    total = sum(found[at : at + 512])
    found[at + 148 : at + 156] = b"%06o\0 " % (total & 0o777777)
    return bytes(found)


@cache
def _bomb(nbytes: int) -> bytes:
    import gzip

    return gzip.compress(bytes(nbytes), 9)


def _packed(rng: random.Random, data: bytes) -> bytes:
    import gzip

    if rng.random() < 0.002:
        return gzip.compress(data, 1) + _bomb(rng.choice((30 << 20, 60 << 20)))
    if find_spec("zstandard") is None or rng.random() < 0.5:
        return gzip.compress(data, 1)
    import zstandard

    return zstandard.ZstdCompressor(level=1).compress(data)


# ---- checkpoints ---------------------------------------------------------------------------------


class Checkpoint:
    """A checkpoint of a job as three ranks write it, and the expected tensors of it."""

    def __init__(self, folder: Path, scale: int = 1) -> None:
        import numpy as np

        from oneflow.jobs.saving import FORMAT

        rng = np.random.default_rng(7)
        self.folder = folder
        self.arrays: dict[str, Any] = {
            "w": rng.standard_normal((6 * scale, 4)).astype(np.float32),
            "b": rng.integers(-9, 9, (5,)),
            "n": np.array(7, np.float64),
            "none": np.zeros((0, 3), np.float32),
        }
        self.form = {
            "format": FORMAT,
            "step": 7,
            "cursor": {"epoch": 1, "position": 3},
        }
        self._write(np)
        self.files = {p.name: p.read_bytes() for p in folder.iterdir()}

    def _write(self, np: Any) -> None:
        from oneflow.io.checksum import checksum
        from oneflow.io.container import Writer
        from oneflow.io.manifest import (
            MANIFEST_FILE,
            SAVE_ID_KEY,
            Manifest,
            Part,
            Stored,
            shard_name,
        )
        from oneflow.io.tree import Encoder

        save_id = "0123456789abcdef"
        pieces = [list(self._pieces(rank)) for rank in range(3)]
        names = {name: f"t{i}" for i, name in enumerate(self.arrays)}
        parts: dict[str, list[Any]] = {name: [] for name in self.arrays}
        files = []
        for rank, piece in enumerate(pieces):
            path = self.folder / shard_name(save_id, rank)
            shapes = {names[n]: (a.dtype, a.shape) for n, _, a in piece}
            with open(path, "wb") as file:
                writer = Writer(file, shapes, {SAVE_ID_KEY: save_id})
                for name, box, array in piece:
                    writer.add(names[name], array)
                    offset = writer.offsets[names[name]]
                    parts[name].append(Part(rank, box, offset, checksum(array, box.starts)))
            files.append((path.name, path.stat().st_size))
        tree = Encoder({**self.form, "variables": dict(self.arrays)})
        tree.name(lambda i, _: f"t{i}")
        stored = {
            names[n]: Stored(a.shape, a.dtype, None, tuple(parts[n]))
            for n, a in self.arrays.items()
        }
        manifest = Manifest(save_id, tree.form, tuple(files), stored)
        (self.folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())

    def _pieces(self, rank: int) -> Iterator[tuple[str, Any, Any]]:
        """Tensors that a rank writes: a third of w, and one of the others."""
        from oneflow.core.op import Box

        rows = len(self.arrays["w"]) // 3
        part = self.arrays["w"][rank * rows : (rank + 1) * rows]
        yield "w", Box((rank * rows, 0), ((rank + 1) * rows, 4)), part
        name = ("b", "n", "none")[rank]
        array = self.arrays[name]
        if array.size:
            yield name, Box((0,) * array.ndim, array.shape), array

    def restore(self) -> None:
        """All as it was when nothing was done to it."""
        for path in self.folder.iterdir():
            if path.name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            self.put(name, data)

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        if path.is_symlink() or path.exists():
            path.unlink()
        path.write_bytes(data)

    def load(self) -> Any:
        """The values, as one process alone reads them."""
        from oneflow.io.checkpoint import load

        return load(self.folder)["variables"]

    def check(self) -> None:
        """Loads it. Raises WrongError if a value is another."""
        found = self.load()
        for name, array in self.arrays.items():
            value = found[name]
            if value.dtype != array.dtype or value.shape != array.shape or (value != array).any():
                raise WrongError(f"{name} was loaded with other values")


def fuzz_checkpoints(verdict: Verdict, seeds: range) -> None:
    """Folders with a file changed, swapped, lost or linked, of which every value is compared."""
    from oneflow.core.errors import CheckpointError

    with scratch() as folder:
        (folder / "c").mkdir()
        checkpoint = Checkpoint(folder / "c")
        for seed in watched(seeds):
            rng = random.Random(seed)
            checkpoint.restore()
            rng.choice(_FOLDER_WAYS)(rng, checkpoint)
            with judged(verdict, seed, (CheckpointError,)):
                checkpoint.check()


def _change_shard(rng: random.Random, checkpoint: Checkpoint) -> None:
    name = rng.choice(sorted(checkpoint.files))
    checkpoint.put(name, mutated(rng, checkpoint.files[name]))


def _flip(rng: random.Random, checkpoint: Checkpoint) -> None:
    name = rng.choice(sorted(checkpoint.files))
    data = bytearray(checkpoint.files[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    checkpoint.put(name, bytes(data))


def _shards(checkpoint: Checkpoint) -> list[str]:
    return sorted(n for n in checkpoint.files if n.startswith("shard"))


def _swap(rng: random.Random, checkpoint: Checkpoint) -> None:
    """Shards change places, whole or the data of one in the size of the other."""
    first, second = rng.sample(_shards(checkpoint), 2)
    one, other = checkpoint.files[first], checkpoint.files[second]
    if rng.random() < 0.5:
        one, other = (one + bytes(len(other)))[: len(other)], (other + bytes(len(one)))[: len(one)]
    checkpoint.put(first, other)
    checkpoint.put(second, one)


def _lose(rng: random.Random, checkpoint: Checkpoint) -> None:
    (checkpoint.folder / rng.choice(sorted(checkpoint.files))).unlink()


def _link_out(rng: random.Random, checkpoint: Checkpoint) -> None:
    """A shard that is a link, to the right bytes or to others."""
    name = rng.choice(_shards(checkpoint))
    path = checkpoint.folder / name
    path.unlink()
    elsewhere = checkpoint.folder / "elsewhere"
    elsewhere.write_bytes(checkpoint.files[name])
    path.symlink_to(rng.choice((str(elsewhere), "/dev/zero", "/etc/passwd", name, "nowhere")))


def _add_more(rng: random.Random, checkpoint: Checkpoint) -> None:
    names = ("shard-0123456789abcdef-00009.safetensors", "shard-fedcba9876543210-00000.safetensors")
    more = rng.choice((*names, ".x", "checkpoint.safetensors", "pickled_data"))
    checkpoint.put(more, rng.choice((b"", b"x", *checkpoint.files.values())))


def _zeros(rng: random.Random, checkpoint: Checkpoint) -> None:
    """Leaves it as a file system does that lost all bytes not synced."""
    name = rng.choice(_shards(checkpoint))
    data = checkpoint.files[name]
    keep = rng.randrange(len(data))
    checkpoint.put(name, data[:keep] + bytes(len(data) - keep))


_FOLDER_WAYS: tuple[Callable[[random.Random, Checkpoint], None], ...] = (
    _change_shard, _change_shard, _flip, _flip, _swap, _lose, _link_out, _add_more, _zeros,
)  # fmt: skip


def break_checkpoints(verdict: Verdict, bits: int = 1) -> None:
    """Exhaustive: cut at every byte of a small one, every bit flipped; and cut at every 4 KiB of
    one of a megabyte. bits: every so manieth is flipped."""
    from oneflow.core.errors import CheckpointError

    with scratch() as folder:
        (folder / "small").mkdir()
        small = Checkpoint(folder / "small")
        for name, data in small.files.items():
            for size in watched(range(len(data))):
                small.put(name, data[:size])
                with judged(verdict, size, (CheckpointError,)):
                    small.check()
            for bit in watched(range(0, 8 * len(data), bits)):
                changed = bytearray(data)
                changed[bit // 8] ^= 1 << bit % 8
                small.put(name, bytes(changed))
                with judged(verdict, bit, (CheckpointError,)):
                    small.check()
            small.put(name, data)
        (folder / "large").mkdir()
        _cut_large(verdict, Checkpoint(folder / "large", scale=16_384))


def _cut_large(verdict: Verdict, large: Checkpoint) -> None:
    from oneflow.core.errors import CheckpointError

    for name, data in large.files.items():
        for size in watched(range(0, len(data), 4096)):
            large.put(name, data[:size])
            with judged(verdict, size, (CheckpointError,)):
                large.check()
                raise WrongError(f"{name} cut to {size} bytes was taken")
        large.put(name, data)
