"""Bind a plan to a rank: memory, kernels and actors, ready to run.

Only actors whose placement holds the rank exist here. Registers that other ranks read lie in this
rank's shared memory; those it reads of others are found in theirs (`Peers`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from oneflow.actors.actor import Actor, Input, Output
from oneflow.actors.all_reduce import AllReduce
from oneflow.actors.boxing import Boxing, Channel, channels_of, node_step
from oneflow.actors.bus import freed_code, ready_code
from oneflow.actors.clock import StepClock
from oneflow.actors.communication_stream import CommunicationStream
from oneflow.actors.cuda_graph import Recordings, Replayed
from oneflow.actors.messages import Effect, Freed, Granted, Post, Ready, Send
from oneflow.actors.rank_memory import RankMemory, plan_memory
from oneflow.actors.registers import (
    RegisterMemory,
    made_on,
    private_layout,
    shared_layout,
    storage_of,
    turns,
)
from oneflow.actors.segment import Segment
from oneflow.actors.static_schedule import HAD_TURN, StaticSchedule
from oneflow.actors.transfer import Accumulate, Feed, Fetch, Pack, Unpack
from oneflow.boxing import settings
from oneflow.boxing.transitions import group_of
from oneflow.core.actor_kinds import MEETS_PEERS, READS_PEERS, ActorKind
from oneflow.core.config import current_config
from oneflow.core.job_config import DEFAULT, BindOptions
from oneflow.core.metrics import METRICS
from oneflow.core.metrics_families import Histogram
from oneflow.core.plan import ActorSpec, Plan, RegisterSpec, in_place_of
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import Hardware

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives

Kernel = Callable[[tuple[int, ...], tuple[int, ...]], None]

COLLECTIVES = {
    ActorKind.FLAT_REDUCE: "all_reduce",
    ActorKind.FLAT_REDUCE_SCATTER: "reduce_scatter",
    ActorKind.FLAT_ALL_GATHER: "all_gather",
}
"""Names of the kinds of boxing actors among the collectives; the others keep their name."""


class Peers(Protocol):
    """The parts of others that a rank reaches.

    shared: the uint8 array of a rank's shared registers.  collectives: the backend that sums over
    some ranks (ascending, with this one), opened at the first call, which all of them make.
    """

    def shared(self, rank: int) -> Any: ...

    def collectives(self, ranks: tuple[int, ...]) -> Collectives: ...


@dataclass(slots=True)
class BoundActor:
    """An actor of this rank and the kernel that its acts run.

    slot_nbytes: of a slot of each output.  counted: acts that the metrics know of already.
    calls: those of a segment, beneath all that `kernel` does besides.
    """

    spec: ActorSpec
    actor: Actor
    kernel: Kernel
    boxing: Boxing | None = None
    slot_nbytes: tuple[int, ...] = ()
    calls: CallsBySlots | None = None
    counted: int = 0
    is_segment: bool = field(init=False)
    kind: str = field(init=False)
    collective: str = field(init=False)
    durations: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self.is_segment = self.spec.kind is ActorKind.SEGMENT
        self.kind = self.spec.kind.name.lower()
        self.collective = COLLECTIVES.get(self.spec.kind, self.kind)
        self.durations = METRICS.actor_times(self.kind)


@dataclass
class BoundPlan:
    """A plan on a rank.

    actors: by their id in the plan.  codebook: (sender, code) -> the messages to deliver here.
    feed, fetch: where a step's inputs go in and outputs come out.
    readers: of each register that this rank makes, actors and ranks that read it.
    memory: its registers and scratch memory.  turns: gives them to actors that act in an order.
    recordings: the CUDA graphs of its segments; None: they are launched call by call.
    variables: the array of each, by the id of its value.
    """

    plan: Plan
    rank: int
    actors: dict[int, BoundActor]
    codebook: dict[tuple[int, int], tuple[Send, ...]]
    feed: Feed
    fetch: Fetch
    clock: StepClock
    memory: RankMemory
    peers: set[int] = field(default_factory=set)
    readers: dict[int, list[tuple[ActorSpec, int]]] = field(default_factory=dict)
    turns: StaticSchedule | None = None
    recordings: Recordings | None = None
    variables: dict[int, Any] = field(default_factory=dict)

    def rebind(self, arrays: Mapping[str, Any]) -> None:
        """Let variables be other arrays, contiguous ones of their types, from the next act on."""
        found = self.plan.graph.variables
        self.variables.update({found[name].id: array for name, array in arrays.items()})
        for actor in self.actors.values():
            if actor.calls is not None:
                actor.calls.forget()

    @property
    def kernels_can_run_apart(self) -> bool:
        """Whether another thread than that of the actors may run segments: not on a GPU, whose
        kernels run beside it anyway, and only if there is something to do meanwhile."""
        kinds = {bound.spec.kind for bound in self.actors.values()}
        on_cpu = all(bound.spec.placement.type == "cpu" for bound in self.actors.values())
        return on_cpu and ActorKind.SEGMENT in kinds and bool(kinds & READS_PEERS)

    @property
    def arena_nbytes(self) -> int:
        """Bytes of registers and scratch memory together."""
        return self.memory.nbytes

    @property
    def arena_bound(self) -> int:
        """The same with the least possible scratch memory."""
        return self.memory.register_nbytes + self.memory.scratch_bound


def shared_nbytes(plan: Plan, rank: int) -> int:
    """Bytes that `rank` must share with others."""
    return shared_layout(plan, rank)[1]


def bind(
    plan: Plan,
    rank: int,
    hardware: Hardware,
    peers: Peers,
    variables: Mapping[str, Any],
    *,
    options: BindOptions = DEFAULT,
) -> BoundPlan:
    """Bind a plan to a rank.

    variables: name -> array of this rank's part; kernels read and overwrite these very arrays.
    """
    return _Binder(plan, rank, hardware, peers, variables, options).bind()


class _Binder:
    def __init__(
        self,
        plan: Plan,
        rank: int,
        hardware: Hardware,
        peers: Peers,
        variables: Mapping[str, Any],
        options: BindOptions,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.hardware = hardware
        self.peers = peers
        self.clock = StepClock(plan.graph.num_pieces)
        self.feed, self.fetch = Feed(hardware), Fetch(hardware)
        self.local = [a for a in plan.actors if rank in a.placement]
        here = {a.id for a in self.local}
        self.order = [actor for order in plan.turns for actor in order if actor in here]
        self.takes_turns = frozenset(self.order)
        self.variables = {
            node.outputs[0].id: variables[node.attrs["name"]]
            for node in plan.graph
            if node.op == "variable" and rank in node.placement
        }
        self.memory: dict[tuple[int, int], RegisterMemory] = {}
        self.layouts: dict[int, dict[int, int]] = {}
        self.channels: dict[tuple[int, int], list[Channel]] = {}
        self.turns = turns(plan)
        self.planned = plan_memory(plan, rank, hardware, options)
        records = hardware.kind == "cuda" and current_config().cuda_graphs
        self.recordings = Recordings() if records else None

    def bind(self) -> BoundPlan:
        self._make_memory()
        readers = self._readers()
        segments = self.planned.segments
        scratch = self.hardware.allocate(max(self.planned.scratch_nbytes, 1))
        overlaps = self.hardware.kind == "cuda" and not settings.current().use_compute_stream
        beside = CommunicationStream(self.local) if overlaps else None
        actors = {}
        for spec in self.local:
            kernel, boxing = self._kernel(spec, segments.get(spec.id), scratch)
            calls = kernel if isinstance(kernel, CallsBySlots) and spec.id in segments else None
            if beside is not None:
                kernel = beside.ordered(spec, kernel)
            if self.hardware.kind != "cpu" and self._meets_peers(spec, readers):
                kernel = _finished(kernel, self.hardware)
            if spec.id in self.takes_turns:
                kernel = _without_turn(kernel)
            if spec.id in segments and (lookups := segments[spec.id].num_lookups):
                kernel = _counting(kernel, lookups)
            nbytes = tuple(self.memory[r.id, self.rank].layout.nbytes for r in spec.outputs)
            actor = self._actor(spec, readers)
            actors[spec.id] = BoundActor(spec, actor, kernel, boxing, nbytes, calls)
        bound = BoundPlan(
            self.plan,
            self.rank,
            actors,
            self._codebook(readers),
            self.feed,
            self.fetch,
            self.clock,
            self.planned,
        )
        bound.peers = self._peers(readers)
        bound.readers = readers
        bound.recordings = self.recordings
        bound.variables = self.variables
        bound.turns = self._turns(actors)
        return bound

    def _turns(self, actors: dict[int, BoundActor]) -> StaticSchedule | None:
        """The turns of this rank's actors, of which the first one has been given."""
        if not self.order:
            return None
        channels = {key: len(actors[key].actor.inputs) - 1 for key in self.takes_turns}
        turns = StaticSchedule(self.order, channels)
        first = turns.first()
        actors[first.target].actor.handle(first.message)
        return turns

    # ---- memory ----------------------------------------------------------------------------------

    def _make_memory(self) -> None:
        offsets, nbytes = private_layout(self.plan, self.rank)
        private = self.hardware.allocate(max(nbytes, 1))
        for register in self.plan.registers:
            if not made_on(register, self.rank):
                continue
            storage = storage_of(register)
            if storage.id not in offsets:
                self._memory_of(register, self.rank)
            else:
                self.memory[register.id, self.rank] = RegisterMemory(
                    register, self.rank, private, offsets[storage.id]
                )

    def _memory_of(self, register: RegisterSpec, rank: int) -> RegisterMemory:
        """A shared register of any rank."""
        found = self.memory.get((register.id, rank))
        if found is None:
            if rank not in self.layouts:
                self.layouts[rank] = shared_layout(self.plan, rank)[0]
            offset = self.layouts[rank][storage_of(register).id]
            found = RegisterMemory(register, rank, self.peers.shared(rank), offset)
            self.memory[register.id, rank] = found
        return found

    # ---- who reads what --------------------------------------------------------------------------

    def _channels(self, spec: ActorSpec, rank: int) -> list[Channel]:
        """Input channels of an actor on a rank."""
        key = spec.id, rank
        if key not in self.channels:
            if spec.kind in MEETS_PEERS:
                self.channels[key] = channels_of(spec, rank)
            else:
                self.channels[key] = [Channel(r, rank) for r in spec.inputs]
        return self.channels[key]

    def _readers(self) -> dict[int, list[tuple[ActorSpec, int]]]:
        """register id -> (consumer, rank) pairs that read this rank's part of it."""
        result: dict[int, list[tuple[ActorSpec, int]]] = {}
        for register in self.plan.registers:
            if not made_on(register, self.rank):
                continue
            pairs = result.setdefault(register.id, [])
            for consumer in register.consumers:
                ranks = (
                    consumer.placement.rank_ids if consumer.kind in MEETS_PEERS else (self.rank,)
                )
                for rank in ranks:
                    channels = self._channels(consumer, rank)
                    if any(c.register is register and c.source == self.rank for c in channels):
                        pairs.append((consumer, rank))
        return result

    def _peers(self, readers: dict[int, list[tuple[ActorSpec, int]]]) -> set[int]:
        found = {rank for pairs in readers.values() for _, rank in pairs}
        for spec in self.local:
            found |= {c.source for c in self._channels(spec, self.rank)}
        return found - {self.rank}

    def _meets_peers(
        self, spec: ActorSpec, readers: dict[int, list[tuple[ActorSpec, int]]]
    ) -> bool:
        """Does this actor read memory of other ranks, or write memory that they read? A backend
        orders its calls with the kernels by itself."""
        reads = spec.kind in READS_PEERS and any(
            c.source != self.rank for c in self._channels(spec, self.rank)
        )
        return reads or any(
            rank != self.rank and reader.kind in READS_PEERS
            for r in spec.outputs
            for reader, rank in readers[r.id]
        )

    # ---- actors ----------------------------------------------------------------------------------

    def _actor(self, spec: ActorSpec, readers: dict[int, list[tuple[ActorSpec, int]]]) -> Actor:
        inputs = [
            Input(
                f"r{c.register.id}",
                tuple(self._free(c, slot) for slot in range(c.register.num_slots)),
                spec.acts // c.register.items,
                c.source if c.source != self.rank else -1,
            )
            for c in self._channels(spec, self.rank)
        ]
        if spec.id in self.takes_turns:
            inputs.append(HAD_TURN)
        outputs = [
            Output(
                f"r{r.id}",
                tuple(self._publish(r, slot, readers[r.id]) for slot in range(r.num_slots)),
                len(readers[r.id]),
                spec.acts // r.items,
                self._inplace(spec, r),
                self._awaited(r, readers),
                self._grants(r),
                self.turns.get(r.id, [r])[0] is r,
            )
            for r in spec.outputs
        ]
        return Actor(spec.name, inputs, outputs)

    def _inplace(self, spec: ActorSpec, register: RegisterSpec) -> int:
        source = in_place_of(register)
        if source is None:
            return -1
        channels = self._channels(spec, self.rank)
        return next(
            i for i, c in enumerate(channels) if c.source == self.rank and c.register is source
        )

    def _awaited(
        self, register: RegisterSpec, readers: dict[int, list[tuple[ActorSpec, int]]]
    ) -> tuple[int, ...]:
        """The other ranks that must have read a register, or one of its memory, before it can be
        filled again."""
        some = self.turns.get(register.id, [register])
        return tuple(sorted({rank for r in some for _, rank in readers[r.id]} - {self.rank}))

    def _grants(self, register: RegisterSpec) -> tuple[Effect, ...]:
        """The effects that pass its memory on, by slot."""
        some = self.turns.get(register.id)
        if some is None:
            return ()
        place = next(i for i, r in enumerate(some) if r is register)
        heir = some[(place + 1) % len(some)]
        output = next(i for i, r in enumerate(heir.producer.outputs) if r is heir)
        return tuple(
            Send(heir.producer.id, Granted(output, slot)) for slot in range(register.num_slots)
        )

    def _free(self, channel: Channel, slot: int) -> Effect:
        register = channel.register
        if channel.source != self.rank:
            return Post(channel.source, freed_code(register, slot))
        return Send(register.producer.id, Freed(register.producer.outputs.index(register), slot))

    def _publish(
        self, register: RegisterSpec, slot: int, readers: list[tuple[ActorSpec, int]]
    ) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        posted: set[int] = set()
        for consumer, rank in readers:
            if rank == self.rank:
                effects.append(self._ready(consumer, register, self.rank, slot))
            elif rank not in posted:
                posted.add(rank)
                effects.append(Post(rank, ready_code(register, slot)))
        return tuple(effects)

    def _ready(self, consumer: ActorSpec, register: RegisterSpec, source: int, slot: int) -> Send:
        channels = self._channels(consumer, self.rank)
        index = next(
            i for i, c in enumerate(channels) if c.register is register and c.source == source
        )
        return Send(consumer.id, Ready(index, slot))

    def _codebook(
        self, readers: dict[int, list[tuple[ActorSpec, int]]]
    ) -> dict[tuple[int, int], tuple[Send, ...]]:
        book: dict[tuple[int, int], list[Send]] = {}
        for spec in self.local:
            for channel in self._channels(spec, self.rank):
                if channel.source == self.rank:
                    continue
                for slot in range(channel.register.num_slots):
                    key = channel.source, ready_code(channel.register, slot)
                    send = self._ready(spec, channel.register, channel.source, slot)
                    book.setdefault(key, []).append(send)
        for register in self.plan.registers:
            for rank in {rank for _, rank in readers.get(register.id, ()) if rank != self.rank}:
                for slot in range(register.num_slots):
                    producer = register.producer
                    freed = Freed(producer.outputs.index(register), slot)
                    book[rank, freed_code(register, slot)] = [Send(producer.id, freed)]
        return {key: tuple(sends) for key, sends in book.items()}

    # ---- kernels ---------------------------------------------------------------------------------

    def _kernel(
        self, spec: ActorSpec, segment: Segment | None, scratch: Array
    ) -> tuple[Kernel, Boxing | None]:
        channels = self._channels(spec, self.rank)
        if spec.kind is ActorKind.ALL_REDUCE:
            group = self.peers.collectives(group_of(node_step(spec, spec.nodes[0]), self.rank))
            reduce = AllReduce(spec, self.rank, channels, self.memory, group)
            return CallsBySlots(reduce.build), None
        for channel in channels:
            if channel.source != self.rank:
                self._memory_of(channel.register, channel.source)
        inputs = [self.memory[c.register.id, c.source] for c in channels]
        outputs = [self.memory[r.id, self.rank] for r in spec.outputs]
        if segment is not None:
            variables, clock = self.variables, self.clock

            def build(i: tuple[int, ...], o: tuple[int, ...]) -> list[Callable[[], Any]]:
                arrays = {**variables, **_arrays(inputs, i), **_arrays(outputs, o)}
                return segment.build(arrays, scratch, clock)

            if self.recordings is not None:
                known = spec.name, self.recordings, segment.blame
                return CallsBySlots(partial(_replayed, build, *known)), None
            return CallsBySlots(build, segment.blame), None
        if spec.kind in READS_PEERS:
            boxing = Boxing(spec, self.rank, self.hardware, channels, self.memory)
            return CallsBySlots(boxing.build), boxing
        if spec.kind is ActorKind.INPUT:
            return self.feed.kernel(spec, outputs), None
        if spec.kind is ActorKind.OUTPUT:
            return self.fetch.kernel(spec, inputs), None
        maker: Any = {
            ActorKind.UNPACK: Unpack,
            ActorKind.PACK: Pack,
            ActorKind.ACCUMULATE: Accumulate,
        }[spec.kind]
        return maker(spec, inputs, outputs, self.hardware), None


