"""Run on several ranks: embeddings whose rows are split over them train as those of one rank do.

argv: a folder for snapshots, and names of scenes; without any, all are played.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import RowStoreError
from oneflow.core.metrics import METRICS
from tests.support.launching import play
from tests.unit.one_embedding.making import embedding, one

RANKS = int(os.environ["WORLD_SIZE"])
EVERYONE = flow.placement("cpu", list(range(RANKS)))
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
ROWS, STEPS, TABLES = 8, 5, 3


class Model(flow.nn.Module):
    """Rows, and a layer over them."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.rows = embedding(tables=TABLES, **given)
        self.top = flow.nn.Linear(TABLES * 4, 1)
        for i, x in enumerate(self.top.parameters()):
            x.data = flow.tensor(np.random.default_rng(i).normal(size=x.shape).astype(np.float32))

    def forward(self, ids: Any) -> Any:
        return self.top(self.rows(ids).flatten(1)).squeeze(1)


class Training(flow.nn.Graph):
    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, ids: Any, target: Any) -> Any:
        loss = ((self.model(ids) - target) ** 2).mean()
        loss.backward()
        return loss


def batches() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, size=(STEPS, ROWS, TABLES)) % 50
    return list(zip(ids, rng.normal(size=(STEPS, ROWS)).astype(np.float32), strict=True))


def curve(model: Any, place: Any, is_graph: bool, kind: Any = flow.optim.Adam) -> list[float]:
    """The losses of some steps; `place` puts a batch where the model is."""
    optimizer = kind(model.parameters(), lr=0.05)
    graph = Training(model, optimizer) if is_graph else None
    losses = []
    for ids, target in batches():
        x, y = place(flow.tensor(ids)), place(flow.tensor(target))
        if graph is not None:
            losses.append(graph(x, y).numpy().item())
            continue
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy().item())
    return losses


def spread(x: Any) -> Any:
    """A tensor that every rank has whole, as parts of a global one."""
    return x.to_global(placement=EVERYONE, sbp=B).to_global(sbp=S0)


def curves_are_one() -> None:
    for kind in (flow.optim.Adam, one.SmartDecayAdam, flow.optim.Adagrad):
        alone = curve(Model(), lambda x: x, is_graph=False, kind=kind)
        for is_graph in (False, True):
            model = Model().to_global(placement=EVERYONE, sbp=B)
            assert model.rows.shadow.sbp == (S0,)
            got = curve(model, spread, is_graph, kind)
            np.testing.assert_allclose(got, alone, rtol=1e-5, err_msg=f"{kind} {is_graph}")


def rows_may_travel_in_fewer_bytes() -> None:
    """Losses stay close, and the loss is told; of rows of 4 numbers int8 needs 6 bytes."""
    alone = curve(Model(), lambda x: x, is_graph=False)
    received = {}
    for form in ("float32", "float16", "int8"):
        for is_graph in (False, True):
            model = Model(communication=form).to_global(placement=EVERYONE, sbp=B)
            before = received_nbytes()
            got = curve(model, spread, is_graph)
            received[form, is_graph] = received_nbytes() - before
            np.testing.assert_allclose(got, alone, rtol={"float32": 1e-5}.get(form, 0.02))
            told = model.rows.statistics()
            errors = told["row_error"], told["gradient_error"]
            low, high = {"float32": (0, 0), "float16": (1e-6, 1e-3), "int8": (1e-4, 1e-2)}[form]
            assert all(low <= error <= high for error in errors), (form, errors)
    for is_graph in (False, True):
        wide, half, byte = (received[form, is_graph] for form in ("float32", "float16", "int8"))
        # A row and its gradient are 16 bytes each, 8 or 6: what is saved tells how many came.
        assert wide > half > byte and (wide - half) * 10 == (wide - byte) * 8, received


