"""The pipeline in a plan: which phase of which stage an actor belongs to, and the turns they take.

A segment is part of its stage's backward pass if something it reads was made by a later stage, at
first or second hand; else of the forward pass. The last stage has only forward segments, which go
on to its gradients. Gradients of weights are set apart where the configuration says so: nodes
of any op whose results reach nothing but sums over the pieces of a step. No other stage
waits for them, so they may run late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oneflow.core.actor_kinds import ActorKind
from oneflow.core.errors import GraphError
from oneflow.core.graph import PIECE, LogicalGraph, Node, Value, written_variable
from oneflow.core.job_config import JobConfig
from oneflow.core.plan import ActorSpec, Plan, RegisterSpec
from oneflow.scheduler.compiler.schedule.schedules import (
    Phase,
    Schedule,
    Task,
    interleaved,
    one_forward_one_backward,
    run,
    zero_bubble,
)

DOUBLE = 2
"""Slots of what goes straight to another actor: the next piece can be made while this one is
read."""


def late_nodes(graph: LogicalGraph, config: JobConfig) -> frozenset[int]:
    """Return the ids of the nodes that are to run apart from the backward pass, in segments of
    their own.
    """
    if config.pipeline != "zero_bubble" or graph.num_pieces == 1 or not _has_stages(graph):
        return frozenset()
    late: set[int] = set()
    for node in reversed(list(graph)):
        if _may_be_late(node):
            users = [user for value in node.outputs for user in value.users]
            if users and all(_may_wait(user, node, late) for user in users):
                late.add(node.id)
    return frozenset(late)


def _has_stages(graph: LogicalGraph) -> bool:
    return len({node.stage for node in graph if node.rate == PIECE}) > 1


def _may_wait(user: Node, node: Node, late: set[int]) -> bool:
    return user.stage == node.stage and (user.op == "accumulate" or user.id in late)


def _may_be_late(node: Node) -> bool:
    if node.rate != PIECE or node.op in ("unpack", "repeat"):
        return False
    return not (node.declared.mutates or node.declared.is_random)


def holds_back(register: RegisterSpec) -> bool:
    """Tell whether it may have but one slot, as its readers write values that the next piece reads,
    or wait for such a write.
    """
    return not register.values or any(_is_written_again(value) for value in register.values)


def _is_written_again(value: Value) -> bool:
    is_written = written_variable(value) is not value
    return is_written and any(user.overwrites(value) for user in value.users)


class Phases:
    """The tasks of a plan's actors and the schedule by which devices run them.

    Raises GraphError if the schedule that was asked for does not fit the stages.
    """

    def __init__(self, plan: Plan, config: JobConfig) -> None:
        actors, num_pieces = plan.actors, plan.graph.num_pieces
        self._actors: Sequence[ActorSpec] = actors
        self._segments = [a for a in actors if a.kind is ActorKind.SEGMENT and _is_piece(a)]
        stages = sorted({_stage(a) for a in self._segments})
        self._index = {stage: i for i, stage in enumerate(stages)}
        self._tasks: dict[int, Task] = {}
        self._schedule: Schedule | None = None
        self.turns: list[list[int]] = []
        """Per device, the segments of its tasks, in the order in which they act in a step."""
        if num_pieces == 1 or len(stages) < 2:
            return
        late = late_nodes(plan.graph, config)
        self._tasks = self._segment_tasks(late)
        self._schedule_tasks(num_pieces, bool(late))
        self._follow()

    # ---- tasks -----------------------------------------------------------------------------------

    def _segment_tasks(self, late: frozenset[int]) -> dict[int, Task]:
        """actor id -> task, of the segments."""
        highest: dict[int, int] = {}
        tasks: dict[int, Task] = {}
        for actor in self._actors:
            made_by = [r.producer for r in actor.inputs if _is_piece(r.producer)]
            found = max((highest[a.id] for a in made_by), default=-1)
            if actor.kind is ActorKind.SEGMENT and _is_piece(actor):
                stage = self._index[_stage(actor)]
                phase = Phase.BACKWARD if found > stage else Phase.FORWARD
                if actor.nodes[0].id in late:
                    phase = Phase.WEIGHTS
                tasks[actor.id] = phase, stage
                found = max(found, stage)
            highest[actor.id] = found
        return tasks

    def _follow(self) -> None:
        """Gives actors that are no segments the task that they run for: one that moves or cuts
        a piece is needed by the first of its readers; sums and packs follow their inputs at once.
        """
        tasks = self._tasks
        for actor in reversed(self._actors):
            if actor.id not in tasks and _is_piece(actor) and not _gathers(actor):
                readers = [c for r in actor.outputs for c in r.consumers if c.id in tasks]
                if readers:
                    tasks[actor.id] = min((tasks[c.id] for c in readers), key=_place)
        for actor in self._actors:
            if actor.id not in tasks and _is_piece(actor):
                made_by = [r.producer for r in actor.inputs if r.producer.id in tasks]
                if made_by:
                    tasks[actor.id] = max((tasks[a.id] for a in made_by), key=_place)

    # ---- the schedule ----------------------------------------------------------------------------

    def _schedule_tasks(self, num_pieces: int, is_split: bool) -> None:
        count, tasks = len(self._index), set(self._tasks.values())
        devices = self._devices()
        num_devices = len(set(devices))
        is_plain = devices == list(range(count))
        is_regular = count % num_devices == 0 and devices == [c % num_devices for c in range(count)]
        if is_split and not is_plain:
            raise GraphError(
                "the pipeline schedule 'zero_bubble' needs ranks of its own for each stage, but "
                f"{count} stages lie on {num_devices} sets of ranks; give each stage other ranks, "
                "or choose '1f1b'"
            )
        if (is_split or not is_plain) and is_regular and num_devices > 1 and self._goes_forth():
            if is_split:
                orders = [zero_bubble(i, count, num_pieces) for i in range(count)]
            else:
                orders = [
                    interleaved(i, num_devices, count, num_pieces) for i in range(num_devices)
                ]
            self._schedule = run(orders, tasks, count, num_pieces)
            if self._schedule is not None:
                self.turns = [self._actors_of(order) for order in self._schedule.orders]
                return
        # As many pieces as a stage may be ahead show what it keeps; nobody follows this order.
        shown = min(num_pieces, 2 * count)
        orders = [one_forward_one_backward(i, count, shown) for i in range(count)]
        self._schedule = run(orders, tasks - _weights(tasks), count, shown)

    def _devices(self) -> list[int]:
        """The number of the device of each stage: stages that share a rank share a device."""
        ranks: dict[int, set[int]] = {}
        for actor in self._segments:
            stage = self._index[_stage(actor)]
            ranks.setdefault(stage, set()).update(actor.placement.rank_ids)
        owner: dict[int, int] = {}
        found = []
        for stage in range(len(ranks)):
            met = {owner[rank] for rank in ranks[stage] if rank in owner}
            device = min(met, default=max(owner.values(), default=-1) + 1)
            found.append(device)
            owner.update(dict.fromkeys(ranks[stage], device))
            for old in met - {device}:
                found = [device if d == old else d for d in found]
                owner = {rank: device if d == old else d for rank, d in owner.items()}
        numbers = {device: i for i, device in enumerate(dict.fromkeys(found))}
        return [numbers[device] for device in found]

    def _goes_forth(self) -> bool:
        """Whether pieces pass the tasks in the order of the stages and back, and none waits in one
        task until the piece before it has passed another; turns that contradict how data flow would
        wait for ever.
        """
        tasks = self._tasks
        follows = all(
            _place(tasks[maker]) <= _place(tasks[reader.id])
            for reader in self._segments
            for maker in self._makers(reader)
        )
        return follows and not any(
            tasks.get(register.producer.id) != tasks.get(reader.id)
            for reader in self._segments
            for register in reader.inputs
            if _is_piece(register.producer) and holds_back(register)
        )

    def _makers(self, reader: ActorSpec) -> Iterator[int]:
        """The segments whose values a segment reads, through actors of other kinds or at once."""
        stack, seen = [reader], {reader.id}
        while stack:
            for register in stack.pop().inputs:
                maker = register.producer
                if maker.id in self._tasks:
                    yield maker.id
                elif maker.id not in seen and _is_piece(maker):
                    seen.add(maker.id)
                    stack.append(maker)

    def _actors_of(self, order: Sequence[Task]) -> list[int]:
        """The segments of the tasks of an order, those of a task by level."""
        segments: dict[Task, list[int]] = {}
        for actor in self._segments:
            segments.setdefault(self._tasks[actor.id], []).append(actor.id)
        return [actor for task in order for actor in segments[task]]

    def task_of(self, actor: ActorSpec) -> Task | None:
        """The task in which an actor handles each piece; None where nothing overlaps."""
        return self._tasks.get(actor.id)

    def pieces_kept(self, stage: int) -> int:
        """Return the most micro-batches of which a stage keeps something for its backward
        pass. 0: its inputs stay for the gradients of weights, which follow later.
        """
        if self._schedule is None or stage not in self._index:
            return 1
        i = self._index[stage]
        forward, backward = (Phase.FORWARD, i), (Phase.BACKWARD, i)
        if backward not in self._schedule.begins:
            return 0 if (Phase.WEIGHTS, i) in self._schedule.begins else 1
        return self._schedule.most_kept(forward, [(backward, True)])

    # ---- slots -----------------------------------------------------------------------------------

    def num_slots(self, register: RegisterSpec) -> int:
        """Return the number of pieces of a register that the schedule keeps."""
        maker = self._tasks.get(register.producer.id)
        readers = [c for c in register.consumers if c.id in self._tasks]
        lasts = {(self._tasks[c.id], c.kind is ActorKind.SEGMENT) for c in readers}
        if self._schedule is None or maker is None or not {t for t, _ in lasts} - {maker}:
            return DOUBLE
        known = self._schedule.begins
        lasts = {(task, to_end) for task, to_end in lasts if task in known}
        if maker not in known or not lasts:
            return DOUBLE
        kept = self._schedule.most_kept(maker, sorted(lasts))
        is_own = all(to_end and task[1] == maker[1] for task, to_end in lasts)
        return kept if is_own else max(kept, DOUBLE)


def _weights(tasks: set[Task]) -> set[Task]:
    return {task for task in tasks if task[0] is Phase.WEIGHTS}


def _stage(actor: ActorSpec) -> int:
    return actor.nodes[0].stage


def _is_piece(actor: ActorSpec) -> bool:
    return actor.acts > 1


def _gathers(actor: ActorSpec) -> bool:
    return actor.kind in (ActorKind.ACCUMULATE, ActorKind.PACK)


def _place(task: Task) -> tuple[int, int]:
    """Sorts tasks as one piece passes them."""
    phase, stage = task
    return phase, stage if phase is Phase.FORWARD else -stage
