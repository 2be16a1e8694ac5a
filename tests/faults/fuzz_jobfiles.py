"""Job files that come from strangers or from broken disks."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError

from .fuzz_inputs import (
    NUMBERS,
    Verdict,
    WrongError,
    judged,
    message_mutated,
    mutated,
    random_message,
    scratch,
    text_mutated,
    tree_mutated,
    watched,
)

LOCAL, CENTRAL, END = (
    struct.Struct("<4s5H3I2H"),
    struct.Struct("<4s6H3I5H2I"),
    struct.Struct("<4s4H2IH"),
)
BIG = (0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


# ---- job files -----------------------------------------------------------------------------------


def tiny_job(path: Path) -> None:
    """The smallest job there is: most of its bytes are form."""
    import oneflow as flow

    class Tiny(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = flow.nn.Linear(3, 2)

        def build(self, x: Any) -> Any:
            return flow.relu(self.layer(x))

    flow.manual_seed(0)
    flow.jobs.save(Tiny(), path, inputs={"x": flow.zeros(4, 3)})


def fuzz_jobfiles(verdict: Verdict, seeds: range, samples: list[Path]) -> None:
    """Archives changed as they are, and entries changed under right digests and sizes.

    samples: the first one is the smallest, and most of the inputs are made of it.
    """
    from oneflow.jobs.description import JobFileError

    files = [(path.read_bytes(), _entries(path)) for path in samples]
    ways = (_archive_bytes, _archive_form, _entry_json, _entry_graph, _entry_tensors, _entry_bytes)
    with scratch() as folder:
        path = folder / "x.job"
        for seed in watched(seeds):
            rng = random.Random(seed)
            whole, entries = files[rng.randrange(len(files)) if seed % 4 == 0 else 0]
            way = ways[rng.choice((0, 1, 1, 2, 2, 3, 3, 3, 4, 5))]
            path.write_bytes(way(rng, whole, dict(entries)))
            is_taken = False
            with judged(verdict, seed, (JobFileError,)):
                _verify(path)
                is_taken = True
            if is_taken and (way is _entry_graph or seed % 8 == 0):
                with judged(verdict, seed, (OneFlowError,)):
                    _compile(rng, path)


def _verify(path: Path) -> None:
    """Reads an accepted file to its last byte."""
    from oneflow.jobs.jobfile import JobFile
    from oneflow.jobs.sources import Access

    with JobFile(path) as file:
        for name in file.variables.entries:
            file.variables.read(name)
        for column in file.open_data(Access(roots=())).values():
            column.sum()


def _compile(rng: random.Random, path: Path) -> None:
    """Reads it as the scheduler does a file that somebody uploaded."""
    from oneflow.core.plan import Plan
    from oneflow.jobs.plans import compile_plan

    Plan.from_bytes(compile_plan(path, rng.choice((1, 2, 3)), "cpu"))


def _entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive_bytes(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    return mutated(rng, whole)


def _archive_form(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    """Right entries in a wrong archive: names, sizes, places, sums, methods, order, bombs."""
    items: list[tuple[str, bytes]] = list(entries.items())
    kind = rng.randrange(5)
    if kind == 0:
        items.append((rng.choice(_NAMES), rng.choice((b"", b"x", bytes(1000)))))
    elif kind == 1:
        items.append(rng.choice(items))
    elif kind == 2:
        rng.shuffle(items)
        items = items[: rng.randrange(len(items) + 1)]
    elif kind == 3:
        items += [(f"data/x{i}.bin", b"") for i in range(rng.choice((60, 61, 65, 70)))]
    if rng.random() < 0.25:
        return _compressed(rng, items)
    return zipped(rng, items)


_NAMES = (
    "../x.pb", "/etc/passwd", "data/../../x.pb", "data/arrays.safetensors", "graph.pb",
    "job.json/x", "x\0.pb", "GRAPH.PB", "", "a" * 300 + ".pb", "\u00e9.pb", "data\\x.pb",
)  # fmt: skip


def _compressed(rng: random.Random, items: list[tuple[str, bytes]]) -> bytes:
    """An archive as any zip program writes it; now and then with a bomb in it."""
    buffer = io.BytesIO()
    method = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_STORED))
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in dict(items).items():
            archive.writestr(name or "x", content)
        if rng.random() < 0.2:
            archive.writestr("data/bomb.bin", bytes(8 << 20))
    return buffer.getvalue()


def zipped(rng: random.Random | None, items: list[tuple[str, bytes]]) -> bytes:
    """An archive in our own form; with `rng` one number of a header is another."""
    body, directory = bytearray(), bytearray()
    broken = rng.randrange(2 * len(items) + 1) if rng is not None else -1
    for index, (name, content) in enumerate(items):
        raw = name.encode()[:65535]
        crc, place = zlib.crc32(content), len(body)
        local = [b"PK\3\4", 20, 0, 0, 0, 33, crc, len(content), len(content), len(raw), 0]
        central = [b"PK\1\2", 788, 20, 0, 0, 0, 33, crc, len(content), len(content), len(raw)]
        central += [0, 0, 0, 0, 0o644 << 16, place]
        for number, fields in ((index, local), (index + len(items), central)):
            if rng is not None and number == broken:
                _break_one(rng, fields)
        body += LOCAL.pack(*local) + raw + content
        directory += CENTRAL.pack(*central) + raw
    end = [b"PK\5\6", 0, 0, len(items), len(items), len(directory), len(body), 0]
    if rng is not None and broken == 2 * len(items):
        _break_one(rng, end)
    return bytes(body + directory) + END.pack(*end)


def _break_one(rng: random.Random, fields: list[Any]) -> None:
    at = rng.randrange(1, len(fields))
    mask = 0xFFFFFFFF if at in _WIDE[len(fields)] else 0xFFFF
    fields[at] = rng.choice((fields[at] + 1, fields[at] - 1, 2 * fields[at], *BIG)) & mask


_WIDE = {11: (6, 7, 8), 17: (7, 8, 9, 15, 16), 8: (5, 6)}
"""Fields of 32 bits, by the number of fields of the record."""


def _sealed(entries: dict[str, bytes]) -> bytes:
    """All entries with right sizes, sums and digests: only their contents can be wrong."""
    job = entries.pop("job.json")
    try:
        described = json.loads(job)
    except (ValueError, RecursionError):
        described = None
    if isinstance(described, dict):
        listed = {
            name: {
                "nbytes": len(content),
                "digest": hashlib.blake2b(content, digest_size=32).hexdigest(),
            }
            for name, content in entries.items()
        }
        if described.get("entries") != "kept":
            described["entries"] = listed
        job = json.dumps(described).encode()
    return zipped(None, [*entries.items(), ("job.json", job)])


def _entry_bytes(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    name = rng.choice(sorted(entries))
    entries[name] = mutated(rng, entries[name])
    return _sealed(entries)


def _entry_json(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    text = entries["job.json"].decode()
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.3:
            text = text_mutated(rng, text)
            continue
        try:
            changed = tree_mutated(rng, json.loads(text))
        except (ValueError, RecursionError):
            break
        text = json.dumps(changed)
    entries["job.json"] = text.encode(errors="replace")
    return _sealed(entries)


def _entry_tensors(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    names = sorted(name for name in entries if name.endswith(".safetensors"))
    name = rng.choice(names)
    entries[name] = tensors_mutated(rng, entries[name])
    return _sealed(entries)


def tensors_mutated(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with another header, or with other data."""
    (size,) = struct.unpack("<Q", data[:8])
    header, content = json.loads(data[8 : 8 + size]), data[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        content = mutated(rng, content)
    for _ in range(rng.choice((1, 1, 2))):
        header = tree_mutated(rng, header)
    text = json.dumps(header).encode()
    if kind == 1:
        text = text_mutated(rng, text.decode()).encode(errors="replace")
    length = rng.choice(NUMBERS) if kind == 2 else len(text)
    return struct.pack("<Q", length) + text + content


def _entry_graph(rng: random.Random, whole: bytes, entries: dict[str, bytes]) -> bytes:
    entries["graph.pb"] = graph_mutated(rng, entries["graph.pb"])
    return _sealed(entries)


_GRAPH_WORDS = (
    "", "x", "float64", "float16", "bool", "int8", "int64", "object", "O", "<f4", "complex64",
    "input.0", "lr.0", "sum", "mean", "S(0)", "cpu", "cuda", "tpu", "name", "index", "axis", "dim",
)  # fmt: skip


def graph_mutated(rng: random.Random, data: bytes) -> bytes:
    """A graph that means something else: dims, dtypes, ops, attributes, edges, placements; now and
    then one with a message in it that has nothing to do with it.
    """
    from oneflow.protos import graph_pb2

    proto = graph_pb2.Graph.FromString(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        message_mutated(rng, proto, (*_GRAPH_WORDS, *_all_ops()))
    if rng.random() < 0.05:
        proto.MergeFrom(random_message(rng, graph_pb2.Graph, 0, 0.2))
    found: bytes = proto.SerializeToString()
    return found


def _all_ops() -> list[str]:
    from oneflow.core.op import REGISTRY, find_op

    find_op("relu")  # declares all
    return sorted(REGISTRY)


def truncate_jobfile(verdict: Verdict, sample: Path) -> None:
    """Cut at every byte: none of them is taken for a job file."""
    from oneflow.jobs.description import JobFileError

    whole = sample.read_bytes()
    with scratch() as folder:
        path = folder / "x.job"
        for size in watched(range(len(whole))):
            path.write_bytes(whole[:size])
            with judged(verdict, size, (JobFileError,)):
                _verify(path)
                raise WrongError(f"{size} of {len(whole)} bytes were taken for all")
