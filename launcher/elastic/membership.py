"""The membership of an elastic job: which nodes run the next round, and why a round ends.

Pure: `step(event, now)` returns messages to nodes. A round is one start of the ranks on all
its nodes. Rules that the code cannot show:
* The first round begins with MAX nodes, or last_call_s after MIN have come. A later one begins at
  once with the nodes that are left, if these are MIN; else the job waits for more, up to join_s.
* A newcomer is let in last_call_s after it came, with all that came meanwhile: the ranks of all
  nodes are ended, in order, and start again in the new size. Nobody is let in once a node is done.
* A node that goes ends the round, too. Neither spends a restart; a rank that fails does.
* Ranks follow others (exit code 85), or stop together when one of them is told to (143). Such an
  end counts as a failure only if within SETTLE_S no node has gone and none has a better cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from oneflow.core.blame import FOLLOWER_CODE, Blame
from oneflow.core.errors import RendezvousError

STOPPED_CODE = 143
HOPELESS_CODES = frozenset((2, 77, 78))
"""Usage, permission, configuration: the same again next time."""


@dataclass(frozen=True)
class Limits:
    """The settings of the job. least, most: nodes of a round. stop_s: for a node to end its ranks,
    after which it is dropped.
    """

    least: int
    most: int
    last_call_s: float
    join_s: float
    stop_s: float
    max_restarts: int


@dataclass(frozen=True)
class NodeCame:
    node: int
    name: str


@dataclass(frozen=True)
class NodeLeft:
    node: int


@dataclass(frozen=True)
class RanksEnded:
    """All ranks of a node have ended. code: None if they were told to, and did not fail before."""

    node: int
    round: int
    code: int | None
    cause: str = ""


@dataclass(frozen=True)
class Tick:
    pass


@dataclass(frozen=True)
class BeginRound:
    """Start the ranks of a node. index: the node's number in this round, of `size`."""

    node: int
    round: int
    index: int
    size: int
    restarts: int
    why: str


@dataclass(frozen=True)
class EndRound:
    """End the ranks of a node, which shall say when they have ended."""

    node: int


@dataclass(frozen=True)
class EndJob:
    """The job is over: the exit code of all launchers, and why."""

    node: int
    code: int
    cause: str


@dataclass(frozen=True)
class DropNode:
    """A node did not end its ranks in time: forget it."""

    node: int


Event = NodeCame | NodeLeft | RanksEnded | Tick
Action = BeginRound | EndRound | EndJob | DropNode


class Phase(Enum):
    GATHERING = "gathering"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


@dataclass
class _Node:
    number: int
    name: str
    is_member: bool = False  # of the round that goes on
    has_ended: bool = False
    code: int | None = None


@dataclass(frozen=True)
class _Failure:
    code: int
    cause: str


