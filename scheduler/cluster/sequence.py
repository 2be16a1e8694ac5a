"""The order of the messages of one stream: each comes once, and none is missing.

gRPC promises as much of a connection; what lies between the ends may break that promise, and a
message that is done twice or never must not depend on it.
"""

from __future__ import annotations

from oneflow.scheduler.cluster.refusals import UnavailableError


class MissingMessageError(UnavailableError):
    """A later message came before an earlier one: the stream is of no more use."""


class Order:
    """The numbering of one direction of one stream. A sender that does not count says 0 and is
    believed.
    """

    def __init__(self) -> None:
        self._last = 0

    def is_repeated(self, sequence: int) -> bool:
        """Whether that message has come before. Raises MissingMessageError if one has not come."""
        if not sequence and not self._last:
            return False
        if 0 < sequence <= self._last:
            return True
        if sequence != self._last + 1:
            missing = f"message {self._last + 1} of a stream is missing: {sequence} has come"
            raise MissingMessageError(missing)
        self._last = sequence
        return False
