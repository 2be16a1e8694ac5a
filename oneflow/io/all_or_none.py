"""File work of all ranks together: a failure on one of them is an error on all, naming the rank.

Without this a full disk on one rank would leave the others waiting in the next collective, and a
checkpoint of which a part is missing would look like a good one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from oneflow.core.errors import CheckpointError, OneFlowError
from oneflow.core.json_values import Json
from oneflow.distributed.world import world

T = TypeVar("T")


class AllOrNone:
    """The meetings of all ranks around one operation.

    what: the operation, for messages.  call: its name, equal on all ranks, by which it is told from
    other calls. All ranks of the world call `meet` alike.

    After a failure a rank goes on to take part in collectives, without working, until they meet.
    """

    def __init__(self, what: str, call: str) -> None:
        self.what, self._call = what, call
        self._meetings = 0
        self.error: Exception | None = None
        self.is_broken = False
        """Whether all ranks know of a failure."""
        self.rank = world().rank
        self.world_size = world().world_size

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Does local work, in which no rank waits for another; None if it or an earlier one
        failed."""
        if self.error is not None:
            return None
        try:
            return work()
        except Exception as error:  # told to everyone at the next meeting, and raised there
            self.error = error
            return None

    def meet(self, said: Json = None) -> list[Any]:
        """Return the messages of all ranks (values that JSON has), by rank. Raises CheckpointError
        on all ranks if one of them failed.
        """
        text = None if self.error is None else _text(self.error)
        if self.world_size == 1:
            heard = [(text, said)]
        else:
            message = json.dumps((text, None if text else said), separators=(",", ":")).encode()
            self._meetings += 1
            name = f"{self._call}, meeting {self._meetings}"
            heard = [json.loads(m) for m in world().everyone.gather_bytes(message, name)]
        failed = {rank: text for rank, (text, _) in enumerate(heard) if text is not None}
        if failed:
            self._break(failed)
        return [said for _, said in heard]

    def _break(self, failed: dict[int, str]) -> None:
        self.is_broken = True
        if self.world_size == 1 and isinstance(self.error, OneFlowError):
            raise self.error
        rank, text = next(iter(failed.items()))
        others = [r for r in failed if r != rank]
        also = f" (so did rank {', '.join(map(str, others))})" if others else ""
        raise CheckpointError(f"{self.what}: rank {rank} failed{also}: {text}") from self.error

    def settle(self) -> None:
        """Wait, after a failure that all know of, until all ranks have cleaned up."""
        if self.is_broken and self.world_size > 1:
            world().everyone.barrier(f"end of {self._call}")


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OneFlowError) else f"{type(error).__name__}: {error}"
