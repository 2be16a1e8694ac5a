"""Inputs that nobody means: every message, job files, checkpoints, the command line, HTTP, gRPC.

    python tests/faults/fault_fuzz.py [--inputs N] [--seed S] [--only NAME]

Verdicts: nothing but declared errors, no input takes a second, memory grows by less than 64 MB,
what is decoded and encoded again is stable, and a server that was fed goes on serving.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from oneflow.core.errors import OneFlowError
from oneflow.protos import cluster_pb2, control_pb2, graph_pb2, plan_pb2

SLOW_S, MAX_GROWTH_NBYTES = 1.0, 64 << 20
WORDS = (
    "",
    "x",
    "j1",
    "cpu",
    "cpu:0",
    "rig/cpu:0",
    "../../etc",
    "\u00e9\u0000",
    "9" * 40,
    "a" * 300,
)
NUMBERS = (0, 1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, -1.0, 1.5, 1e308, float("inf"), float("nan"))
JSON_VALUES = ("0", "-1", "1e999", "null", "true", "[]", "{}", '"x"', "9" * 400, "NaN", "[[[[]]]]")
SHARE = {"messages": 0.7, "checkpoints": 0.15, "texts": 0.1, "jobfile": 0.02, "cli": 0.02}
"""Of all inputs, for what is tried in this process; servers get the rest."""


@dataclass
class Verdict:
    """Of one target."""

    name: str
    inputs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def note(self, end: str) -> None:
        self.inputs += 1
        self.ends[end] += 1


@contextmanager
def judged(
    verdict: Verdict, seed: int, declared: tuple[type[BaseException], ...]
) -> Iterator[None]:
    """One input: anything but a declared error is a defect."""
    start = time.perf_counter()
    try:
        yield
        end = "taken"
    except declared as error:
        end = type(error).__name__
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        end = type(error).__name__
        verdict.bad.append(f"seed {seed}: {end}: {str(error)[:300]}")
    if time.perf_counter() - start > SLOW_S:
        verdict.bad.append(f"seed {seed}: took {time.perf_counter() - start:.1f} s")
    verdict.note(end)


# ---- making inputs -------------------------------------------------------------------------------


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, set, cut, put in or repeated."""
    found = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del found[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            found[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            found[at:at] = found[: rng.randrange(1, 40)]
        else:
            del found[at:]
    return bytes(found[: 1 << 16])


def message_kinds() -> list[Any]:
    """Every message of every proto."""
    found = []
    for module in (cluster_pb2, control_pb2, graph_pb2, plan_pb2):
        for name in sorted(module.DESCRIPTOR.message_types_by_name):
            found.append(getattr(module, name))
    return found


def random_message(rng: random.Random, kind: Any, depth: int = 0) -> Any:
    """Fields that are set, or not, to odd and to usual values."""
    message = kind()
    for entry in message.DESCRIPTOR.fields:
        if rng.random() < 0.4 or depth > 4:
            continue
        _fill(rng, message, entry, depth)
    return message


def _fill(rng: random.Random, message: Any, entry: Any, depth: int) -> None:
    if entry.message_type is not None and entry.message_type.GetOptions().map_entry:
        key = _scalar(rng, entry.message_type.fields_by_name["key"])
        value = entry.message_type.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, entry.name)[key] = _scalar(rng, value)
        return
    count = rng.choice((0, 1, 2, 5)) if entry.is_repeated else 1
    for _ in range(count):
        if entry.message_type is not None:
            sub = random_message(rng, entry.message_type._concrete_class, depth + 1)
            target = getattr(message, entry.name)
            target.add().CopyFrom(sub) if entry.is_repeated else target.CopyFrom(sub)
        elif entry.is_repeated:
            getattr(message, entry.name).append(_scalar(rng, entry))
        else:
            setattr(message, entry.name, _scalar(rng, entry))


def _scalar(rng: random.Random, entry: Any) -> Any:
    kind = entry.cpp_type
    if kind == entry.CPPTYPE_STRING:
        word = rng.choice(WORDS)
        return word if entry.type == entry.TYPE_STRING else word.encode()
    if kind == entry.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (entry.CPPTYPE_DOUBLE, entry.CPPTYPE_FLOAT):
        return rng.choice(FLOATS)
    if kind == entry.CPPTYPE_ENUM:
        return rng.choice(list(entry.enum_type.values)).number
    number = rng.choice(NUMBERS)
    bits = 32 if kind in (entry.CPPTYPE_INT32, entry.CPPTYPE_UINT32) else 64
    signed = kind in (entry.CPPTYPE_INT32, entry.CPPTYPE_INT64)
    return number % (1 << (bits - 1 if signed else bits))


def text_mutated(rng: random.Random, text: str) -> str:
    """A value of a JSON or TOML text replaced, or a few characters."""
    if rng.random() < 0.5:
        return mutated(rng, text.encode()).decode(errors="replace")
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(JSON_VALUES) + text[at + rng.randrange(6) :]


# ---- what is fed ---------------------------------------------------------------------------------


def fuzz_messages(verdict: Verdict, seeds: range) -> None:
    kinds = message_kinds()
    for seed in seeds:
        rng = random.Random(seed)
        kind = kinds[seed % len(kinds)]
        data = mutated(rng, random_message(rng, kind).SerializeToString())
        with judged(verdict, seed, (DecodeError, OneFlowError)):
            message = kind.FromString(data)
            again = kind.FromString(message.SerializeToString(deterministic=True))
            if again.SerializeToString(deterministic=True) != message.SerializeToString(
                deterministic=True
            ):
                raise AssertionError(f"{kind.__name__} is not stable")
            _hand_on(kind, message, data)


def _hand_on(kind: Any, message: Any, data: bytes) -> None:
    """To whom such a message is for."""
    from oneflow.core.frames import FrameDecoder, encode_frame
    from oneflow.core.graph_proto import graph_from_bytes
    from oneflow.core.plan import Plan
    from oneflow.launcher.daemon import wire as daemon_wire
    from oneflow.scheduler.cluster import wire
    from oneflow.scheduler.jobs.limits import check_spec
    from oneflow.scheduler.jobs.specs import record_from_proto, spec_from_proto

    match kind.__name__:
        case "JobSpec":
            check_spec(spec_from_proto(message))
        case "JobRecord":
            record_from_proto(message)
        case "Hello":
            wire.joined(message)
        case "DaemonMessage":
            wire.event_of(message, "rig/cpu:0")
        case "SchedulerMessage":
            daemon_wire.event_of(message)
        case "WorkerMessage" | "WorkerCommand":
            FrameDecoder(kind).feed(mutated(random.Random(len(data)), encode_frame(message)))
        case "Graph":
            graph_from_bytes(data)
        case "Plan":
            Plan.from_bytes(data)


def fuzz_checkpoints(verdict: Verdict, seeds: range) -> None:
    """Headers of safetensors files and manifests."""
    from oneflow.core.errors import CheckpointError
    from oneflow.io.container import Container
    from oneflow.io.files import OpenFile
    from oneflow.io.manifest import parse_manifest, sealed

    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    header = json.dumps({"a": entry, "b": {**entry, "data_offsets": [24, 48]}, "__metadata__": {}})
    part = [0, [0], [4], 128, "0123456789abcdef"]
    stored = {"shape": [4], "dtype": "float32", "parts": [part]}
    content = json.dumps(
        {
            "save": "s",
            "tree": {},
            "files": [["shard-s-00000.safetensors", 200]],
            "tensors": {"t": stored},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        for seed in seeds:
            rng = random.Random(seed)
            with judged(verdict, seed, (CheckpointError,)):
                if seed % 4:
                    parse_manifest(sealed(text_mutated(rng, content[:-1]).encode()))
                    continue
                text = text_mutated(rng, header).encode()
                size = len(text) if rng.random() < 0.8 else rng.choice(NUMBERS)
                path.write_bytes(struct.pack("<Q", size) + text + bytes(48))
                with OpenFile(path) as file:
                    Container(file)


def fuzz_texts(verdict: Verdict, seeds: range) -> None:
    """Variables, failpoints, times, files of settings."""
    from oneflow.cluster.durations import parse_duration
    from oneflow.cluster.toml import read_toml
    from oneflow.core.config import Config, split_address
    from oneflow.core.failpoints import parse

    samples: list[tuple[str, Callable[[str], Any]]] = [
        ("worker.step=sleep:2@hit=3;ckpt.write=error:EIO", parse),
        ("2h", parse_duration),
        ("127.0.0.1:9400", split_address),
        ("1.5", lambda t: Config.from_env({"ONEFLOW_TIMEOUT_SECONDS": t})),
        ("1", lambda t: Config.from_env({"ONEFLOW_DEBUG": t, "ONEFLOW_ATTEMPT": t})),
        ("json", lambda t: Config.from_env({"ONEFLOW_LOG_FORMAT": t, "ONEFLOW_DATA_ROOTS": t})),
    ]
    toml = '[client]\naddress = "head:9400"\n[scheduler]\nallow_scripts = false\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        for seed in seeds:
            rng = random.Random(seed)
            with judged(verdict, seed, (OneFlowError,)):
                if seed % 8 == 0:
                    path.write_text(text_mutated(rng, toml), encoding="utf-8")
                    read_toml(path)
                    continue
                text, read = samples[seed % len(samples)]
                read(text_mutated(rng, text))


def fuzz_jobfile(verdict: Verdict, seeds: range, job_file: Path) -> None:
    """Entries changed under right digests, and archives changed as they are."""
    import zipfile

    from oneflow.jobs.archive import Hashed, Writer
    from oneflow.jobs.errors import JobFileError
    from oneflow.jobs.jobfile import verify

    with zipfile.ZipFile(job_file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    whole = job_file.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.job"
        for seed in seeds:
            rng = random.Random(seed)
            if seed % 3 == 0:
                path.write_bytes(mutated(rng, whole))
            elif not _write_job(rng, path, dict(entries), Writer, Hashed):
                continue
            with judged(verdict, seed, (JobFileError,)):
                verify(path)


def _write_job(rng: random.Random, path: Path, entries: Any, writer_of: Any, hashed: Any) -> bool:
    """False if the changed job.json is no JSON: that is tried with whole archives."""
    name = rng.choice(sorted(entries))
    if name == "job.json":
        entries[name] = text_mutated(rng, entries[name].decode()).encode()
    else:
        entries[name] = mutated(rng, entries[name])
    try:
        job = json.loads(entries.pop("job.json"))
    except (ValueError, RecursionError):
        return False
    if not isinstance(job, dict):
        return False
    writer, listed = writer_of(path), {}
    for other, content in entries.items():
        with writer.entry(other) as raw:
            file = hashed(raw)
            file.write(content)
            listed[other] = {"nbytes": file.nbytes, "digest": file.digest}
    job["entries"] = listed
    with writer.entry("job.json") as raw:
        raw.write(json.dumps(job).encode())
    writer.commit()
    return True


def fuzz_cli(verdict: Verdict, seeds: range) -> None:
    """Words are parsed down to the verb, and nothing is run."""
    import click

    from oneflow.cli.main import cli

    verbs = "job cluster daemon scheduler ckpt config top submit list get logs wait cancel up down"
    flags = (
        "--devices --device --wait -f -o json --limit --timeout --file --listen --rank 0,1 -- 2h"
    )
    known = f"{verbs} run {flags}".split()
    for seed in seeds:
        rng = random.Random(seed)
        words = [rng.choice(known) for _ in range(rng.randrange(1, 8))]
        words = [text_mutated(rng, w).replace("\0", "") if rng.random() < 0.3 else w for w in words]
        with judged(verdict, seed, (click.ClickException, click.exceptions.Exit, OneFlowError)):
            _parse_words(click, cli, words)


def _parse_words(click: Any, command: Any, words: list[str]) -> None:
    context = None
    while True:
        with open(os.devnull, "w") as nowhere:
            stdout, sys.stdout = sys.stdout, nowhere
            try:
                context = command.make_context("oneflow", words, parent=context)
            finally:
                sys.stdout = stdout
        first = getattr(context, "_protected_args", None)  # public until Click 8.2
        rest = [*(context.protected_args if first is None else first), *context.args]
        if not isinstance(command, click.Group) or not rest:
            return
        _, found, words = command.resolve_command(context, rest)
        command = found


# ---- servers -------------------------------------------------------------------------------------


def rss_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fuzz_here(inputs: int, seed: int, only: str, job_file: Path | None) -> list[Verdict]:
    """All that needs no server."""
    targets: dict[str, Callable[[Verdict, range], None]] = {
        "messages": fuzz_messages,
        "checkpoints": fuzz_checkpoints,
        "texts": fuzz_texts,
        "cli": fuzz_cli,
    }
    if job_file is not None:
        targets["jobfile"] = lambda verdict, seeds: fuzz_jobfile(verdict, seeds, job_file)
    found = []
    for name, feed in targets.items():
        if only and name != only:
            continue
        verdict = Verdict(name)
        count = max(int(inputs * (1.0 if only else SHARE[name])), 1)
        feed(verdict, range(seed, seed + min(count, 500)))  # caches and imports come first
        before, start = rss_nbytes(), time.monotonic()
        feed(verdict, range(seed + min(count, 500), seed + count))
        grown = rss_nbytes() - before
        if grown > MAX_GROWTH_NBYTES:
            verdict.bad.append(f"memory grew by {grown >> 20} MB")
        say(verdict, time.monotonic() - start, grown)
        found.append(verdict)
    return found


def say(verdict: Verdict, seconds: float, grown: int) -> None:
    ends = ", ".join(f"{name} {count}" for name, count in verdict.ends.most_common(6))
    print(
        f"{verdict.name:12} {verdict.inputs:8} inputs {seconds:6.1f} s, +{grown >> 10} KB, "
        f"{len(verdict.bad)} defects: {ends}",
        flush=True,
    )
    for said in verdict.bad[:5]:
        print(f"  {said}\n  again: python tests/faults/fault_fuzz.py --only {verdict.name}")


def main() -> int:
    from fault_rig import end_in_order, export_jobs, rig
    from fault_servers import fuzz_servers

    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", help="messages, checkpoints, texts, cli, jobfile, servers"
    )
    args = parser.parse_args()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="oneflow-rig-") as name:
        folder = Path(name)
        export_jobs(folder)
        found = []
        if args.only != "servers":
            found = fuzz_here(args.inputs, args.seed, args.only, folder / "dense.job")
        if args.only in ("", "servers"):
            (folder / "rig").mkdir()
            with rig(folder / "rig", armed=False) as cluster:
                found += fuzz_servers(cluster, max(args.inputs // 100, 50), args.seed)
    print(f"{sum(v.inputs for v in found)} inputs, {sum(len(v.bad) for v in found)} defects")
    return any(v.bad for v in found)


if __name__ == "__main__":
    sys.exit(main())
