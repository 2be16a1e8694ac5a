"""The files that a job leaves for its owner, in `<job folder>/outputs`:

metrics.jsonl            a line for each step: {"step": 1, "loss": 2.30..., ...}
variables.safetensors    the final variables, optimizer state among them
<name>.safetensors       the last value of a recorded output
rows.json                the snapshot of each embedding's final rows, by its name
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.core.folders import sync_folder
from oneflow.core.whole_files import PendingFile, write_whole
from oneflow.io.container import Writer
from oneflow.kernels.array import Array

FOLDER = "outputs"
METRICS = "metrics.jsonl"
ROWS = "rows.json"
VARIABLES = "variables"
_LINE_NBYTES = 64 << 10


class MetricsFile:
    """The curve of every recorded number, appended step by step, exact to the last bit."""

    def __init__(self, job_dir: Path, steps_done: int) -> None:
        folder = job_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS
        keep = _nbytes_until(path, steps_done)
        self._file = open(path, "ab", buffering=_LINE_NBYTES)  # noqa: SIM115  (closed by close)
        self._file.truncate(keep)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Raises OSError."""
        self._file.write(json.dumps({"step": step, **values}).encode() + b"\n")

    def flush(self) -> None:
        """Write what was added to the file; it is not yet on the disk."""
        self._file.flush()

    def check(self) -> None:
        """Raises OneFlowError if the file was deleted meanwhile: its job did not succeed."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OneFlowError(f"{self._file.name} was deleted while the job ran")

    def close(self) -> None:
        self._file.close()


def _nbytes_until(path: Path, step: int) -> int:
    """Bytes of the lines up to a step, at which a resumed job goes on."""
    total = 0
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                    break
                total += len(line)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return total
    return total


def write_arrays(
    job_dir: Path,
    name: str,
    kinds: Mapping[str, tuple[Any, tuple[int, ...]]],
    arrays: Iterator[tuple[str, Array]],
) -> None:
    """`<name>.safetensors`, whole or not at all. kinds: dtype and shape of what is to come."""
    folder = job_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with PendingFile(folder / f"{name}.safetensors") as file:
        writer = Writer(file, kinds, {})
        for key, array in arrays:
            writer.add(key, array)
    sync_folder(folder)


def write_rows(job_dir: Path, snapshots: Mapping[str, str]) -> None:
    """Write `rows.json`, whole or not at all. snapshots: by the names of embeddings."""
    folder = job_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / ROWS, json.dumps(dict(snapshots)).encode())
    sync_folder(folder)
