"""A made-up log of clicks whose probabilities are known, as Parquet or CSV files.

    python examples/recsys/clicks.py clicks.csv --rows 100000

A row is an impression: numbers of the context, an id in each of several fields (Zipf: few ids come
often, most hardly ever), whether it was clicked and whether the clicked thing was bought, and the
probability of the click, which no model may read: its AUC is the most that any model can reach.
Beside clicks.csv stands clicks-test.csv, of the same law, to test on.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FIELDS, NUMBERS, IDS = 8, 4, 2000
ZIPF, WIDTH = 1.1, 4
NAMES = [
    *(f"number_{i}" for i in range(NUMBERS)),
    *(f"field_{i}" for i in range(FIELDS)),
    *("click", "buy", "probability"),
]


@dataclass(frozen=True)
class Batch:
    """numbers: float32 (rows, NUMBERS).  ids: int64 (rows, FIELDS).  click, buy: float32 (rows,), 0
    or 1.  probability: float64 (rows,), of a click.
    """

    numbers: Array
    ids: Array
    click: Array
    buy: Array
    probability: Array

    def table(self) -> Array:
        """All columns in the order of NAMES, float64."""
        said = [x[:, None] for x in (self.click, self.buy, self.probability)]
        return np.concatenate([self.numbers, self.ids, *said], axis=1)

    @classmethod
    def of(cls, table: Array) -> Batch:
        """Inverse of `table`."""
        ends = NUMBERS, NUMBERS + FIELDS
        return cls(
            table[:, : ends[0]].astype(np.float32),
            table[:, ends[0] : ends[1]].astype(np.int64),
            table[:, -3].astype(np.float32),
            table[:, -2].astype(np.float32),
            table[:, -1],
        )


class Truth:
    """The law of the clicks: a weight for each id, products of neighbouring fields, and numbers.

    num_ids: in each field.
    """

    def __init__(self, seed: int, num_ids: int = IDS) -> None:
        rng = np.random.default_rng([seed, 0])
        self.seed, self._num_ids = seed, num_ids
        self.weights = rng.normal(0.0, 0.8, (FIELDS, num_ids))
        self.vectors = rng.normal(0.0, 0.3, (FIELDS, num_ids, WIDTH))
        self.slopes = rng.normal(0.0, 0.5, NUMBERS)

    def draw(self, rows: int, part: int) -> Batch:
        """Part number `part` of the log; a part depends on its number alone."""
        rng = np.random.default_rng([self.seed, 1, part])
        ids = (rng.zipf(ZIPF, (rows, FIELDS)) - 1) % self._num_ids
        numbers = rng.normal(size=(rows, NUMBERS)).astype(np.float32)
        fields = np.arange(FIELDS)
        vectors = self.vectors[fields, ids]
        logit = self.weights[fields, ids].sum(1) + numbers @ self.slopes - 0.5
        logit += (vectors[:, 0::2] * vectors[:, 1::2]).sum((1, 2))
        probability = 1 / (1 + np.exp(-logit))
        click = rng.random(rows) < probability
        buys = 1 / (1 + np.exp(-2 * self.weights[0, ids[:, 0]] - numbers[:, 0]))
        buy = click & (rng.random(rows) < buys)
        return Batch(
            numbers, ids, click.astype(np.float32), buy.astype(np.float32), probability
        )  # fmt: skip


def write(
    path: Path,
    rows: int,
    seed: int,
    first_part: int = 0,
    part_rows: int = 8192,
    num_ids: int = IDS,
) -> None:
    """Write a log of clicks: Parquet if the name ends so (it needs pyarrow), else CSV.

    first_part: logs of one seed that begin at parts far from each other have one law, and no rows
    in common.
    """
    truth, parts = Truth(seed, num_ids), -(-rows // part_rows)
    sizes = [min(part_rows, rows - i * part_rows) for i in range(parts)]
    batches = (truth.draw(size, first_part + i) for i, size in enumerate(sizes))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".parquet":
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(NAMES)
            for batch in batches:
                table = batch.table().astype(object)
                table[:, NUMBERS : NUMBERS + FIELDS] = batch.ids  # else 7 would be 7.0
                lines.writerows(table.tolist())
        return
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([(name, pyarrow.float64()) for name in NAMES])
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        for batch in batches:
            file.write_table(pyarrow.Table.from_arrays(list(batch.table().T), schema=schema))


def read(path: Path, rows: int) -> Iterator[Batch]:
    """Batches of so many rows; what is left at the end is left out. Nothing else is in memory."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(path) as file:
            for part in file.iter_batches(batch_size=rows, columns=NAMES):
                if part.num_rows == rows:
                    yield Batch.of(np.stack([np.asarray(c) for c in part.columns], axis=1))
        return
    with path.open() as file:
        if file.readline().strip() != ",".join(NAMES):
            raise SystemExit(f"{path} is no log of clicks: write one by examples/recsys/clicks.py")
        while len(lines := list(islice(file, rows))) == rows:
            yield Batch.of(np.loadtxt(lines, delimiter=",", ndmin=2))


def auc(label: Array, score: Array) -> float:
    """Share of pairs of a clicked and another row that the score puts in the right order."""
    order = np.sort(score)
    rank = (np.searchsorted(order, score) + np.searchsorted(order, score, "right") + 1) / 2
    ones = label.sum()
    return float((rank[label > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(label) - ones)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--ids", type=int, default=IDS, help="in each field")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.file, args.rows, args.seed, num_ids=args.ids)
    test = args.file.with_stem(args.file.stem + "-test")
    write(test, max(args.rows // 5, 4096), args.seed, first_part=1_000_000, num_ids=args.ids)
