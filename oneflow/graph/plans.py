"""The plans of a graph whose inputs have several shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from oneflow.core.errors import ConfigError

if TYPE_CHECKING:
    from oneflow.graph.compiling import Compiled


def check_shared(mode: bool) -> None:
    """Raises ConfigError for plans that are not to share their variables."""
    if not mode:
        raise ConfigError(
            "enable_shared: the plans of a graph always work on the same variables; make a graph "
            "of its own, with modules of its own, for what is not to be shared"
        )


class Plans:
    """Compiled graphs by the arguments that they are for; the least recently used one goes.

    size: of them are kept; the first one stays in any case.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._first: Hashable = None
        self._kept: OrderedDict[Hashable, Compiled] = OrderedDict()
        self.current: Hashable = None
        """The arguments of the last call."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept(self) -> list[Compiled]:
        """The plans, the first one first, then from the oldest use to the newest."""
        keys = sorted(self._kept, key=lambda key: key != self._first)
        return [self._kept[key] for key in keys]

    def set_cache_size(self, size: int) -> None:
        """Keep so many plans from the next one on. Raises ValueError for less than one."""
        if size < 1:
            raise ValueError(f"set_cache_size: size must be at least 1, got {size}")
        self._size = size

    def enable_shared(self, mode: bool = True) -> None:
        """Says that plans share their variables, as they always do; False raises ConfigError."""
        check_shared(mode)

    def get(self, key: Hashable) -> Compiled | None:
        """The plan for these arguments, which is then the newest; None if there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self.current = key
        return found

    def add(self, key: Hashable, compiled: Compiled) -> None:
        """Keep a plan, and give up another one if there are too many."""
        if not self._kept:
            self._first = key
        self._kept[key] = compiled
        self.current = key
        others = [k for k in self._kept if k not in (self._first, key)]
        for oldest in others[: max(len(self._kept) - self._size, 0)]:
            self._kept.pop(oldest).job.close()
