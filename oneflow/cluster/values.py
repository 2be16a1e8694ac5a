"""Arrays on the way to and from a cluster: as messages, and as files of outputs."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from oneflow.cluster.connection import Connection
from oneflow.core.errors import ClusterRequestError, ClusterUnreachableError, ProtocolError
from oneflow.protos import cluster_pb2 as pb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from oneflow.tensor.tensor import Tensor

    Array = np.ndarray[Any, Any]


def tensor_message(name: str, value: ArrayLike | Tensor) -> pb.Tensor:
    """Encode a value as the bytes of a tensor.

    value: an array, a tensor of ours, or numbers in lists, which become tensors as
    by `flow.tensor`: float32, int64 or bool. Raises ClusterRequestError for anything else.
    """
    import numpy as np

    if not hasattr(value, "dtype"):
        value = _of_numbers(name, value)
    array = np.ascontiguousarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.hasobject or array.dtype.names:
        raise ClusterRequestError(f"input {name!r}: an array of {array.dtype} cannot be sent")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)  # the wire's order
    shape = np.shape(value)  # ascontiguousarray makes 0-d arrays 1-d
    return pb.Tensor(name=name, dtype=array.dtype.name, shape=shape, data=array.tobytes())


def _of_numbers(name: str, value: ArrayLike) -> Array:
    import numpy as np

    try:
        array = np.array(value)
    except ValueError as error:  # lists of different lengths, say
        raise ClusterRequestError(f"input {name!r} is no array: {error}") from None
    narrow = {"f": np.float32, "c": np.complex64}.get(array.dtype.kind, array.dtype)
    return array.astype(narrow, copy=False)


def tensor_of(message: pb.Tensor) -> Array:
    """Raises ProtocolError for a message whose parts do not fit."""
    import numpy as np

    from oneflow.io.container import dtype_named

    dtype, shape = dtype_named(message.dtype), tuple(message.shape)
    if dtype is None or math.prod(shape) * dtype.itemsize != len(message.data):
        raise ProtocolError(
            f"output {message.name[:80]!r}: {len(message.data)} bytes are no "
            f"{message.dtype[:20]}{list(shape)[:16]}"
        )
    found: Array = np.frombuffer(message.data, dtype).reshape(shape).copy()
    return found


class OutputFile:
    """An output of a job, fetched into a file that is gone after the `with`.

    folder: where that file is; None: where temporary files are.  rank: on whose node the output is.
    """

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        name: str,
        folder: Path | None = None,
        rank: int = 0,
    ) -> None:
        self._connection, self._job_id, self._name = connection, job_id, name
        self._folder, self._rank = folder, rank

    def __enter__(self) -> OutputFile:
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(
            prefix=".oneflow-output-", dir=self._folder
        )
        try:
            self._fetch()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def path(self) -> Path:
        return Path(self._file.name)

    def read(self) -> bytes:
        return self.path.read_bytes()

    def save(self) -> Path:
        """Fetches it into its folder under its own name, whole or not at all; a name with / goes
        into folders below. Raises ClusterRequestError if one of these is a link.
        """
        parts = self._name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or self._folder is None:
            raise ProtocolError(f"{self._name[:80]!r} is no name of a file")
        folder = _made_below(self._folder, parts[:-1])
        target = folder / parts[-1]
        partial = folder / f".{secrets.token_hex(8)}.partial"
        with self, open(partial, "xb", opener=_no_link) as file:
            try:
                with open(self.path, "rb") as fetched:
                    shutil.copyfileobj(fetched, file)
                file.flush()
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        return target

    def _fetch(self) -> None:
        """Fetch the file, from the beginning again if the line breaks: it may be another one by
        then.
        """
        request = pb.OutputRequest(job_id=self._job_id, name=self._name, rank=self._rank)
        retries = self._connection.retries()
        while True:
            self._file.seek(0)
            self._file.truncate()
            try:
                stream = self._connection.stream("Jobs", "Outputs", request, retries=retries)
                for chunk in stream:
                    self._file.write(chunk.data)
                self._file.flush()
                return
            except ClusterUnreachableError as error:
                retries.pause(error)


def _made_below(folder: Path, parts: Sequence[str]) -> Path:
    """The folder below, made if need be: never through a link, which may lead anywhere."""
    for part in parts:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ClusterRequestError(
                f"{folder} is no folder of its own, and an output goes into it: move it away, or "
                "name another folder"
            )
        folder.mkdir(exist_ok=True)
    return folder


def _no_link(path: str, flags: int) -> int:
    """Open a file in a folder that others may write to: never through a link of theirs."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def arrays_of(path: Path) -> dict[str, Array]:
    """All arrays of a safetensors file. Raises CheckpointError if it is not whole."""
    from oneflow.io.container import Container
    from oneflow.io.files import OpenFile

    file = OpenFile(path)
    try:
        container = Container(file)
        return {name: container.read(name) for name in container.entries}
    finally:
        file.close()
