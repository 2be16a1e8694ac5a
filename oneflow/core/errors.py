"""Our own error types: one per kind of mistake, each with the exit code and reason it means for a
job.

Users may catch the built-in bases (`ValueError`, `TypeError`, `RuntimeError`); the launcher reads
`exit_code` and `reason` of an uncaught error to report the job's end.
"""

from __future__ import annotations

import errno

CODES = {
    "NONE": 0,
    "USER_ERROR": 1,
    "SIGNAL": 143,
    "OOM_HOST": 137,
    "OOM_DEVICE": 1,
    "NODE_LOST": 137,
    "PEER_LOST": 85,
    "HANG": 80,
    "DESYNC": 81,
    "NONFINITE": 82,
    "CHECKPOINT_INVALID": 83,
    "RENDEZVOUS_TIMEOUT": 84,
    "UNSATISFIABLE": 78,
    "PREEMPTED": 143,
    "TIME_LIMIT": 124,
    "CANCELLED": 143,
    "AUTH": 77,
    "DISK_FULL": 86,
    "INTERNAL": 70,
}
"""The exit code of what ended for a reason that gave no code of its own."""


class OneFlowError(RuntimeError):
    """Base of every error this package raises on purpose."""

    exit_code: int = 1
    reason: str = "USER_ERROR"
    location: str
    """The user's line, once `locate` (oneflow/core/location.py) has found it."""

    def __init_subclass__(cls) -> None:
        """Give an error that names only its reason the exit code of that reason."""
        if "reason" in vars(cls) and "exit_code" not in vars(cls):
            cls.exit_code = CODES[cls.reason]


class ShapeError(OneFlowError, ValueError):
    """Shapes that do not fit an op."""


class DTypeError(OneFlowError, TypeError):
    """Element types that do not fit an op."""


class CallError(OneFlowError, TypeError):
    """A call with arguments that the function does not take, or without one that it needs."""


class ArgumentError(OneFlowError, ValueError):
    """An argument of the right type whose value the function does not take."""


class PositionError(OneFlowError, IndexError):
    """A dim or an index outside of a tensor."""


class LinAlgError(OneFlowError, ValueError):
    """A matrix that has no inverse or no such factors, or a method that found none."""


class SbpError(OneFlowError, ValueError):
    """An SBP that does not fit a tensor, a placement or an op."""


class PlacementError(OneFlowError, ValueError):
    """A placement that does not exist or does not fit."""


class DeviceError(OneFlowError):
    """A device that is not there, or tensors on different devices."""


class DeviceMemoryError(DeviceError):
    """The memory of a device does not suffice."""

    reason = "OOM_DEVICE"


class DeviceFaultError(DeviceError):
    """A kernel failed on its device, of which nothing can be used any more."""


class GraphError(OneFlowError):
    """A graph that cannot be traced, parsed or compiled."""


class BatchingError(OneFlowError):
    """A call inside `vmap` that cannot be made for all samples at once."""


class AutogradError(OneFlowError):
    """A backward pass that cannot be done as asked."""


class CheckpointError(OneFlowError):
    """A file that is not a valid checkpoint."""

    reason = "CHECKPOINT_INVALID"


class FileKindError(OneFlowError, OSError):
    """A path to write to at which there is something else than a regular file."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.strerror = message


class ConfigError(OneFlowError):
    """Bad configuration: flag, environment variable, port or address."""

    reason = "UNSATISFIABLE"


class JobSpecError(OneFlowError, ValueError):
    """A job that cannot be accepted as it is described."""

    exit_code = 64


class ModelError(OneFlowError, ValueError):
    """A folder of a model that cannot be served."""

    exit_code = 65


class StoreError(OneFlowError):
    """The store of the cluster cannot be written or read: disk full, file corrupt or too new."""

    reason = "INTERNAL"


class RowStoreError(OneFlowError):
    """Rows of OneEmbedding that cannot be kept or read: too many, a path in use, a full disk, files
    of another table or torn ones."""

    exit_code = 65
    reason = "USER_ERROR"


class RowsInUseError(RowStoreError):
    """A folder of rows that another run has."""

    reason = "UNSATISFIABLE"


class RowDiskFullError(RowStoreError):
    """A disk that has no room left for rows of OneEmbedding."""

    reason = "DISK_FULL"


class AuthError(OneFlowError):
    """A token that is missing, wrong, expired or does not permit the request."""

    reason = "AUTH"


class ClusterUnreachableError(OneFlowError):
    """No scheduler answers at the address, or none could be found."""

    exit_code = 69
    reason = "INTERNAL"


class StillActiveError(OneFlowError, TimeoutError):
    """The time to wait is over, and the job goes on."""

    exit_code = 75
    reason = "NONE"


class ClusterRequestError(OneFlowError, ValueError):
    """The thing asked of a cluster does not exist there, or cannot be done now."""

    exit_code = 64


class RendezvousError(OneFlowError):
    """Not all ranks met in time."""

    reason = "RENDEZVOUS_TIMEOUT"


class DesyncError(OneFlowError):
    """Ranks did different things where they must do the same."""

    reason = "DESYNC"


class PeerLostError(OneFlowError):
    """Another rank failed or left; this rank only follows."""

    reason = "PEER_LOST"


class HangError(OneFlowError):
    """Nothing moved for longer than the deadline."""

    reason = "HANG"


class NonFiniteError(OneFlowError):
    """A NaN or an infinity where a check was asked for."""

    reason = "NONFINITE"


class TransportError(OneFlowError):
    """Bytes could not be moved between ranks."""

    reason = "INTERNAL"


class ProtocolError(OneFlowError):
    """A peer or an actor got a message it cannot accept."""

    reason = "INTERNAL"


class InternalError(OneFlowError):
    """A broken invariant of ours; please report it."""

    reason = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message} (this is a defect of oneflow-actors: please report it)")


def is_disk_full(error: BaseException) -> bool:
    """Does it say that a disk has no room left, or none that this user may take?"""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
