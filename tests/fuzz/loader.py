"""Random loaders of data, read by PyTorch's DataLoader and by ours.

    python -m tests.fuzz.loader --programs 10000 --seed 0

A program is a data set (by index, by lists of indices, or a stream that is an iterator of its own,
a new one each pass, or a generator), samples and collations that raise, an order of samples, and
passes that end early or go on after errors. Both must give the same batches and errors. Random
orders differ by their numbers, and are compared as sets. Some programs have workers.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data as theirs

import oneflow as flow
import oneflow.utils.data as ours

ERRORS = (KeyError, ValueError, RuntimeError, IndexError, OSError, ZeroDivisionError)
KINDS = ("map", "several", "iterator", "iterable", "generator")
SAMPLES = ("int", "float", "tuple", "dict", "array", "text", "nested")
LIMIT = 60


@dataclass(frozen=True)
class Program:
    """All that is drawn. bad: sample -> number of the error that it raises. stops: number of
    batches after which each pass is left, -1 for none.
    """

    kind: str
    size: int
    sample: str
    bad: dict[int, int]
    bad_batch: int
    batch_size: int | None
    drop_last: bool
    order: str
    workers: int
    persistent: bool
    prefetch: int | None
    stops: tuple[int, ...]
    seed: int


def drawn(rng: random.Random, share_with_workers: float) -> Program:
    kind = rng.choice(KINDS)
    is_stream = kind in ("iterator", "iterable", "generator")
    size = rng.randrange(13)
    workers = rng.choice((1, 1, 2)) if rng.random() < share_with_workers else 0
    batch_size = rng.choice((None, 1, 2, 2, 3, 5))
    orders = ("sequential", "shuffle", "sampler", "batch_sampler", "weighted", "replacement")
    order = "sequential" if is_stream or not size else rng.choice(orders)
    if order == "batch_sampler":
        batch_size = 1
    bad = {i: rng.randrange(len(ERRORS)) for i in range(size) if rng.random() < 0.12}
    passes = rng.randrange(1, 4)
    return Program(
        kind=kind,
        size=size,
        sample=rng.choice(SAMPLES),
        bad=bad,
        bad_batch=rng.randrange(size) if size and rng.random() < 0.1 else -1,
        batch_size=batch_size,
        drop_last=bool(batch_size) and order != "batch_sampler" and rng.random() < 0.3,
        order=order,
        workers=workers,
        persistent=workers > 0 and rng.random() < 0.5,
        prefetch=rng.choice((None, 1, 3)) if workers else None,
        stops=tuple(rng.choice((-1, -1, 0, 1, 2)) for _ in range(passes)),
        seed=rng.randrange(1 << 30),
    )


def value_of(kind: str, i: int) -> Any:
    """Sample number i, without a tensor of either library."""
    made: dict[str, Any] = {
        "int": i,
        "float": i + 0.5,
        "tuple": (i, float(i)),
        "dict": {"a": i, "b": [i, i + 1]},
        "array": np.full((2, 2), i, np.float32),
        "text": f"s{i}",
        "nested": [(i, {"x": np.arange(2) + i})],
    }
    return made[kind]


def dataset_of(library: Any, program: Program) -> Any:
    """The data set in the classes of one library."""

    def read(i: int) -> Any:
        if i in program.bad:
            raise ERRORS[program.bad[i]](f"sample {i}")
        return value_of(program.sample, i)

    class Map(library.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return program.size

        def __getitem__(self, i: int) -> Any:
            return read(int(i))

    class Several(Map):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [read(int(i)) for i in indices]

    class Position:
        def __init__(self) -> None:
            self.at = -1

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            self.at += 1
            if self.at >= program.size:
                raise StopIteration
            return read(self.at)

    class OwnIterator(library.IterableDataset, Position):  # type: ignore[misc]
        def __iter__(self) -> Any:
            self.at = -1
            return self

    class Iterable(library.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return Position()

    class Generated(library.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for i in range(program.size):
                yield read(i)

    classes = (Map, Several, OwnIterator, Iterable, Generated)
    return dict(zip(KINDS, classes, strict=True))[program.kind]()


def loader_of(library: Any, program: Program) -> Any:
    data = dataset_of(library, program)
    options: dict[str, Any] = {
        "batch_size": program.batch_size,
        "drop_last": program.drop_last,
        "num_workers": program.workers,
        "persistent_workers": program.persistent,
        "prefetch_factor": program.prefetch,
    }
    if program.workers:
        options["multiprocessing_context"] = "fork"
    orders = {
        "sampler": lambda: {"sampler": list(reversed(range(program.size)))},
        "shuffle": lambda: {"shuffle": True},
        "weighted": lambda: {
            "sampler": library.WeightedRandomSampler([0.0] * (program.size - 1) + [1.0], 5)
        },
        "replacement": lambda: {
            "sampler": library.RandomSampler(range(1), replacement=True, num_samples=4)
        },
        "batch_sampler": lambda: {
            "batch_sampler": library.BatchSampler(range(program.size), 3, drop_last=False)
        },
    }
    options |= orders.get(program.order, dict)()
    if program.bad_batch >= 0:
        usual = library.default_collate if program.batch_size else library.default_convert

        def collate(samples: Any) -> Any:
            if f"{program.bad_batch}" in repr(samples):
                raise ArithmeticError(f"no batch with {program.bad_batch}")
            return usual(samples)

        options["collate_fn"] = collate
    return library.DataLoader(data, **options)


def plain(value: Any) -> Any:
    """A batch as plain data, with the names of its types."""
    if isinstance(value, torch.Tensor | flow.Tensor):
        return ["tensor", str(value.dtype).split(".")[-1], list(value.shape), value.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    return [type(value).__name__, value]


def outcome(library: Any, program: Program) -> Any:
    """The batches and errors of all passes."""
    manual_seed = torch.manual_seed if library is theirs else flow.manual_seed
    manual_seed(program.seed)
    found = []
    try:
        loader = loader_of(library, program)
        found.append(["attributes", loader.prefetch_factor, loader.batch_size, loader.num_workers])
    except Exception as error:
        return ["no loader", type(error).__name__]
    try:
        found.append(["len", len(loader)])
    except TypeError:
        found.append(["len", "TypeError"])
    for stop in program.stops:
        found.append(_pass(loader, stop))
    return found


def _pass(loader: Any, stop: int) -> list[Any]:
    rows: list[Any] = []
    batches = iter(loader)
    while len(rows) != stop and len(rows) < LIMIT:
        try:
            rows.append(plain(next(batches)))
        except StopIteration:
            rows.append("end")
            break
        except Exception as error:
            rows.append(["error", type(error).__name__])
    return rows


def compared(program: Program, found: Any) -> Any:
    """An outcome without the parts that chance decides: the numbers of samples in random orders."""
    if program.order != "shuffle" or found[0] == "no loader":
        return found
    by_chance = program.bad or program.bad_batch >= 0 or program.drop_last
    if by_chance or any(stop >= 0 for stop in program.stops):
        return found[:2]
    return found[:2], [sorted(map(str, _leaves(rows))) for rows in found[2:]]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def difference(program: Program) -> str:
    """The text of a difference, "" if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = compared(program, outcome(theirs, program))
        got = compared(program, outcome(ours, program))
    return "" if wanted == got else f"{asdict(program)}\n  PyTorch {wanted}\n  ours    {got}"


def run(programs: int, seed: int, share_with_workers: float = 0.02) -> list[str]:
    """The differences of so many programs."""
    rng = random.Random(seed)
    found = [difference(drawn(rng, share_with_workers)) for _ in range(programs)]
    return [one for one in found if one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=float, default=0.02, help="share that has workers")
    args = parser.parse_args()
    found = run(args.programs, args.seed, args.workers)
    for one in found[:20]:
        print(one)
    print(f"{args.programs} programs, {len(found)} differences")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
