"""Groups of ranks and the calls on them, in the shape that users of `torch.distributed` expect.

A group's calls are made in the order in which a rank begins them, on a channel of their own; those
that are not waited for at once run on a thread, and a later one queues behind them. Messages
between two ranks have a channel for each direction, so that both may begin by sending.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from oneflow.core.config import current_config
from oneflow.core.errors import HangError, PlacementError
from oneflow.distributed.arguments import Channel
from oneflow.tensor.tensor import Tensor

T = TypeVar("T")


class Line:
    """Calls that are made one after the other, beside the thread that begins them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting = 0

    def now(self, call: Callable[[], T]) -> T:
        """The result of a call, after those that were begun before it."""
        with self._lock:
            is_free = self._waiting == 0
        return call() if is_free else self.later(call).result()

    def later(self, call: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Begin a call."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="oneflow-line", daemon=True)
                self._thread.start()
        self._calls.put(lambda: self._make(call, future))
        return future

    def _make(self, call: Callable[[], T], future: concurrent.futures.Future[T]) -> None:
        try:
            result, error = call(), None
        except BaseException as raised:  # `wait` raises it
            error = raised
        with self._lock:
            self._waiting -= 1
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _run(self) -> None:
        while True:
            self._calls.get()()


_lines: dict[tuple[tuple[int, ...], str], Line] = {}


def line_of(channel: Channel) -> Line:
    """The line of the calls of a channel."""
    return _lines.setdefault((tuple(channel), channel.name), Line())


class Work:
    """A call that was begun.

    source: the rank that a receiving call hears, if it is one.
    """

    def __init__(self, future: concurrent.futures.Future[Any], source: int = -1) -> None:
        self._future, self._source = future, source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True when the call is done. Raises its error, and HangError after `timeout`."""
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            self._future.result(seconds)
        except concurrent.futures.TimeoutError:
            raise HangError(f"a call of a process group is not done after {seconds} s") from None
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return whether the call is done."""
        return self._future.done()

    def is_success(self) -> bool:
        """Return whether the call is done and has raised nothing."""
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error that the call has raised, if it has."""
        return self._future.exception() if self._future.done() else None

    def source_rank(self) -> int:
        """Return the rank that was heard."""
        return self._source

    def result(self) -> list[Tensor]:
        """Return an empty list: results are in the tensors that were given."""
        return []

    def get_future(self) -> concurrent.futures.Future[Any]:
        """Return a future of the call."""
        return self._future


class ProcessGroup:
    """Some ranks of the job, ascending. is_all: they are all of them.

    number: of groups of the same ranks, so that each has a line of calls of its own.
    """

    def __init__(self, ranks: Sequence[int] | None, number: int = 0, name: str = "") -> None:
        self._ranks, self._number, self._name = ranks, number, name

    @property
    def ranks(self) -> list[int]:
        """The numbers of its ranks in the job."""
        if self._ranks is None:
            return list(range(current_config().world_size))
        return sorted(self._ranks)

    @property
    def channel(self) -> Channel:
        """The line of its calls."""
        return Channel(self.ranks, f"/group{self._number}")

    def rank(self) -> int:
        """Return the number of this process in the group; -1 if it is not in it."""
        mine = current_config().rank
        return self.ranks.index(mine) if mine in self.ranks else -1

    def size(self) -> int:
        """Return the number of its ranks."""
        return len(self.ranks)

    @property
    def group_name(self) -> str:
        """The name of the group."""
        return self._name or ("world" if self._ranks is None else f"group{self._number}")

    @property
    def group_desc(self) -> str:
        """The name of the group."""
        return self.group_name

    def name(self) -> str:
        """Return the name of the library of PyTorch's that is nearest."""
        return "gloo"

    def __repr__(self) -> str:
        return f"<process group {self.group_name} of ranks {self.ranks}>"


ALL_RANKS = ProcessGroup(None)


class GroupMember:
    """Groups of which a process is or is not a member."""

    WORLD = ALL_RANKS
    NON_GROUP_MEMBER = -100


def group_of(group: object, who: str) -> ProcessGroup | None:
    """The group that a call is given; that of all ranks for None. None, with a warning, for one
    that this rank is not in. Raises PlacementError for anything else.
    """
    if group is None:
        return ALL_RANKS
    if isinstance(group, ProcessGroup) and group.rank() >= 0:
        return group
    if isinstance(group, ProcessGroup) or group == GroupMember.NON_GROUP_MEMBER:
        rank = current_config().rank
        warnings.warn(f"distributed.{who}: rank {rank} is not in the group", stacklevel=4)
        return None
    raise PlacementError(
        f"distributed.{who}: group is what new_group() returned, got {type(group).__name__}"
    )


def call_on(
    group: object, who: str, is_async: bool, call: Callable[[Channel], object]
) -> Work | None:
    """Make a call on a group, or begin it. Nothing is done on ranks that are not in the group."""
    chosen = group_of(group, who)
    if chosen is None:
        return None
    channel = chosen.channel
    line = line_of(channel)
    if is_async:
        return Work(line.later(lambda: call(channel)))
    line.now(lambda: call(channel))
    return None


def one_way(src: int, dst: int, group: object, who: str, tag: int) -> Channel:
    """The channel from one rank to another, of two that are in the group. Raises PlacementError."""
    chosen = group_of(group, who)
    ranks = ALL_RANKS.ranks if chosen is None else chosen.ranks
    for rank in (src, dst):
        if rank not in ranks:
            raise PlacementError(f"distributed.{who}: rank {rank} is not one of {ranks}")
    if src == dst:
        raise PlacementError(f"distributed.{who}: rank {src} cannot exchange with itself")
    return Channel((src, dst), f"/from{src}" + (f".{tag}" if tag else ""))


def rank_in(group: object, global_rank: int) -> int:
    """The number that a rank of the job has in a group. Raises PlacementError if it has none."""
    ranks = (ALL_RANKS if not isinstance(group, ProcessGroup) else group).ranks
    if global_rank not in ranks:
        raise PlacementError(f"Global rank {global_rank} is not part of group {ranks}")
    return ranks.index(global_rank)


def rank_of(group: object, group_rank: int) -> int:
    """The number in the job of the rank that has a number in a group. Raises PlacementError."""
    ranks = (ALL_RANKS if not isinstance(group, ProcessGroup) else group).ranks
    if not 0 <= group_rank < len(ranks):
        raise PlacementError(f"Group rank {group_rank} is not part of group {ranks}")
    return ranks[group_rank]
