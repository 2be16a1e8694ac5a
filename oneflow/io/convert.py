"""A checkpoint of any kind that `load` reads, as one file in the safetensors format."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from oneflow.core.errors import CheckpointError
from oneflow.core.folders import sync_folder
from oneflow.core.json_values import Json
from oneflow.core.whole_files import PendingFile
from oneflow.io.container import Writer
from oneflow.io.decoding import decode, places
from oneflow.io.sources import VERSION, Foreign, ObjectSource, Source, open_source


def convert(source: Path, target: Path, is_plain: bool = False) -> tuple[int, int]:
    """Writes all of `source` (a folder of shards, a file of `save`, a checkpoint of PyTorch or of
    upstream OneFlow) into the file `target`, one tensor at a time, every digest compared.

    is_plain: without our structure around the tensors, for other programs.  Returns how many
    tensors and bytes were written; `target` appears when it is whole.
    Raises CheckpointError for a source that is damaged or has no tensors, OSError.
    """
    with closing(_opened(source)) as found:
        if not found.shapes:
            raise CheckpointError(f"{source} has no tensors")
        pending = PendingFile(target)
        try:
            nbytes = _copy(found, pending, is_plain)
            pending.commit()
            sync_folder(target.resolve().parent)
        except BaseException:
            pending.abort()
            raise
        return len(found.shapes), nbytes


def _opened(path: Path) -> Source:
    found = open_source(path, support_pytorch_format=True)
    return ObjectSource(found.value) if isinstance(found, Foreign) else found


def _copy(found: Source, pending: PendingFile, is_plain: bool) -> int:
    tree = json.dumps(found.form, separators=(",", ":"))
    metadata = {"format": "pt"} if is_plain else {"oneflow": VERSION, "tree": tree}
    own = {name: name for name in found.shapes}  # ours mean nothing to other programs
    names = own | (_unique_places(found.form) if is_plain else {})
    shapes = {names[name]: shape for name, shape in found.shapes.items()}
    writer, nbytes = Writer(pending.file, shapes, metadata), 0
    for name in found.shapes:
        array = found.read(name)
        writer.add(names[name], array)
        nbytes += array.nbytes
    return nbytes


def _unique_places(form: Json) -> dict[str, str]:
    """Map the name of each tensor to its first place in the structure: `variables.model.weight`,
    `a.0`.
    """
    decode(form, lambda *_: None, lambda *_: None)  # refuses what is no tree of ours
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name, place in places(form).items():
        free = place or "tensor"
        while free in taken:  # keys 1 and "1" look alike
            free += "_"
        found[name] = free
        taken.add(free)
    return found
