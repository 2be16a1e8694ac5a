"""The actor state machine: messages in, effects out."""

import random

import pytest

from oneflow.actors.actor import NOTHING, Actor, Input, Output
from oneflow.actors.messages import KERNEL_DONE, Freed, Granted, Launch, Ready, Send
from oneflow.core.errors import ProtocolError

UPSTREAM, DOWNSTREAM = 100, 200


def make_input(num_slots: int, acts_per_item: int = 1) -> Input:
    free = tuple(Send(UPSTREAM, Freed(0, s)) for s in range(num_slots))
    return Input("in", free, acts_per_item)


def make_output(num_slots: int, acts_per_item: int = 1, inplace: int = -1) -> Output:
    publish = tuple((Send(DOWNSTREAM, Ready(0, s)),) for s in range(num_slots))
    return Output("out", publish, 1, acts_per_item, inplace)


def test_actor_launches_when_inputs_arrived_and_a_slot_is_free():
    actor = Actor("a", [make_input(1), make_input(1)], [make_output(1)])
    assert actor.allow(1) == NOTHING
    assert actor.handle(Ready(0, 0)) == NOTHING
    assert actor.handle(Ready(1, 0)) == (Launch((0, 0), (0,)),)


def test_done_publishes_to_readers_and_gives_inputs_back():
    actor = Actor("a", [make_input(2)], [make_output(1)])
    actor.allow(1)
    actor.handle(Ready(0, 1))
    assert actor.handle(KERNEL_DONE) == (
        Send(DOWNSTREAM, Ready(0, 0)),
        Send(UPSTREAM, Freed(0, 1)),
    )


def test_a_full_output_holds_the_actor_back_until_it_is_freed():
    actor = Actor("a", [make_input(2)], [make_output(1)])
    actor.allow(2)
    actor.handle(Ready(0, 0))
    actor.handle(Ready(0, 1))
    assert not any(isinstance(e, Launch) for e in actor.handle(KERNEL_DONE))
    assert actor.waits_for() == "a free slot of out"
    assert actor.handle(Freed(0, 0)) == (Launch((1,), (0,)),)


def test_a_slot_with_two_readers_is_free_after_both_have_done():
    publish = ((Send(1, Ready(0, 0)), Send(2, Ready(0, 0))),)
    actor = Actor("a", [], [Output("out", publish, 2)])
    assert actor.allow(2) == (Launch((), (0,)),)
    actor.handle(KERNEL_DONE)
    assert actor.handle(Freed(0, 0)) == NOTHING
    assert actor.handle(Freed(0, 0)) == (Launch((), (0,)),)


def test_an_item_may_serve_several_acts():
    actor = Actor("repeat", [make_input(1, acts_per_item=3)], [make_output(3)])
    actor.allow(3)
    launches = actor.handle(Ready(0, 0))
    freed_after = []
    for act in range(3):
        assert launches[-1] == Launch((0,), (act,))
        launches = actor.handle(KERNEL_DONE)
        freed_after.append(Send(UPSTREAM, Freed(0, 0)) in launches)
    assert freed_after == [False, False, True]


def test_several_acts_may_fill_one_slot():
    actor = Actor("accumulate", [make_input(2)], [make_output(1, acts_per_item=2)])
    actor.allow(2)
    actor.handle(Ready(0, 0))
    first = actor.handle(KERNEL_DONE)
    assert first == (Send(UPSTREAM, Freed(0, 0)),)
    assert actor.handle(Ready(0, 1)) == (Launch((1,), (0,)),)
    assert actor.handle(KERNEL_DONE)[0] == Send(DOWNSTREAM, Ready(0, 0))


def test_an_inplace_output_gives_its_input_back_when_its_readers_have_done():
    actor = Actor("gather", [make_input(2)], [make_output(2, inplace=0)])
    actor.allow(1)
    assert actor.handle(Ready(0, 1)) == (Launch((1,), (1,)),)
    assert actor.handle(KERNEL_DONE) == (Send(DOWNSTREAM, Ready(0, 1)),)
    assert actor.handle(Freed(0, 1)) == (Send(UPSTREAM, Freed(0, 1)),)


