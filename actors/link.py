"""Connects the ranks of one job: each maps the others' blocks, once, before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.actors.bind import shared_nbytes
from oneflow.actors.control import ControlClient
from oneflow.actors.mailbox import SharedMemoryBus, block_nbytes, register_bytes
from oneflow.boxing.shared import SharedPage, exchange_pages
from oneflow.core.plan import Plan


class SharedLink:
    """Blocks of all ranks of a job that run on this host."""

    def __init__(self, rank: int, ranks: list[int], blocks: list[SharedPage]) -> None:
        self.peers = self
        self.bus = SharedMemoryBus(rank, ranks, blocks)
        self._blocks = dict(zip(ranks, blocks, strict=True))
        self._registers = {
            r: register_bytes(page, len(ranks)) for r, page in self._blocks.items()
        }

    def shared(self, rank: int) -> np.ndarray[Any, Any]:
        return self._registers[rank]

    def close(self) -> None:
        """Unmaps; memory goes when the last rank has done so. Nothing has a name, so nothing is left behind."""
        self.bus.close()
        self._registers.clear()
        for page in self._blocks.values():
            page.close()


def open_shared_link(
    plan: Plan, rank: int, ranks: list[int], name: str, client: ControlClient
) -> SharedLink:
    """name: of this job, the same on all ranks and never used before."""
    own = SharedPage.create(block_nbytes(len(ranks), shared_nbytes(plan, rank)))
    pages = exchange_pages(name, rank, ranks, [own], client)
    return SharedLink(rank, ranks, [pages[r][0] for r in ranks])