class Accumulating(Training):
    """A step of two micro-batches."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer)
        self.config.set_gradient_accumulation_steps(2)


def batches_may_lie_otherwise() -> None:
    """Copies on all ranks, micro-batches, and of four ranks a grid: one curve."""
    alone = curve(Model(), lambda x: x, is_graph=False)
    model = Model().to_global(placement=EVERYONE, sbp=B)
    got = curve(model, lambda x: x.to_global(placement=EVERYONE, sbp=B), is_graph=True)
    np.testing.assert_allclose(got, alone, rtol=1e-5)
    model = Model().to_global(placement=EVERYONE, sbp=B)
    graph = Accumulating(model, flow.optim.Adam(model.parameters(), lr=0.05))
    pieces = [graph(*map(spread, map(flow.tensor, batch))).numpy() for batch in batches()]
    np.testing.assert_allclose([x.mean() for x in pieces], alone, rtol=1e-5)
    if RANKS != 4:
        return
    grid = flow.placement("cpu", [[0, 1], [2, 3]])
    for is_graph in (False, True):
        for layout in ([S0, S0], [S0, B]):
            model = Model().to_global(placement=grid, sbp=[B, B])
            got = curve(
                model,
                lambda x, to=layout: x.to_global(placement=grid, sbp=[B, B]).to_global(sbp=to),
                is_graph,
            )
            np.testing.assert_allclose(got, alone, rtol=1e-5, err_msg=f"{layout} {is_graph}")


class Ahead(Training):
    """A step that reads the rows of the next one ahead."""

    def build(self, ids: Any, target: Any, following: Any) -> Any:  # type: ignore[override]
        self.model.rows.prefetch(following)
        return super().build(ids, target)


def rows_may_be_read_ahead() -> None:
    """Losses are, to the last bit, those of ranks that read at once."""
    given = [(spread(flow.tensor(ids)), spread(flow.tensor(y))) for ids, y in batches()]
    for is_graph in (False, True):
        wanted = curve(Model().to_global(placement=EVERYONE, sbp=B), spread, is_graph)
        model = Model().to_global(placement=EVERYONE, sbp=B)
        optimizer = flow.optim.Adam(model.parameters(), lr=0.05)
        graph = Ahead(model, optimizer) if is_graph else None
        losses = []
        for k, (ids, y) in enumerate(given):
            following = given[min(k + 1, STEPS - 1)][0]
            if graph is not None:
                losses.append(graph(ids, y, following).numpy().item())
                continue
            loss = ((model(ids) - y) ** 2).mean()
            model.rows.prefetch(following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.numpy().item())
        assert losses == wanted, is_graph
        assert model.rows.statistics()["ahead"] > 0
        # Ids travel once: of all batches but the first, ranks name those that they have sent.
        assert model.rows.one_embedding.rows.ids_ahead.used >= STEPS - 1
    given_up = Model().to_global(placement=EVERYONE, sbp=B)
    ids = np.arange(20 * RANKS * TABLES).reshape(-1, TABLES)
    others = np.concatenate([ids[:20], ids[20:] + 1])  # the same on the first rank alone
    given_up.rows.prefetch(spread(flow.tensor(ids)))
    got = given_up.rows(spread(flow.tensor(others))).numpy()
    alone = Model().to_global(placement=EVERYONE, sbp=B)
    np.testing.assert_array_equal(got, alone.rows(spread(flow.tensor(others))).numpy())
    assert given_up.rows.one_embedding.rows.ids_ahead.used == 1


def received_nbytes() -> int:
    """Bytes that this rank has read of others, eagerly and in graphs."""
    return sum(METRICS.collective_bytes.values())


def rows_are_split() -> None:
    model = Model().to_global(placement=EVERYONE, sbp=B)
    ids = flow.arange(300).reshape(100, TABLES)
    model(spread(ids))
    here = len(model.rows.one_embedding.rows.store)
    assert 300 / RANKS * 0.5 < here < 300 / RANKS * 1.5, here


def snapshots_fit_other_numbers_of_ranks() -> None:
    folder = sys.argv[1]
    options = one.make_device_mem_store_options(folder, 1000, size_factor=3)
    model = Model(store_options=options, name="kept").to_global(placement=EVERYONE, sbp=B)
    curve(model, spread, is_graph=False)
    state = model.rows.state_dict()
    ids, _ = batches()[0]
    wanted = model.rows(spread(flow.tensor(ids))).numpy()
    curve(model, spread, is_graph=True)
    assert not np.array_equal(model.rows(spread(flow.tensor(ids))).numpy(), wanted)
    model.rows.load_state_dict(state)
    np.testing.assert_array_equal(model.rows(spread(flow.tensor(ids))).numpy(), wanted)
    if flow.env.get_rank() == 0:
        alone = embedding(tables=TABLES, store_options=options)
        alone.load_snapshot(state["_extra_state"]["snapshot"])
        np.testing.assert_array_equal(alone(flow.tensor(ids)).detach().numpy(), wanted)


def snapshots_go_from_many_ranks_to_one_and_back() -> None:
    folder = f"{sys.argv[1]}/named"
    options = one.make_device_mem_store_options(folder, 1000, size_factor=3)
    model = Model(store_options=options).to_global(placement=EVERYONE, sbp=B)
    curve(model, spread, is_graph=False)
    model.rows.save_snapshot("of all")
    ids, rest = flow.tensor(batches()[0][0]), flow.tensor(batches()[1][0])
    wanted = model.rows(spread(ids)).numpy()
    if flow.env.get_rank() == 0:
        alone = embedding(tables=TABLES, store_options=options)
        alone.load_snapshot("of all")
        np.testing.assert_array_equal(alone(ids).detach().numpy(), wanted)
        (alone(ids).sum() + alone(rest).sum()).backward()
        flow.optim.SGD(alone.parameters(), lr=1.0).step()
        alone.save_snapshot("of one")
        changed = alone(ids).detach().numpy()
        assert not np.array_equal(changed, wanted)
    else:
        changed = np.empty_like(wanted)
    flow.comm.broadcast(shared := flow.tensor(changed), 0)
    model.rows.load_snapshot("of one")
    np.testing.assert_array_equal(model.rows(spread(ids)).numpy(), shared.numpy())
    model.rows.load_snapshot("of all")
    np.testing.assert_array_equal(model.rows(spread(ids)).numpy(), wanted)


def a_snapshot_is_complete_when_it_is_saved() -> None:
    """The last rank is late; then it cannot save."""
    options = one.make_device_mem_store_options(f"{sys.argv[1]}/late", 1000, size_factor=3)
    model = Model(store_options=options).to_global(placement=EVERYONE, sbp=B)
    curve(model, spread, is_graph=False)
    store, last = model.rows.one_embedding.rows.store, RANKS - 1
    save, is_last = store.save_snapshot, flow.env.get_rank() == last

    def late(name: str, moment_ns: int) -> None:
        time.sleep(0.5)
        save(name, moment_ns)

    def failing(name: str, moment_ns: int) -> None:
        raise RowStoreError("the disk is full")

    if is_last:
        store.save_snapshot = late
    model.rows.save_snapshot("late")
    model.rows.load_snapshot("late")
    if is_last:
        store.save_snapshot = failing
    said = "the disk is full" if is_last else f"not complete: rank {last} could not save"
    with pytest.raises(RowStoreError, match=said):
        model.rows.save_snapshot("lost")
    store.save_snapshot = save
    model.rows.save_snapshot("after")
    model.rows.load_snapshot("after")


SCENES = (
    curves_are_one,
    rows_may_travel_in_fewer_bytes,
    rows_may_be_read_ahead,
    batches_may_lie_otherwise,
    rows_are_split,
    snapshots_fit_other_numbers_of_ranks,
    snapshots_go_from_many_ranks_to_one_and_back,
    a_snapshot_is_complete_when_it_is_saved,
)

if __name__ == "__main__":
    play([scene for scene in SCENES if not sys.argv[2:] or scene.__name__ in sys.argv[2:]])
