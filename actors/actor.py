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


class Actor:
    """See the top of this file. `handle` is the only way an actor changes."""

    __slots__ = (
        "_before_last", "_holds", "_inplace", "_last", "_launches", "_most_slots", "_num_inputs",
        "_num_outputs", "_passes_on", "_third_last", "acts", "arrived", "free", "in_slots",
        "inputs", "missing", "name", "out_slots", "outputs", "quota", "readers", "running",
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
        self.in_slots = [-1] * len(self.inputs)
        self.out_slots = [-1] * len(self.outputs)
        self._launches: dict[int, tuple[Effect, ...]] = {}
        slots = [o.publish for o in outputs], [i.free for i in inputs]
        self._most_slots = max((len(x) for some in slots for x in some), default=1)
        self._num_inputs, self._num_outputs = len(self.inputs), len(self.outputs)
        self._inplace = [o.inplace for o in outputs]
        self._passes_on = [o.inplace >= 0 or bool(o.grants) for o in outputs]
        self._holds = [any(o.inplace == i for o in outputs) for i in range(len(inputs))]
        self.acts = 0
        self.quota = 0
        self.running = False
        self.missing = len(self.inputs)
        """Channels without an item."""
        self.short = sum(o.inplace < 0 and not o.begins for o in outputs)
        """Outputs (not in place) without a free slot."""
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
        """Takes one message; returns what is to be done. Raises ProtocolError for what cannot be.

        The two common messages are handled in place: a call more costs a tenth of the whole.
        """
        self._third_last, self._before_last = self._before_last, self._last
        self._last = message
        if type(message) is Ready:
            channel = message.channel
            if not 0 <= channel < self._num_inputs:
                raise self._refuse(message)
            queue = self.arrived[channel]
            if not queue and self.in_slots[channel] < 0:
                self.missing -= 1
            queue.append(message.slot)
        elif type(message) is Freed:
            output, slot = message.output, message.slot
            if not (0 <= output < self._num_outputs and self.readers[output][slot] > 0):
                raise self._refuse(message)
            readers = self.readers[output]
            readers[slot] -= 1
            if readers[slot]:
                return NOTHING
            if self._passes_on[output]:
                return (self._passed_on(output, slot),)
            free = self.free[output]
            if not free and self.out_slots[output] < 0:
                self.short -= 1
            free.append(slot)
        elif type(message) is Granted:
            output = message.output
            if not (0 <= output < self._num_outputs and self.outputs[output].grants):
                raise self._refuse(message)
            self.short -= 1  # it has one slot at most
            self.free[output].append(message.slot)
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

    def _launch(self) -> Sequence[Effect]:
        """Takes the slots of one act. Launches are kept: making a frozen object costs more than
        finding it.
        """
        self.running = True
        self.quota -= 1
        in_slots, out_slots = self.in_slots, self.out_slots
        key, most = 0, self._most_slots
        i = 0  # counting by hand here and below: enumerate costs a tenth of the whole
        for queue in self.arrived:
            slot = in_slots[i]
            if slot < 0:
                in_slots[i] = slot = queue.pop(0)
            key = key * most + slot
            i += 1  # noqa: SIM113
        i = 0
        for source in self._inplace:
            slot = out_slots[i]
            if source >= 0:
                out_slots[i] = slot = in_slots[source]
            elif slot < 0:
                out_slots[i] = slot = self.free[i].pop(0)
            key = key * most + slot
            i += 1  # noqa: SIM113
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = (Launch(tuple(in_slots), tuple(out_slots)),)
        return found

    def done(self) -> Sequence[Effect]:
        """Take the KernelDone of the running act: `handle` without the question which message it
        is, for the executor, which knows.
        """
        self._third_last, self._before_last = self._before_last, self._last
        self._last = KERNEL_DONE
        effects: list[Effect] = []
        self.running = False
        self.acts = acts = self.acts + 1
        i = 0
        for output in self.outputs:
            if output.acts_per_item == 1 or acts % output.acts_per_item == 0:
                slot, self.out_slots[i] = self.out_slots[i], -1
                effects += output.publish[slot]
                self.readers[i][slot] = output.num_readers
                if not output.num_readers:
                    effects += self._nobody_reads(i, slot)
                if output.inplace < 0 and not self.free[i]:
                    self.short += 1
            i += 1  # noqa: SIM113
        i = 0
        for channel in self.inputs:
            if channel.acts_per_item == 1 or acts % channel.acts_per_item == 0:
                slot, self.in_slots[i] = self.in_slots[i], -1
                if not self.arrived[i]:
                    self.missing += 1
                if not self._holds[i]:
                    effects.append(channel.free[slot])
            i += 1  # noqa: SIM113
        if self.quota and not (self.missing or self.short):
            effects += self._launch()
        return effects

    def _nobody_reads(self, output: int, slot: int) -> Sequence[Effect]:
        """The slot is free as soon as it is filled."""
        if self._passes_on[output]:
            return (self._passed_on(output, slot),)
        self.free[output].append(slot)
        return NOTHING

    def _passed_on(self, output: int, slot: int) -> Effect:
        """Give a slot that nobody reads any more to whom it belongs: the maker of the input that it
        came with, or the next one in its memory.
        """
        source = self._inplace[output]
        if source >= 0:
            return self.inputs[source].free[slot]
        return self.outputs[output].grants[slot]

    # ---- reports ---------------------------------------------------------------------------------

    def waits_for(self) -> str:
        """Say what keeps the actor from running; "" if nothing does."""
        if self.running:
            return "its kernel"
        missing = [
            c.register if c.source < 0 else f"{c.register} from rank {c.source}"
            for c, q, s in zip(self.inputs, self.arrived, self.in_slots, strict=True)
            if not q and s < 0
        ]
        if missing:
            return "input " + ", ".join(missing)
        full = [
            o.register + _read_by(o.readers)
            for o, q, s in zip(self.outputs, self.free, self.out_slots, strict=True)
            if o.inplace < 0 and not q and s < 0
        ]
        return "a free slot of " + ", ".join(full) if full else ""

    def lacks(self) -> str:
        """Return what holds the actor back: "no_input", "no_free_register", or "" when the blocker
        is an actor that reports the cause itself.

        no_input: all it lacks is made by other ranks; who waits for an actor of its own rank is not
        counted, that actor is. no_free_register: it has all inputs, but has run ahead as far as it
        may: whoever reads what it makes is slow, at first or second hand.
        """
        is_missing = False
        for channel, queue, slot in zip(self.inputs, self.arrived, self.in_slots, strict=True):
            if not queue and slot < 0:
                if channel.source < 0:
                    return ""
                is_missing = True
        if is_missing:
            return "no_input"
        return "no_free_register" if self.short and not self.running else ""

    def waits_on(self) -> set[int]:
        """The other ranks that must do something before the actor can run."""
        ranks = {
            c.source
            for c, q, s in zip(self.inputs, self.arrived, self.in_slots, strict=True)
            if not q and s < 0 and c.source >= 0
        }
        for output, free, slot in zip(self.outputs, self.free, self.out_slots, strict=True):
            if output.inplace < 0 and not free and slot < 0:
                ranks.update(output.readers)
        return ranks

    def _refuse(self, message: Message) -> ProtocolError:
        last = ", ".join(map(str, self.history))
        state = "running" if self.running else f"waiting for {self.waits_for() or 'nothing'}"
        return ProtocolError(
            f"actor {self.name} ({state}, {self.acts} acts) cannot accept {message}; "
            f"its last messages: {last}"
        )


def _read_by(ranks: tuple[int, ...]) -> str:
    return f", which rank {', '.join(map(str, ranks))} reads" if ranks else ""