def _replayed(
    build: Callable[[tuple[int, ...], tuple[int, ...]], list[Callable[[], Any]]],
    name: str,
    recordings: Recordings,
    blame: Callable[[Exception, int], None],
    in_slots: tuple[int, ...],
    out_slots: tuple[int, ...],
) -> list[Callable[[], Any]]:
    return [Replayed(name, build(in_slots, out_slots), recordings, blame)]


def _finished(kernel: Kernel, hardware: Hardware) -> Kernel:
    """`kernel`, returning when the device is done: a message to a peer must say the truth."""

    def run(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        kernel(in_slots, out_slots)
        hardware.synchronize()

    return run


def _counting(kernel: Kernel, lookups: int) -> Kernel:
    """`kernel` of a segment, each of whose acts looks up that many rows of embeddings."""

    def run(in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        METRICS.looked_up(lookups)
        kernel(in_slots, out_slots)

    return run


def _without_turn(kernel: Kernel) -> Kernel:
    """`kernel` for an actor whose last input is its turn, which has no memory."""
    return lambda in_slots, out_slots: kernel(in_slots[:-1], out_slots)


def _arrays(memories: list[RegisterMemory], slots: tuple[int, ...]) -> dict[int, Any]:
    result: dict[int, Any] = {}
    for memory, slot in zip(memories, slots, strict=True):
        result.update(memory.arrays[slot])
    return result


class CallsBySlots:
    """A kernel whose list of calls is built once for each combination of slots.

    marks: takes the moment at which the calls of an act begin, and the end of each; None: nobody
    wants them.
    """

    __slots__ = ("_blame", "_build", "_calls", "marks")

    def __init__(
        self,
        build: Callable[[tuple[int, ...], tuple[int, ...]], list[Callable[[], Any]]],
        blame: Callable[[Exception, int], None] | None = None,
    ) -> None:
        self._build = build
        self._blame = blame
        self._calls: dict[Any, list[Callable[[], Any]]] = {}
        self.marks: array[float] | None = None

    def forget(self) -> None:
        """Build the calls again before the next act."""
        self._calls.clear()

    def __call__(self, in_slots: tuple[int, ...], out_slots: tuple[int, ...]) -> None:
        key = in_slots, out_slots
        calls = self._calls.get(key)
        if calls is None:
            calls = self._calls[key] = self._build(in_slots, out_slots)
        marks = self.marks
        first = 0 if marks is None else len(marks)
        try:
            if marks is None:
                for call in calls:
                    call()
            else:
                marks.append(perf_counter())
                for call in calls:
                    call()
                    marks.append(perf_counter())
        except Exception as error:
            if marks is not None:
                del marks[first:]  # of an act that has no end
            if self._blame is not None:
                self._blame(error, next(i for i, c in enumerate(calls) if c is call))
            raise
