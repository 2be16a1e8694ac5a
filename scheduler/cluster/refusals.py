"""Errors that a caller is told, each with the status code of gRPC that it means."""

from __future__ import annotations

from oneflow.core.errors import (
    AuthError,
    ConfigError,
    JobSpecError,
    OneFlowError,
    ProtocolError,
    StoreError,
)


class RefusedError(OneFlowError):
    """A call that cannot be answered as asked. status: the name of a gRPC code."""

    status = "FAILED_PRECONDITION"


class NotFoundError(RefusedError):
    """The thing that was asked for is not there."""

    status = "NOT_FOUND"


class ExistsError(RefusedError):
    """Something else has this name already."""

    status = "ALREADY_EXISTS"


class ExhaustedError(RefusedError):
    """A limit has been reached; later it may work."""

    status = "RESOURCE_EXHAUSTED"


class UnavailableError(RefusedError):
    """Something that the call needs is not reachable now."""

    status = "UNAVAILABLE"


class DeadlineError(RefusedError):
    """No answer came in time."""

    status = "DEADLINE_EXCEEDED"


class DeniedError(AuthError):
    """The caller is known, but may not do this."""


_STATUS: tuple[tuple[type[OneFlowError], str], ...] = (
    (DeniedError, "PERMISSION_DENIED"),
    (AuthError, "UNAUTHENTICATED"),
    (JobSpecError, "INVALID_ARGUMENT"),
    (ConfigError, "INVALID_ARGUMENT"),
    (ProtocolError, "INVALID_ARGUMENT"),
    (StoreError, "UNAVAILABLE"),
)


def status_of(error: OneFlowError) -> str:
    """The name of the gRPC code for an error of ours."""
    if isinstance(error, RefusedError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), "INTERNAL")
