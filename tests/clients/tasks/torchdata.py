"""StatefulDataLoader stopped and resumed in the middle of a pass, with and without workers; nodes:
mapping, batches, mixed sources, state."""

import numpy as np

PACKAGES = "torchdata"


class _Numbers:
    """A data set whose samples name themselves."""

    def __len__(self):
        return 23

    def __getitem__(self, place):
        return np.float32(place)


def _resumed(workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        return StatefulDataLoader(_Numbers(), batch_size=4, num_workers=workers)

    first = loader()
    seen, batches = [], iter(first)
    for _ in range(2):
        seen.append(next(batches))
    state = first.state_dict()
    rest = list(batches)
    again = loader()
    again.load_state_dict(state)
    return {"seen": seen, "rest": rest, "again": list(again), "next pass": list(again)}


def task_resumed(torch):
    return _resumed(0)


def task_resumed_with_workers(torch):
    return _resumed(2)


def task_nodes(torch):
    from torch.utils.data import SequentialSampler
    from torchdata.nodes import (
        Batcher,
        IterableWrapper,
        Loader,
        Mapper,
        MultiNodeWeightedSampler,
        SamplerWrapper,
        StopCriteria,
    )

    node = Mapper(SamplerWrapper(SequentialSampler(_Numbers())), lambda place: place * 2)
    loader = Loader(Batcher(node, 5, drop_last=False))
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    rest = [part for batch in batches for part in batch]
    loader.load_state_dict(state)
    again = [part for batch in loader for part in batch]
    both = MultiNodeWeightedSampler(
        {"a": IterableWrapper(range(4)), "b": IterableWrapper(range(10, 14))},
        {"a": 1.0, "b": 0.0001}, StopCriteria.FIRST_DATASET_EXHAUSTED, seed=1,
    )  # fmt: skip
    return {"first": first, "rest": rest, "again": again, "mixed": sorted(Loader(both))[:4]}
