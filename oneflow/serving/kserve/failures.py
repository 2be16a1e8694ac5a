"""Refusals, each with its status in HTTP and in gRPC."""

from __future__ import annotations

from oneflow.core.errors import OneFlowError

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class Refusal(OneFlowError):
    """A request that is not answered. status: of HTTP, one of STATUSES."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def code(self) -> str:
        """The name of the status in gRPC."""
        return STATUSES[self.status]
