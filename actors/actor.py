"""An actor: a pure state machine. Messages in, effects out; it touches no device, no socket and no
clock.

It launches when every input channel has a filled slot and every output has a free one; nothing else
holds it back, and so the numbers of slots alone decide how far anybody runs ahead. Rates differ by
whole numbers: an input item may serve `acts_per_item` acts in a row (a step's value read by every
piece), and an output slot may take `acts_per_item` acts to fill (pieces packed or accumulated into
a step's value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oneflow.actors.messages import (
    KERNEL_DONE,
    Effect,
    Freed,
    Granted,
    KernelDone,
    Launch,
    Message,
    Ready,
)
from oneflow.core.errors import ProtocolError

NOTHING: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """One input channel.

    register: its name, for reports.  free: per slot, the effect that gives the slot back to its
    producer.
    acts_per_item: acts that read one item before it is given back.  source: the rank that makes it,
    if another.
    """

    register: str
    free: tuple[Effect, ...]
    acts_per_item: int = 1
    source: int = -1


@dataclass(frozen=True, slots=True)
class Output:
    """One output register.

    publish: per slot, the effects that tell every reader.
    num_readers: how many Freed come back for each filled slot (one Post may tell several readers of
    a rank).
    acts_per_item: acts that fill one slot.
    inplace: the input channel whose slot is this output's slot, or -1: then the slot is given back
    to that channel's producer when all readers of the output have done.
    readers: other ranks that read it, or another register of its memory.
    grants: per slot, the effect that gives it to the register that has the memory next, instead of
    keeping it free; (): the memory is its own.
    begins: its slots are free at first; others are granted them.
    """

    register: str
    publish: tuple[tuple[Effect, ...], ...]
    num_readers: int
    acts_per_item: int = 1
    inplace: int = -1
    readers: tuple[int, ...] = ()
    grants: tuple[Effect, ...] = ()
    begins: bool = True


class Act(NamedTuple):
    """An act with certain slots. It is made once, at the first act with them.

    launch: starts it.  effects: of its end.  filled: readers of an output, a slot that the act
    completes, and how many will read it.  unread: an output and a slot of it that nobody reads.
    """

    launch: tuple[Launch]
    effects: tuple[Effect, ...]
    filled: tuple[tuple[list[int], int, int], ...]
    unread: tuple[tuple[int, int], ...]


NO_ACT = Act((Launch((), ()),), (), (), ())


class Actor:
    """See the top of this file. `handle` is the only way an actor changes."""

    __slots__ = (
        "_act", "_acts", "_before_last", "_in_slots", "_is_plain", "_last", "_most_slots",
        "_out_slots", "_passes_on", "_per_input", "_third_last", "acts", "arrived", "free",
        "full", "inputs", "lacking", "missing", "name", "outputs", "quota", "readers", "running",
        "short",
    )  # fmt: skip

    def __init__(self, name: str, inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.arrived: list[list[int]] = [[] for _ in inputs]
        self.free: list[list[int]] = [
            [*range(len(o.publish))] if o.inplace < 0 and o.begins else [] for o in outputs
        ]
        self.readers = [[0] * len(o.publish) for o in outputs]
        self._in_slots = [-1] * len(self.inputs)
        self._out_slots = [-1] * len(self.outputs)
        self._acts: dict[int, Act] = {}
        self._act = NO_ACT
        slots = [o.publish for o in outputs], [i.free for i in inputs]
        self._most_slots = max((len(x) for some in slots for x in some), default=1)
        self._per_input = tuple(i.acts_per_item for i in inputs)
        self._is_plain = tuple(o.acts_per_item == 1 and o.inplace < 0 for o in outputs)
        self._passes_on = tuple(o.inplace >= 0 or bool(o.grants) for o in outputs)
        self.acts = 0
        self.quota = 0
        self.running = False
        self.lacking = [True] * len(self.inputs)
        """A flag for each channel: it has no item for the next act."""
        self.full = [o.inplace < 0 and not o.begins for o in outputs]
        """A flag for each output, never set of one in place: it has no slot for the next act."""
        self.missing, self.short = len(self.inputs), sum(self.full)
        """Number of flags set."""
        self._last: Message | None = None
        self._before_last: Message | None = None
        self._third_last: Message | None = None

    # ---- messages --------------------------------------------------------------------------------

    @property
    def history(self) -> list[Message]:
        """The last three messages, the newest at the end. A deque would be a quarter of the memory
        of an actor, and take twice the time.
        """
        found = self._third_last, self._before_last, self._last
        return [message for message in found if message is not None]

    def handle(self, message: Message) -> Sequence[Effect]:
        """Take one message and return its effects. Raises ProtocolError for an impossible message.

        The two common messages are handled in place: a call more costs a tenth of the whole.
        """
        self._third_last, self._before_last = self._before_last, self._last
        self._last = message
        if type(message) is Ready:
            channel = message.channel
            try:
                self.arrived[channel].append(message.slot)
            except IndexError:
                raise self._refuse(message) from None
            if self.lacking[channel]:
                self.lacking[channel] = False
                self.missing -= 1
        elif type(message) is Freed:
            output, slot = message.output, message.slot
            try:
                readers = self.readers[output]
                left = readers[slot] - 1
            except IndexError:
                left = -1
            if left < 0:
                raise self._refuse(message)
            readers[slot] = left
            if left:
                return NOTHING
            if self._passes_on[output]:
                return (self._passed_on(output, slot),)
            self.free[output].append(slot)
            if self.full[output]:
                self.full[output] = False
                self.short -= 1
        elif type(message) is Granted:
            output = message.output
            if output >= len(self.outputs) or not self.outputs[output].grants:
                raise self._refuse(message)
            self._put_back(output, message.slot)
        elif type(message) is KernelDone and self.running:
            return self.done()
        else:
            raise self._refuse(message)
        if self.running or self.missing or self.short or not self.quota:
            return NOTHING
        return self._launch()

    def allow(self, acts: int) -> Sequence[Effect]:
        """Lets the actor run `acts` more times (its share of a step)."""
        self.quota += acts
        if self.running or self.missing or self.short or not self.quota:
            return NOTHING
        return self._launch()

    # ---- acting ----------------------------------------------------------------------------------

    def _launch(self) -> tuple[Effect, ...]:
        """Take the slots of one act, and count the slots that the next one lacks.

        An act with the same slots always has the same effects, so they are looked up.
        """
        self.running = True
        self.quota -= 1
        key, most = 0, self._most_slots
        i = 0  # counting by hand here and below: enumerate costs a tenth of the whole
        for per_item in self._per_input:
            queue = self.arrived[i]
            if per_item == 1:
                self._in_slots[i] = slot = queue.pop(0)
                key = key * most + slot
                ends = True
            else:
                if self.acts % per_item == 0:
                    self._in_slots[i] = queue.pop(0)
                ends = (self.acts + 1) % per_item == 0
                key = (key * most + self._in_slots[i]) * 2 + ends
            if ends and not queue:
                self.lacking[i] = True
                self.missing += 1
            i += 1  # noqa: SIM113
        i = 0
        for is_plain in self._is_plain:
            if is_plain:
                free = self.free[i]
                self._out_slots[i] = slot = free.pop(0)
                key = key * most + slot
                if not free:
                    self.full[i] = True
                    self.short += 1
            else:
                key = self._take_output(i, key)
            i += 1  # noqa: SIM113
        act = self._acts.get(key)
        if act is None:
            act = self._acts[key] = self._make_act()
        self._act = act
        return act.launch

    def _take_output(self, i: int, key: int) -> int:
        """Take the slot of an output in place, or of one that several acts fill; its part of the
        key."""
        output = self.outputs[i]
        ends = (self.acts + 1) % output.acts_per_item == 0
        if output.inplace >= 0:
            self._out_slots[i] = self._in_slots[output.inplace]
            return key * 2 + ends
        free = self.free[i]
        if self.acts % output.acts_per_item == 0:
            self._out_slots[i] = free.pop(0)
        if ends and not free:
            self.full[i] = True
            self.short += 1
        return (key * self._most_slots + self._out_slots[i]) * 2 + ends

    def _make_act(self) -> Act:
        """The act that begins, whose slots are taken."""
        acts = self.acts + 1
        effects: list[Effect] = []
        filled, unread = [], []
        for i, output in enumerate(self.outputs):
            if acts % output.acts_per_item == 0:
                slot = self._out_slots[i]
                effects += output.publish[slot]
                if output.num_readers:
                    filled.append((self.readers[i], slot, output.num_readers))
                elif self._passes_on[i]:
                    effects.append(self._passed_on(i, slot))
                else:
                    unread.append((i, slot))
        held = {output.inplace for output in self.outputs}
        for i, channel in enumerate(self.inputs):
            if acts % channel.acts_per_item == 0 and i not in held:
                effects.append(channel.free[self._in_slots[i]])
        launch = Launch(tuple(self._in_slots), tuple(self._out_slots))
        return Act((launch,), tuple(effects), tuple(filled), tuple(unread))

    def done(self) -> Sequence[Effect]:
        """Take the KernelDone of the running act: `handle` without the question which message it
        is, for the executor, which knows.
        """
        self._third_last, self._before_last = self._before_last, self._last
        self._last = KERNEL_DONE
        self.running = False
        self.acts += 1
        _, effects, filled, unread = self._act
        for readers, slot, num_readers in filled:
            readers[slot] = num_readers
        for output, slot in unread:
            self._put_back(output, slot)
        if self.quota and not (self.missing or self.short):
            return effects + self._launch()
        return effects

    def _put_back(self, output: int, slot: int) -> None:
        """The slot may be filled again."""
        self.free[output].append(slot)
        if self.full[output]:
            self.full[output] = False
            self.short -= 1

    def _passed_on(self, output: int, slot: int) -> Effect:
        """Give a slot that nobody reads any more to whom it belongs: the maker of the input that it
        came with, or the next one in its memory.
        """
        source = self.outputs[output].inplace
        if source >= 0:
            return self.inputs[source].free[slot]
        return self.outputs[output].grants[slot]

    def is_filling(self, output: int) -> bool:
        """Whether it has a slot of the output that is not whole yet."""
        return self.running or self.acts % self.outputs[output].acts_per_item != 0

    # ---- reports ---------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """Say why the actor cannot run; "" if it can."""
        if self.running:
            return "its kernel"
        missing = [
            c.register if c.source < 0 else f"{c.register} from rank {c.source}"
            for c, is_lacking in zip(self.inputs, self.lacking, strict=True)
            if is_lacking
        ]
        if missing:
            return "input " + ", ".join(missing)
        full = [
            o.register + _read_by(o.readers)
            for o, is_full in zip(self.outputs, self.full, strict=True)
            if is_full
        ]
        return "a free slot of " + ", ".join(full) if full else ""

    def lacks(self) -> str:
        """Return the cause that holds the actor back: "no_input", "no_free_register", or "" when
        the blocker is an actor that reports the cause itself.

        no_input: all it lacks is made by other ranks; an actor that waits for one of its own rank
        is not counted, the other one is. no_free_register: it has all inputs, but has run ahead as
        far as it may: a direct or indirect reader of its registers is slow.
        """
        if self.running:
            return ""
        missing = [c for c, lacks in zip(self.inputs, self.lacking, strict=True) if lacks]
        if any(channel.source < 0 for channel in missing):
            return ""
        if missing:
            return "no_input"
        return "no_free_register" if self.short else ""

    def waits_on(self) -> set[int]:
        """The other ranks that must do something before the actor can run."""
        if self.running:
            return set()
        sources = {c.source for c, lacks in zip(self.inputs, self.lacking, strict=True) if lacks}
        for output, is_full in zip(self.outputs, self.full, strict=True):
            if is_full:
                sources.update(output.readers)
        return sources - {-1}

    def _refuse(self, message: Message) -> ProtocolError:
        last = ", ".join(map(str, self.history))
        state = "running" if self.running else f"waiting for {self.waits_for() or 'nothing'}"
        return ProtocolError(
            f"actor {self.name} ({state}, {self.acts} acts) cannot accept {message}; "
            f"its last messages: {last}"
        )


def _read_by(ranks: tuple[int, ...]) -> str:
    return f", which rank {', '.join(map(str, ranks))} reads" if ranks else ""
