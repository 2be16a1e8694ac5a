"""One at a time, and whoever wants it often does not come before those who want it now and then."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Those who wait are taken by owner in turn, each owner's in the order in which they came."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next owner first

    @asynccontextmanager
    async def turn(self, owner: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """Wait for the owner's turn, then hold it.

        patience_s: None waits for good. Raises asyncio.TimeoutError.
        """
        await self._wait(owner, patience_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: str, patience_s: float | None) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await asyncio.wait_for(turn, patience_s)
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was ours just now
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            queue = self._waiting.pop(owner)
            while queue:
                turn = queue.popleft()
                if turn.done():
                    continue  # it waits no more
                if queue:
                    self._waiting[owner] = queue  # behind all others
                turn.set_result(None)
                return
        self._is_taken = False