def test_registers_of_one_memory_take_turns():
    """The second has the slot when all have read the first, and leaves it to the first again."""
    publish = ((Send(DOWNSTREAM, Ready(0, 0)),),)
    first, second = (
        Actor(str(i), [], [Output("out", publish, 1, grants=(grant,), begins=not i)])
        for i, grant in enumerate((Send(1, Granted(0, 0)), Send(0, Granted(0, 0))))
    )
    assert second.allow(2) == NOTHING
    assert second.waits_for() == "a free slot of out"
    for launch in (first.allow(2), None):
        if launch is not None:
            assert launch == (Launch((), (0,)),)
        assert first.handle(KERNEL_DONE) == (Send(DOWNSTREAM, Ready(0, 0)),)
        assert first.handle(Freed(0, 0)) == (Send(1, Granted(0, 0)),)
        assert second.handle(Granted(0, 0)) == (Launch((), (0,)),)
        assert second.handle(KERNEL_DONE) == (Send(DOWNSTREAM, Ready(0, 0)),)
        assert second.handle(Freed(0, 0)) == (Send(0, Granted(0, 0)),)
        again = first.handle(Granted(0, 0))
        assert again == ((Launch((), (0,)),) if launch is not None else NOTHING)


@pytest.mark.parametrize("message", [Freed(0, 0), KERNEL_DONE, Ready(7, 0), Granted(0, 0)])
def test_what_cannot_be_is_refused_with_the_last_messages(message):
    actor = Actor("a", [make_input(1)], [make_output(1)])
    with pytest.raises(ProtocolError, match="its last messages"):
        actor.handle(message)


class Chain:
    """Actors in a row, run under a seeded order of deliveries."""

    def __init__(self, length: int, slots: list[int], acts: int) -> None:
        self.actors = []
        self.log: list[int] = []
        for i in range(length):
            inputs = []
            if i:
                inputs = [Input("in", tuple(Send(i - 1, Freed(0, s)) for s in range(slots[i - 1])))]
            outputs = []
            if i < length - 1:
                publish = tuple((Send(i + 1, Ready(0, s)),) for s in range(slots[i]))
                outputs = [Output("out", publish, 1)]
            self.actors.append(Actor(str(i), inputs, outputs))
        self.pending = [(i, e) for i, actor in enumerate(self.actors) for e in actor.allow(acts)]

    def run(self, rng: random.Random) -> None:
        while self.pending:
            # Messages between one pair stay in order; everything else may be swapped.
            k = rng.randrange(len(self.pending))
            owner, effect = self.pending[k]
            for j in range(k):
                if _pair(self.pending[j]) == _pair((owner, effect)):
                    k, (owner, effect) = j, self.pending[j]
                    break
            self.pending.pop(k)
            if isinstance(effect, Launch):
                self.log.append(owner)
                self._add(owner, KERNEL_DONE)
            else:
                self._add(effect.target, effect.message)

    def _add(self, target, message):
        self.pending += [(target, e) for e in self.actors[target].handle(message)]


def _pair(entry):
    owner, effect = entry
    return owner, getattr(effect, "target", None)


@pytest.mark.parametrize("seed", range(200))
def test_every_interleaving_of_a_chain_finishes_with_all_slots_free(seed):
    rng = random.Random(seed)
    length, acts = rng.randint(2, 6), rng.randint(1, 9)
    slots = [rng.randint(1, 3) for _ in range(length)]
    chain = Chain(length, slots, acts)
    chain.run(rng)
    assert all(a.acts == acts and not a.quota for a in chain.actors)
    for i, actor in enumerate(chain.actors[:-1]):
        assert sorted(actor.free[0]) == list(range(slots[i]))
        assert actor.readers[0] == [0] * slots[i]


@pytest.mark.parametrize("seed", range(50))
def test_nobody_runs_further_ahead_than_its_slots(seed):
    rng = random.Random(seed)
    slots = [rng.randint(1, 3) for _ in range(3)]
    chain = Chain(4, slots, 8)
    chain.run(rng)
    done = [0] * 4
    for owner in chain.log:
        done[owner] += 1
        for i in range(3):
            assert done[i] - done[i + 1] <= slots[i]
