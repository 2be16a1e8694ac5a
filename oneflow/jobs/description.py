"""The content of `job.json` in a job file. Plain data, decoded strictly: unknown fields
are errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal

import msgspec

from oneflow.core.draws import Draws, Randomness
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.job_config import JobConfig

VERSION = 2
MAX_JSON_NBYTES = 16 << 20
MAX_ROWS = 1 << 48
MAX_NAME_CHARS = 4096

SourceKind = Literal["arrays", "npz", "npy", "safetensors", "csv", "raw"]


class JobFileError(OneFlowError, ValueError):
    """A file that is not a valid job file; the message names the entry and the field."""

    exit_code = 65


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base: no field that we do not know."""


class Column(_Record, frozen=True, kw_only=True):
    """A column that feeds one input: rows of `dtype` and `shape`.

    path: of the file on the hosts of the ranks.  keys: names of the arrays read there (columns of
    a csv file, one array elsewhere).  offset: of the first byte (raw).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str = ""
    keys: tuple[str, ...] = ()
    offset: int = 0


class DataSpec(_Record, frozen=True, kw_only=True):
    """The source of the rows, and how they are put together to batches. epochs: 0, no end."""

    kind: SourceKind
    rows: int
    columns: tuple[Column, ...]
    batch: int
    seed: int | None = None
    drop_last: bool = True
    epochs: int = 1


class Port(_Record, frozen=True, kw_only=True):
    """An input or output of the graph. index: its number there."""

    name: str
    index: int
    dtype: str
    shape: tuple[int, ...]


class Checkpoints(_Record, frozen=True, kw_only=True):
    """The checkpoints of a job.

    every: steps, 0: only when the job is stopped. keep: so many of the newest.
    """

    every: int = 0
    keep: int = 2


class GeneratorState(_Record, frozen=True, kw_only=True):
    """A generator that the graph draws from: where it is before the first step, and how many calls
    a step makes: `each` by each micro-batch, `once` after them."""

    seed: int
    calls: int
    each: int
    once: int = 0


class EntryInfo(_Record, frozen=True, kw_only=True):
    """digest: blake2b-256, hex."""

    nbytes: int
    digest: str


class Description(_Record, frozen=True, kw_only=True):
    """The description of a job.

    steps: 0 for inference. first_step: steps done before. updates: optimizer number -> updates made
    before. record: names of outputs that are reported at each step. generators: in the order of
    their numbers in the graph. config: the ways to compile and bind it.
    """

    format: Literal["oneflow job"] = "oneflow job"
    version: int = VERSION
    kind: Literal["graph", "inference"]
    name: str
    steps: int = 0
    first_step: int = 0
    config: JobConfig
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    record: tuple[str, ...] = ()
    updates: dict[str, int] = {}
    generators: tuple[GeneratorState, ...] = ()
    data: DataSpec | None = None
    checkpoints: Checkpoints = Checkpoints()
    stop_on_nonfinite: bool = False
    entries: dict[str, EntryInfo]


def encode(description: Description) -> bytes:
    """Encode a description as it stands in the file."""
    return msgspec.json.format(msgspec.json.encode(description), indent=1)


def decode(data: bytes, where: str) -> Description:
    """Raises JobFileError that names the field."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.version != VERSION:
            raise JobFileError(
                f"{where} is of version {head.version}, this program reads {VERSION}"
            )
        JobConfig.from_bytes(bytes(head.config))  # refuses unknown fields
        found = msgspec.json.decode(data, type=Description)
    except (msgspec.MsgspecError, ConfigError, RecursionError, UnicodeDecodeError) as error:
        raise JobFileError(f"{where}: {error}") from None
    check(found, where)
    return found


def randomness_of(d: Description) -> Randomness:
    """The generators before the first step."""
    return Randomness(tuple(Draws(g.seed, g.calls, g.each, g.once) for g in d.generators))


class _Head(msgspec.Struct):
    version: int
    config: msgspec.Raw = msgspec.Raw(b"{}")


