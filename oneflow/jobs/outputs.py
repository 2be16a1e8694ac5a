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
from oneflow.core.log import get_logger
from oneflow.core.whole_files import PendingFile, write_whole
from oneflow.io.container import Writer
from oneflow.kernels.array import Array

FOLDER = "outputs"
METRICS = "metrics.jsonl"
ROWS = "rows.json"
VARIABLES = "variables"
_LINE_NBYTES = 64 << 10
MAX_WAITING_NBYTES = 16 << 20

log = get_logger(__name__)


class MetricsFile:
    """The curve of every recorded number, appended step by step, exact to the last bit.

    Lines that a full disk does not take wait in memory, up to `MAX_WAITING_NBYTES`.
    """

    def __init__(self, job_dir: Path, steps_done: int) -> None:
        folder = job_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / METRICS
        keep = _nbytes_until(self._path, steps_done)
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  (closed by close)
        self._file.truncate(keep)
        self._waiting = bytearray()
        self._num_dropped = 0
        self._trouble = False

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append the numbers of a step."""
        if len(self._waiting) > MAX_WAITING_NBYTES:
            self._num_dropped += 1
            return
        self._waiting += json.dumps({"step": step, **values}).encode() + b"\n"
        if len(self._waiting) >= _LINE_NBYTES and not self._trouble:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait, as far as the disk takes them; the file is not synced."""
        try:
            self._write()
        except OSError as error:
            if not self._trouble:
                log.warning("cannot write %s: %s; its lines wait in memory", self._path, error)
            self._trouble = True
            return
        if self._trouble:
            log.warning("%s is written again; %d steps are missing", self._path, self._num_dropped)
        self._trouble, self._num_dropped = False, 0

    def _write(self) -> None:
        while self._waiting:
            del self._waiting[: self._file.write(self._waiting)]

    def check(self) -> None:
        """Check that all lines are in the file, or else the job did not succeed.

        Raises:
            OSError: If the disk does not take the last ones.
            OneFlowError: If the file was deleted meanwhile.
        """
        self._write()
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OneFlowError(f"{self._path} was deleted while the job ran")

    def close(self) -> None:
        self.flush()
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
    """`<name>.safetensors`, whole or not at all. kinds: dtype and shape of the arrays to come."""
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
