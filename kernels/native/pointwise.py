"""The gradient of the weights of a convolution with a kernel of one element: a sum over samples of
products of float32 images (N, C, positions), which are read where they lie.

The rows of the products are those of the other gradient, which need no copy. The columns are panels
of BLOCK channels, turned for some hundred positions at a time: a panel fits the first cache and a
group of them the second. A few rows meet all panels of a group in turn.
"""

from __future__ import annotations

from functools import partial

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import BLOCK, LANES, MOST_ROWS, product
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

_DEPTH = 4096 // BLOCK
"""Positions for which panels are copied: a panel takes 16 KB."""
_PANELS = 8
"""Panels that are copied at once."""
_PITCH = _DEPTH * BLOCK
_WIDTH = _PANELS * BLOCK
_MOST_TASKS = 64
_LEAST_TASKS = 4
"""Pieces of work into which a call is cut, if it has as many rows. Each copies its panels."""
_PRODUCTS = 32
"""Multiplications that take as long as one element of the loops by which threads are counted."""


class _Writer:
    """A piece of work is some rows of d_out and _PANELS panels."""

    def __init__(self) -> None:
        self.p = p = Program((
            "begin", "end", "splits", "rows", "channels", "positions", "samples", "at_once",
            "spare", "product", "out", "d_out", "x",
        ))  # fmt: skip
        self.panels = p.memory(_PANELS * _PITCH * FLOAT_NBYTES)
        self.spare = p.memory(p["spare"])

    def write(self) -> Program:
        p = self.p

        def of_task(task: Value, _: Values) -> None:
            part = task % p["splits"]
            first = p["rows"] * part // p["splits"]
            count = p["rows"] * (part + 1) // p["splits"] - first
            self._of_rows(task // p["splits"] * _WIDTH, first, count)

        p.loop(p["begin"], p["end"], of_task)
        return p

    def _of_rows(self, begin: Value, first: Value, count: Value) -> None:
        """`count` rows from `first` on, by the panels of the channels from `begin` on."""
        p = self.p
        rest = (p["channels"] - begin + (BLOCK - 1)) // BLOCK
        panels = p.least(rest, p.number(_PANELS))

        def of_samples(k: Value) -> None:
            n = k * p["at_once"]
            together = p.least(p["samples"] - n, p["at_once"])

            def of_chunk(place: Value, _: Values) -> None:
                depth = p.least(p["positions"] - place, p.number(_DEPTH))
                p.each(panels, partial(self._turn, begin, n, place, together, depth))
                self._multiply(begin, first, count, n, place, together, depth, panels)

            p.loop(0, p["positions"], of_chunk, step=_DEPTH)

        p.each((p["samples"] + p["at_once"] - 1) // p["at_once"], of_samples)
        p.each(panels, partial(self._spread, begin, first, count))

    def _channels_of(self, begin: Value, g: Value) -> Value:
        p = self.p
        return p.least(p["channels"] - begin - g * BLOCK, p.number(BLOCK))

    def _turn(
        self, begin: Value, n: Value, place: Value, together: Value, depth: Value, g: Value
    ) -> None:
        """Copy panel g of some positions of some samples."""
        p = self.p
        panel, own = at(self.panels, g * _PITCH), self._channels_of(begin, g)
        p.when(own.compare("lt", BLOCK), lambda: p.zero(panel, together * depth * BLOCK))

        def of_sample(s: Value) -> None:
            plane = (n + s) * p["channels"] + begin + g * BLOCK
            source = at(p["x"], plane * p["positions"] + place)
            target = at(panel, s * depth * BLOCK)
            p.transpose(target, source, (own, depth), (p.number(BLOCK), p["positions"]))

        p.each(together, of_sample)

    def _multiply(
        self, begin: Value, first: Value, count: Value, n: Value, place: Value, together: Value,
        depth: Value, panels: Value,
    ) -> None:  # fmt: skip
        p = self.p
        positions, one, none = p["positions"], p.number(1), p.number(0)
        adds = (n + place).compare("gt", 0).choose(one, none)
        tiles = (count + (MOST_ROWS - 1)) // MOST_ROWS

        def of_tile(tile: Value) -> None:
            left = count * tile // tiles
            here = count * (tile + 1) // tiles - left
            rows = at(p["d_out"], (n * p["rows"] + first + left) * positions + place)

            def of_panel(g: Value) -> None:
                is_whole = self._channels_of(begin, g).compare("eq", BLOCK)
                there = at(p["out"], (first + left) * p["channels"] + begin + g * BLOCK)
                out = is_whole.choose(there, self._spare_of(g, left))
                out_step = is_whole.choose(p["channels"], p.number(BLOCK))
                a_steps = [positions, p["rows"] * positions, none, one]
                b_steps = [depth * BLOCK, none, p.number(BLOCK)]
                p.call(
                    p["product"],
                    [out, rows, at(self.panels, g * _PITCH)],
                    [here, *a_steps, *b_steps, out_step, together, one, depth, adds],
                )

            p.each(panels, of_panel)

        p.each(tiles, of_tile)

    def _spare_of(self, g: Value, row: Value) -> Value:
        """Results of a panel with fewer than BLOCK channels, which are stored at the end."""
        return at(self.spare, (g * self.p["rows"] + row) * BLOCK)

    def _spread(self, begin: Value, first: Value, count: Value, g: Value) -> None:
        p = self.p
        own = self._channels_of(begin, g)

        def of_row(r: Value) -> None:
            source = self._spare_of(g, r)
            target = at(p["out"], (first + r) * p["channels"] + begin + g * BLOCK)

            def some(j: Value, _: Values) -> None:
                p.store_first(own - j, p.load(at(source, j), LANES), at(target, j))

            p.loop(0, own, some, step=LANES)

        p.when(own.compare("lt", BLOCK), lambda: p.each(count, of_row))


def _write() -> Program:
    return _Writer().write()


def filter_gradient(d_w: Array, d_out: Array, x: Array) -> None:
    """d_w (O, C) <- the sum over samples of d_out (N, O, positions) times x (N, C, positions)
    turned. All contiguous, none empty."""
    samples, channels, positions = x.shape
    rows = d_out.shape[1]
    groups = -(-channels // _WIDTH)
    splits = max(1, min(-(-_LEAST_TASKS // groups), rows // (2 * MOST_ROWS)))
    spare = 0 if channels % BLOCK == 0 else _PANELS * rows * BLOCK * FLOAT_NBYTES
    numbers = [splits, rows, channels, positions, samples, max(1, _DEPTH // positions), spare]
    numbers += [product(), *map(data_address, (d_w, d_out, x))]
    work = samples * channels * positions * rows // _PRODUCTS
    parts = cut(groups * splits, work, _MOST_TASKS)
    run(function_of(_write), [[begin, end, *numbers] for begin, end in parts])