def check(d: Description, where: str) -> None:
    """Check the fields as far as that needs no other entries. Raises JobFileError."""

    def need(holds: object, field: str, text: str) -> None:
        if not holds:
            raise JobFileError(f"{where}: {field} {text}")

    need(0 < len(d.name) <= MAX_NAME_CHARS, "name", "must have 1 to 4096 characters")
    need(0 <= d.steps < 1 << 40 and 0 <= d.first_step < 1 << 40, "steps", "must be 0 to 2**40")
    need(d.checkpoints.every >= 0, "checkpoints.every", "must not be negative")
    need(1 <= d.checkpoints.keep <= 1000, "checkpoints.keep", "must be 1 to 1000")
    for kind, ports in (("inputs", d.inputs), ("outputs", d.outputs)):
        _unique(where, kind, [p.name for p in ports])
        _unique(where, f"the indices of {kind}", [p.index for p in ports])
        for p in ports:
            _shape(where, f"{kind} {p.name[:80]!r}", p.shape)
    known = {p.name for p in d.outputs}
    for name in d.record:
        need(name in known, "record", f"names {name[:80]!r}, which is no output")
    _unique(where, "record", d.record)
    for key, count in d.updates.items():
        need(key.isdecimal() and 0 <= count < 1 << 40, "updates", "must be counts by number")
    need(len(d.generators) <= 4096, "generators", "are too many")
    for g in d.generators:
        need(0 <= g.seed < 1 << 64 and 0 <= g.calls < 1 << 62, "generators", "have no such state")
        need(min(g.each, g.once) >= 0, "generators", "must be called 0 times or more")
        need(max(g.each, g.once) < 1 << 31, "generators", "are called too often")
    if d.kind == "graph":
        need(d.data is not None or not d.inputs, "data", "is missing")
        need(d.steps > 0, "steps", "must be at least 1")
    if d.data is not None:
        check_data(d.data, f"{where}: data")


def check_data(data: DataSpec, where: str) -> None:
    """Raises JobFileError for a data declaration that cannot be."""
    if not 1 <= data.rows < MAX_ROWS:
        raise JobFileError(f"{where}.rows: {data.rows} must be 1 to 2**48")
    if not 1 <= data.batch <= data.rows:
        raise JobFileError(
            f"{where}.batch: {data.batch} is not 1 to the {data.rows} rows there are"
        )
    if not 0 <= data.epochs < 1 << 40:
        raise JobFileError(f"{where}.epochs: {data.epochs} must be 0 (no end) to 2**40")
    if data.seed is not None and not 0 <= data.seed < 1 << 64:
        raise JobFileError(f"{where}.seed: {data.seed} must have 64 bits")
    if not data.columns:
        raise JobFileError(f"{where}.columns: there are none")
    _unique(where, "columns", [c.name for c in data.columns])
    for column in data.columns:
        who = f"{where}.columns {column.name[:80]!r}"
        _shape(who, "shape", column.shape)
        if not 0 <= column.offset < 1 << 62:
            raise JobFileError(f"{who}: offset {column.offset} is none")
        if (data.kind == "arrays") is bool(column.path):
            raise JobFileError(f"{who}: path {column.path[:80]!r} with data of kind {data.kind}")
        if "\0" in column.path or len(column.path) > 4096:
            raise JobFileError(f"{who}: path is none")


def _shape(where: str, what: str, shape: tuple[int, ...]) -> None:
    numel = 1
    for n in shape:
        numel *= max(n, 1)
    if len(shape) > 32 or any(n < 0 for n in shape) or numel >= 1 << 48:
        raise JobFileError(f"{where}: {what}: {str(shape)[:80]} is no shape")


def _unique(where: str, what: str, items: Iterable[Hashable]) -> None:
    found = list(items)
    if len(set(found)) != len(found):
        raise JobFileError(f"{where}: {what}: one is there twice")
    if len(found) > 4096 or any(isinstance(i, str) and not 0 < len(i) <= 4096 for i in found):
        raise JobFileError(f"{where}: {what}: too many, or a name that is none")