class Membership:
    """The nodes of one elastic job. The node that came first is node 0 of every round."""

    def __init__(self, limits: Limits) -> None:
        self.phase = Phase.GATHERING
        self.restarts = 0
        self._limits = limits
        self._nodes: dict[int, _Node] = {}  # in the order in which they came
        self._round = 0
        self._why = ""
        self._blame: Blame[_Failure] = Blame()
        self._verdict: _Failure | None = None  # that ends the job, once all ranks have ended
        self._begin_at: float | None = None  # the end of the last call
        self._join_until: float | None = None
        self._stop_until = 0.0

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case NodeCame(node=node, name=name):
                self._nodes[node] = _Node(node, name)
            case NodeLeft(node=node):
                return self._left(self._nodes.pop(node, None), now)
            case RanksEnded():
                return self._ended(event, now)
            case Tick():
                pass
        return self._look(now)

    def _look(self, now: float) -> list[Action]:
        match self.phase:
            case Phase.GATHERING:
                return self._gather(now)
            case Phase.RUNNING:
                return self._watch(now)
            case Phase.STOPPING:
                return self._wait_for_ends(now)
            case Phase.OVER:
                return [EndJob(n, *self._outcome) for n in self._nodes]
        return []

    # -- gathering ---------------------------------------------------------------------------------

    def _gather(self, now: float) -> list[Action]:
        limits, count = self._limits, len(self._nodes)
        if self._join_until is None:
            self._join_until = now + limits.join_s
        if count < limits.least:
            self._begin_at = None
            return [] if now < self._join_until else self._give_up(count)
        if self._begin_at is None:
            self._begin_at = now + limits.last_call_s
        if count >= limits.most or now >= self._begin_at:
            return self._begin()
        return []

    def _give_up(self, count: int) -> list[Action]:
        limits = self._limits
        text = f"{count} of at least {limits.least} nodes came within {limits.join_s:g} s"
        return self._over(_Failure(RendezvousError.exit_code, text))

    def _begin(self) -> list[Action]:
        self.phase, self._round = Phase.RUNNING, self._round + 1
        self._begin_at = self._join_until = None
        self._blame = Blame()
        members = list(self._nodes.values())[: self._limits.most]
        for node in members:
            node.is_member, node.has_ended, node.code = True, False, None
        size, why = len(members), self._why
        return [
            BeginRound(node.number, self._round, index, size, self.restarts, why)
            for index, node in enumerate(members)
        ]

    # -- running -----------------------------------------------------------------------------------

    @property
    def _first(self) -> _Node:
        return next(iter(self._nodes.values()))

    @property
    def _members(self) -> Iterator[_Node]:
        return (node for node in self._nodes.values() if node.is_member)

    def _watch(self, now: float) -> list[Action]:
        if self._blame.is_settled(now):
            return self._fail(now)
        if all(node.code == 0 for node in self._members):
            return self._over(_Failure(0, ""))
        waiting = [node for node in self._nodes.values() if not node.is_member]
        has_room = sum(1 for _ in self._members) < self._limits.most
        is_ending = any(node.has_ended for node in self._members)
        if not waiting or not has_room or is_ending:
            self._begin_at = None
            return []
        if self._begin_at is None:
            self._begin_at = now + self._limits.last_call_s
        num_members = sum(1 for _ in self._members)
        if now < self._begin_at and num_members + len(waiting) < self._limits.most:
            return []
        return self._stop(f"node {waiting[0].name} came", now)

    def _left(self, node: _Node | None, now: float) -> list[Action]:
        if node is None or not node.is_member or node.code == 0:
            return self._look(now)
        if self.phase is Phase.RUNNING:
            return self._stop(f"node {node.name} left", now)
        return self._look(now)

    def _ended(self, event: RanksEnded, now: float) -> list[Action]:
        node = self._nodes.get(event.node)
        if node is None or event.round != self._round or node.has_ended:
            return []
        node.has_ended, node.code = True, event.code
        if self.phase is not Phase.RUNNING:
            return self._look(now)
        if event.code:
            failure = _Failure(event.code, f"node {node.name}: {event.cause}")
            self._blame.hear(failure, event.code in (FOLLOWER_CODE, STOPPED_CODE), now)
        return self._look(now)

    def _fail(self, now: float) -> list[Action]:
        failure = self._blame.cause
        assert failure is not None  # is_settled
        if self.restarts >= self._limits.max_restarts or failure.code in HOPELESS_CODES:
            self._verdict = failure
        else:
            self.restarts += 1
        return self._stop(failure.cause, now)

    # -- stopping ----------------------------------------------------------------------------------

    def _stop(self, why: str, now: float) -> list[Action]:
        self.phase, self._why, self._begin_at = Phase.STOPPING, why, None
        self._stop_until = now + self._limits.stop_s
        told: list[Action] = [EndRound(n.number) for n in self._members if not n.has_ended]
        return told + self._wait_for_ends(now)

    def _wait_for_ends(self, now: float) -> list[Action]:
        late = [node for node in self._members if not node.has_ended]
        dropped: list[Action] = []
        if now >= self._stop_until:  # node 0 itself looks here, so it ends its ranks, if late
            dropped = [DropNode(node.number) for node in late if node is not self._first]
        for drop in dropped:
            del self._nodes[drop.node]
        if any(not node.has_ended for node in self._members):
            return dropped
        for node in self._members:
            node.is_member = False
        if self._verdict is not None:
            return dropped + self._over(self._verdict)
        self.phase, self._begin_at = Phase.GATHERING, now  # who is here need not wait for others
        return dropped + self._gather(now)

    def _over(self, outcome: _Failure) -> list[Action]:
        self.phase, self._verdict = Phase.OVER, outcome
        return [EndJob(node, *self._outcome) for node in self._nodes]

    @property
    def _outcome(self) -> tuple[int, str]:
        assert self._verdict is not None  # OVER
        return self._verdict.code, self._verdict.cause
