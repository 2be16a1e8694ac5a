"""All ranks ask for the same compile, or are told the first node on which they differ.

Pure: `step(event, now)`. The n-th compile of one rank belongs to the n-th of every other.
* All headers are there and the digests equal: compile once, the plan to all.
* Digests differ: ask one rank per distinct digest for the digests of its nodes, then for the text
  of the first node that differs; one error to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oneflow.core.errors import DesyncError, InternalError, PeerLostError, ProtocolError
from oneflow.scheduler.rendezvous import Tick, name_ranks
from oneflow.scheduler.store import SAME_CODE_ADVICE, RankGone, describe_missing

DIGEST_NBYTES = 8
VARIANTS_SHOWN = 4


@dataclass(frozen=True)
class CompileAsked:
    call: int
    rank: int
    sequence: int
    job_name: str
    digest: bytes
    timeout_s: float


@dataclass(frozen=True)
class NodeDigestsGiven:
    call: int
    digests: bytes  # DIGEST_NBYTES per node


@dataclass(frozen=True)
class NodeTextGiven:
    call: int
    text: str


@dataclass(frozen=True)
class Compiled:
    sequence: int
    plan: bytes


@dataclass(frozen=True)
class CompileFailed:
    sequence: int
    error: Exception


@dataclass(frozen=True)
class CompileDropped:
    call: int


@dataclass(frozen=True)
class AskNodeDigests:
    call: int


@dataclass(frozen=True)
class AskNodeText:
    call: int
    index: int


@dataclass(frozen=True)
class StartCompile:
    """Compile the graph that rank 0 sent with `call`; answer with Compiled or CompileFailed."""

    sequence: int
    job_name: str
    call: int


@dataclass(frozen=True)
class SendPlan:
    call: int
    plan: bytes


@dataclass(frozen=True)
class FailCompile:
    call: int
    error: Exception


Event = (
    CompileAsked
    | NodeDigestsGiven
    | NodeTextGiven
    | Compiled
    | CompileFailed
    | CompileDropped
    | RankGone
    | Tick
)
Action = AskNodeDigests | AskNodeText | StartCompile | SendPlan | FailCompile


@dataclass
class _Round:
    sequence: int
    deadline: float
    timeout_s: float
    asked: dict[int, CompileAsked] = field(default_factory=dict)  # by rank
    compiling: bool = False
    digests: dict[int, bytes] = field(default_factory=dict)  # by asked call
    texts: dict[int, str] = field(default_factory=dict)
    index: int | None = None  # first differing node

    def variants(self) -> dict[bytes, list[CompileAsked]]:
        """Requests by digest; lowest rank first, in the groups and among them."""
        found: dict[bytes, list[CompileAsked]] = {}
        for rank in sorted(self.asked):
            found.setdefault(self.asked[rank].digest, []).append(self.asked[rank])
        return found

    def spokesmen(self) -> list[CompileAsked]:
        return [group[0] for group in self.variants().values()][:VARIANTS_SHOWN]


class Agreement:
    """The compile rounds of one job of `world_size` ranks.

    describe_rank: the known facts of a rank that did not ask, for the error.
    """

    def __init__(
        self, world_size: int, describe_rank: Callable[[int], str] = "rank {}".format
    ) -> None:
        self.world_size = world_size
        self._describe_rank = describe_rank
        self._rounds: dict[int, _Round] = {}
        self._gone: set[int] = set()

    def step(self, event: Event, now: float) -> list[Action]:
        match event:
            case CompileAsked():
                return self._asked(event, now)
            case NodeDigestsGiven():
                return self._digests_given(event)
            case NodeTextGiven():
                return self._text_given(event)
            case Compiled(sequence=sequence, plan=plan):
                return [SendPlan(r.call, plan) for r in self._finish(sequence)]
            case CompileFailed(sequence=sequence, error=error):
                return [FailCompile(r.call, error) for r in self._finish(sequence)]
            case CompileDropped(call=call):
                return self._drop(call)
            case RankGone(rank=rank):
                return self._rank_gone(rank)
            case Tick():
                return self._expire(now)
        raise InternalError(f"agreement cannot take {event}")

    def _asked(self, event: CompileAsked, now: float) -> list[Action]:
        if self._gone:
            return [FailCompile(event.call, self._lost(event.job_name))]
        if not 0 <= event.rank < self.world_size:
            text = f"compile: rank {event.rank} is outside a world of {self.world_size}"
            return [FailCompile(event.call, ProtocolError(text))]
        new = _Round(event.sequence, now + event.timeout_s, event.timeout_s)
        current = self._rounds.setdefault(event.sequence, new)
        current.asked[event.rank] = event
        if next(iter(current.asked.values())).job_name != event.job_name:
            return self._fail(current, self._describe_names(current))
        if len(current.asked) < self.world_size:
            return []
        if len(current.variants()) > 1:
            return [AskNodeDigests(request.call) for request in current.spokesmen()]
        current.compiling = True
        return [StartCompile(current.sequence, event.job_name, current.asked[0].call)]

    def _digests_given(self, event: NodeDigestsGiven) -> list[Action]:
        current = self._round_of(event.call)
        if current is None:
            return []
        current.digests[event.call] = event.digests
        speakers = current.spokesmen()
        if any(request.call not in current.digests for request in speakers):
            return []
        current.index = first_difference([current.digests[r.call] for r in speakers])
        if current.index is None:
            return self._fail(current, self._describe_config(current))
        return self._ask_texts(current, current.index)

    def _ask_texts(self, current: _Round, index: int) -> list[Action]:
        actions: list[Action] = []
        for request in current.spokesmen():
            num_nodes = len(current.digests[request.call]) // DIGEST_NBYTES
            if index < num_nodes:
                actions.append(AskNodeText(request.call, index))
            else:
                current.texts[request.call] = (
                    f"no such node: its graph ends after {num_nodes} nodes"
                )
        return actions

    def _text_given(self, event: NodeTextGiven) -> list[Action]:
        current = self._round_of(event.call)
        if current is None:
            return []
        current.texts[event.call] = event.text
        if any(request.call not in current.texts for request in current.spokesmen()):
            return []
        return self._fail(current, self._describe_difference(current))

    def _round_of(self, call: int) -> _Round | None:
        for current in self._rounds.values():
            if any(request.call == call for request in current.asked.values()):
                return current
        return None

    def _finish(self, sequence: int) -> list[CompileAsked]:
        current = self._rounds.pop(sequence, None)
        return list(current.asked.values()) if current else []

    def _fail(self, current: _Round, text: str) -> list[Action]:
        error = DesyncError(f"{text}\n{SAME_CODE_ADVICE}")
        return [FailCompile(r.call, error) for r in self._finish(current.sequence)]

    def _drop(self, call: int) -> list[Action]:
        current = self._round_of(call)
        if current is None:
            return []
        current.asked = {r: a for r, a in current.asked.items() if a.call != call}
        if not current.asked:
            del self._rounds[current.sequence]
        return []

    def _rank_gone(self, rank: int) -> list[Action]:
        """Rounds that wait for the rank fail; one whose ranks have all asked still gets its
        answer.
        """
        self._gone.add(rank)
        hopeless = [r for r in self._rounds.values() if rank not in r.asked and not r.compiling]
        actions: list[Action] = []
        for current in hopeless:
            for request in self._finish(current.sequence):
                actions.append(FailCompile(request.call, self._lost(request.job_name)))
        return actions

    def _lost(self, job_name: str) -> PeerLostError:
        return PeerLostError(
            f"{name_ranks(self._gone)} exited 0 while peers run: {job_name!r} needs every rank"
        )

    def _expire(self, now: float) -> list[Action]:
        late = [r for r in self._rounds.values() if not r.compiling and now >= r.deadline]
        return [action for r in late for action in self._fail(r, self._describe_late(r))]

    def _describe_late(self, current: _Round) -> str:
        missing = [rank for rank in range(self.world_size) if rank not in current.asked]
        job_name = next(iter(current.asked.values())).job_name
        what = (
            f"{name_ranks(missing)} did not ask for it"
            if missing
            else "no rank described its graph"
        )
        details = describe_missing(missing, self._describe_rank)
        return f"compile of {job_name!r}: {what} within {current.timeout_s:g} s{details}"

    def _describe_names(self, current: _Round) -> str:
        names: dict[str, list[int]] = {}
        for rank in sorted(current.asked):
            names.setdefault(current.asked[rank].job_name, []).append(rank)
        parts = [f"{name_ranks(ranks)}: {name!r}" for name, ranks in names.items()]
        number = f"compile number {current.sequence}"
        return f"ranks compile different jobs as their {number}: {'; '.join(parts)}"

    def _describe_config(self, current: _Round) -> str:
        groups = [name_ranks(r.rank for r in group) for group in current.variants().values()]
        return (
            f"compile of {current.asked[0].job_name!r}: the graphs agree node by node, but their "
            f"inputs, outputs or configuration do not, between {' and '.join(groups)}"
        )

    def _describe_difference(self, current: _Round) -> str:
        lines = [
            f"compile of {current.asked[0].job_name!r}: the ranks differ at node {current.index}:"
        ]
        groups = list(current.variants().values())
        for group in groups[:VARIANTS_SHOWN]:
            lines.append(f"  {name_ranks(r.rank for r in group)}: {current.texts[group[0].call]}")
        if len(groups) > VARIANTS_SHOWN:
            lines.append(f"  and {len(groups) - VARIANTS_SHOWN} more variants")
        return "\n".join(lines)


def first_difference(digests: Sequence[bytes]) -> int | None:
    """Index of the first node on which these lists of node digests differ; None if they are all
    equal.
    """
    first = digests[0]
    found = [index for other in digests[1:] if (index := _differs_at(first, other)) is not None]
    return min(found, default=None)


def _differs_at(left: bytes, right: bytes) -> int | None:
    if left == right:
        return None
    common = min(len(left), len(right)) // DIGEST_NBYTES
    for index in range(common):
        part = slice(index * DIGEST_NBYTES, (index + 1) * DIGEST_NBYTES)
        if left[part] != right[part]:
            return index
    return common
