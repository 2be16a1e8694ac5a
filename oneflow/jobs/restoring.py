"""Goes on from a checkpoint, on any number of ranks and in any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from oneflow.core.errors import CheckpointError, RowStoreError
from oneflow.core.log import get_logger
from oneflow.core.metrics import METRICS
from oneflow.distributed.world import world
from oneflow.io.all_or_none import AllOrNone
from oneflow.io.decoding import decode
from oneflow.io.load_shards import load_parts, verify_shards
from oneflow.io.manifest import MANIFEST_FILE, Manifest
from oneflow.jobs.order import Cursor
from oneflow.jobs.running import Variable
from oneflow.jobs.saving import FOLDER, LAST, saved_steps
from oneflow.jobs.tables import NO_TABLES, Tables
from oneflow.kernels.array import Array
from oneflow.tensor.devices import to_device

log = get_logger(__name__)

T = TypeVar("T")

MAX_NAME_NBYTES = 64


@dataclass(frozen=True)
class Restored:
    """The place where the job goes on. step: steps done. path: of the checkpoint that was read."""

    step: int
    cursor: Cursor
    path: str


def choose(path: str, *, may_fall_back: bool) -> str:
    """The checkpoint to go on from, all of whose bytes are as they were written; all ranks call it,
    before they take memory for a job.

    path: of the checkpoint, or of a folder of them, which means the last one.
    may_fall_back: if it is damaged, an older one beside it is taken, with a warning.
    Raises CheckpointError if there is none.
    """

    def check(candidate: str) -> str:
        verify_shards(candidate)
        return candidate

    return _first_good(path, may_fall_back, check)


def restore(
    path: str,
    variables: Mapping[str, Variable],
    tables: Tables = NO_TABLES,
    *,
    may_fall_back: bool,
) -> Restored:
    """Fills the variables and the rows of embeddings from the checkpoint that `choose` found; all
    ranks call it.

    Raises CheckpointError if it is one of something else, or if it, and with may_fall_back every
    older one, cannot be read after all.
    """
    return _first_good(path, may_fall_back, lambda candidate: _read(candidate, variables, tables))


def _first_good(path: str, may_fall_back: bool, use: Callable[[str], T]) -> T:
    candidates = _candidates(Path(path), may_fall_back)
    for i, candidate in enumerate(candidates):
        try:
            return use(candidate)
        except CheckpointError as error:  # the same on all ranks
            if world().rank == 0:
                METRICS.checkpoint_failures["CHECKPOINT_INVALID"] += 1
            if i + 1 == len(candidates):
                raise
            log.warning("%s; going on from %s", error, candidates[i + 1])
    raise CheckpointError(f"there is no checkpoint at {path}")


def _candidates(path: Path, may_fall_back: bool) -> list[str]:
    """List the checkpoints as rank 0 sees them: the wanted one, then older ones, newest first; if
    it is not there any more, newer ones have taken its place.
    """
    pact = AllOrNone(f"checkpoint {path}", "resume of a job")
    found: list[str] = []
    if pact.rank == 0:
        found = pact.attempt(lambda: _seen(path, may_fall_back)) or []
    listed: list[str] = pact.meet(found)[0]
    return listed


def _seen(path: Path, may_fall_back: bool) -> list[str]:
    match = FOLDER.fullmatch(path.name)
    if may_fall_back and match:
        is_gone, wanted = not path.exists(), int(match.group(1))
        others = [n for n in saved_steps(path.parent) if n < wanted or (is_gone and n > wanted)]
        return [str(path), *(str(path.parent / f"step-{n}") for n in reversed(others))]
    return [str(_one(path))]


def _one(path: Path) -> Path:
    """The checkpoint at `path`, or the last one of the folder. Raises CheckpointError."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no checkpoint: there is no such folder on this host")
    if (path / MANIFEST_FILE).exists():
        return path
    steps = [f"step-{n}" for n in saved_steps(path)]
    if not steps:
        raise CheckpointError(
            f"{path} is no checkpoint: it has no {MANIFEST_FILE}, nor are there checkpoints "
            "step-<n> in it"
        )
    try:
        with open(path / LAST, "rb") as file:
            name = file.read(MAX_NAME_NBYTES).decode(errors="replace").strip()
    except OSError as error:
        name = error.strerror or str(error)
    if name not in steps:
        raise CheckpointError(
            f"{path} is a folder of checkpoints, but its {LAST} names none of them ({name!r}); "
            f"name one yourself, as {path / steps[-1]}"
        )
    return path / name


def _read(path: str, variables: Mapping[str, Variable], tables: Tables) -> Restored:
    read: list[_State] = []
    targets: dict[str, Variable] = {}  # by their names in the checkpoint

    def layouts(manifest: Manifest) -> Mapping[str, Any]:
        read.append(_state(manifest, path))
        _compare(manifest, read[0].variables, variables, path)
        targets.update((stored, variables[n]) for n, stored in read[0].variables.items())
        return {stored: (v.placement, v.sbp) for stored, v in targets.items()}

    def place_of(stored: str) -> Array | None:
        found = targets[stored].array if stored in targets else None
        return found if isinstance(found, np.ndarray) else None

    _, parts = load_parts(path, layouts, place_of)
    state = read[0]
    for name, stored in state.variables.items():
        target = variables[name]
        if target.array is None:
            continue
        if stored not in parts:
            target.array[...] = 0  # of partial sums the first rank has the value
        elif parts[stored] is not target.array:  # on a device, or two are saved as one
            target.array[...] = to_device(parts[stored], target.placement.type)
    _load_rows(path, state.rows, tables)
    return Restored(state.step, Cursor(state.cursor.epoch, state.cursor.position), path)


def _load_rows(path: str, snapshots: Mapping[str, str], tables: Tables) -> None:
    """Load the rows on all ranks. Raises CheckpointError on all of them if one cannot."""

    def load() -> None:
        try:
            tables.load(snapshots)
        except RowStoreError as error:
            raise CheckpointError(f"{path}: {error}") from error

    pact = AllOrNone(f"rows of checkpoint {path}", "resume of a job's rows")
    pact.attempt(load)
    pact.meet()


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]


class _Place(msgspec.Struct):
    """A cursor, of which neither part may be missing."""

    epoch: _Count
    position: _Count


class _State(msgspec.Struct):
    """The tree of a checkpoint. variables: by name, their names in it. rows: snapshots by name."""

    format: Literal["oneflow job state"]
    step: _Count
    cursor: _Place
    variables: dict[str, str]
    rows: dict[str, str] = {}


def _state(manifest: Manifest, path: str) -> _State:
    tree = decode(manifest.form, lambda name, *_: name, lambda name: name)
    try:
        return msgspec.convert(tree, _State)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is a checkpoint, but not one of a job: {error}") from None


def _compare(
    manifest: Manifest, names: Mapping[str, str], variables: Mapping[str, Variable], path: str
) -> None:
    odd = sorted(set(names) ^ set(variables))
    if odd:
        where = "in the checkpoint" if odd[0] in names else "in the job"
        raise CheckpointError(f"{path} is of another job: variable {odd[0]!r} is only {where}")
    for name, stored in names.items():
        found = manifest.tensors[stored]
        wanted = variables[name].type
        if (found.shape, found.dtype) != (wanted.shape, np.dtype(wanted.dtype.np)):
            raise CheckpointError(
                f"{path} is of another job: variable {name!r} is {found.dtype}{list(found.shape)} "
                f"there and {wanted} here"
            )


def is_allowed(path: str, folders: list[Path]) -> bool:
    """Whether a checkpoint lies in one of the folders that jobs may use."""
    real = Path(path).resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in folders)
