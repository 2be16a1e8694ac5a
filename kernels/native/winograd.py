"""Convolutions of float32 images by windows of 3 x 3 and stride 1 with fewer multiplications.

Winograd's F(2 x 2, 3 x 3), as in Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (2015): a tile of 2 x 2 results takes 16 multiplications of turned pixels and turned
weights for each pair of channels instead of 36. Sums of turned pixels lose no more than a bit or
two; larger tiles would save more and lose three digits.

The turned pixels of some rows of tiles are a matrix for each of the 16 places, which stays in the
second cache while the products (product.py) by all blocks of channels go by.
"""

from __future__ import annotations

from functools import partial

from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import BLOCK, LANES, MOST_ROWS, VECTORS, product
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)

_PLACES = 16
_SIDE = 4
"""Pixels along a side of the square that a tile reads."""
_MOST_TILES, _TURNED = 96, 1 << 14
"""Tiles of a piece of work, and turned pixels of a place."""
_MOST_TURNED = 1 << 15
"""Turned pixels of a place that are there at once, 2 MB of the stack: longer rows of tiles are cut
into segments."""
_LEAST_PIECES = 4
_MOST_TASKS = 64
_PRODUCTS = 32
"""Multiplications that take as long as one element of the loops by which threads are counted."""
_TURN, _TURN_WEIGHT = 6, 18
"""Multiplications that take as long as turning a number of a tile, and one of the weights."""


def num_tiles(size: int) -> int:
    return (size + 1) // 2


def is_faster(samples: int, channels: int, outs: int, height: int, width: int) -> bool:
    """Whether fewer multiplications pay for the turning. height, width: of the results."""
    tiles = samples * num_tiles(height) * num_tiles(width)
    padded = -(-outs // BLOCK) * BLOCK
    own = tiles * channels * padded + _TURN * tiles * (channels + padded)
    own += _TURN_WEIGHT * channels * padded
    return (
        channels % LANES == 0 and _PLACES * own < 9 * samples * height * width * channels * padded
    )


def pixels_shape(samples: int, channels: int, height: int, width: int) -> tuple[int, ...]:
    """The shape of the padded image. height, width: of the results."""
    return samples, 2 * num_tiles(height) + 2, 2 * num_tiles(width) + 2, channels


def weights_shape(channels: int, outs: int) -> tuple[int, ...]:
    return -(-outs // BLOCK), _PLACES, channels, BLOCK


def _turned(lines: Values) -> Values:
    """Four pixels in a row, for the products of two results."""
    a, b, c, d = lines
    return [a - c, b + c, c - b, b - d]


def _turned_back(lines: Values) -> Values:
    """Two results of four products."""
    a, b, c, d = lines
    return [a + b + c, b - c - d]


def _turned_weights(lines: Values) -> Values:
    a, b, c = lines
    ends, middle = (a + c) * 0.5, b * 0.5
    return [a, ends + middle, ends - middle, c]


# ---- weights -------------------------------------------------------------------------------------


def _write_weights() -> Program:
    """Pieces are channels of a block: BLOCK weights of each of nine places."""
    p = Program(("begin", "end", "channels", "packed", "turned"))

    def of_piece(piece: Value, _: Values) -> None:
        block, c = piece // p["channels"], piece % p["channels"]

        def row(memory: str, places: int, place: int) -> Value:
            return at(p[memory], ((block * places + place) * p["channels"] + c) * BLOCK)

        for v in range(VECTORS):
            given = [p.load(at(row("packed", 9, i), v * LANES), LANES) for i in range(9)]
            columns = [_turned_weights(given[i::3]) for i in range(3)]
            for i in range(_SIDE):
                for j, x in enumerate(_turned_weights([column[i] for column in columns])):
                    p.store(x, at(row("turned", _PLACES, i * _SIDE + j), v * LANES))

    p.loop(p["begin"], p["end"], of_piece)
    return p


def turn_weights(turned: Array, packed: Array) -> None:
    """turned (blocks, 16, channels, BLOCK) <- packed (blocks, 3, 3, channels, BLOCK)."""
    blocks, _, channels, _ = turned.shape
    numbers = [channels, data_address(packed), data_address(turned)]
    parts = cut(blocks * channels, turned.size, _MOST_TASKS)
    run(function_of(_write_weights), [[begin, end, *numbers] for begin, end in parts])


# ---- images --------------------------------------------------------------------------------------

_NAMES = (
    "begin", "end", "parts", "chunks", "segments", "rows", "blocks", "outs", "height", "width",
    "down", "across", "channels", "line", "image", "tiles", "made", "product", "out", "pixels",
    "weights",
)  # fmt: skip


class _Writer:
    """A piece of work is a chunk of rows of tiles, of all samples one after the other, and a part
    of the blocks of channels."""

    def __init__(self) -> None:
        self.p = p = Program(_NAMES)
        numbers = p["tiles"] * _PLACES * FLOAT_NBYTES
        self.turned = p.memory(numbers * p["channels"])
        self.products = p.memory(numbers * BLOCK)
        self.made = p.memory(p["made"])
        p.loop(p["begin"], p["end"], self._piece)

    def _piece(self, piece: Value, _: Values) -> None:
        p = self.p
        chunk, part = piece // p["parts"], piece % p["parts"]
        first, last = (p["rows"] * (chunk + i) // p["chunks"] for i in (0, 1))
        begin, end = (p["blocks"] * (part + i) // p["parts"] for i in (0, 1))

        def of_segment(segment: Value) -> None:
            ends = [p["across"] * (segment + i) // p["segments"] for i in (0, 1)]
            tiles = (last - first) * (ends[1] - ends[0])
            p.loop(first, last, partial(self._turn_row, first, ends, tiles))

            def of_block(block: Value, _: Values) -> None:
                self._multiply(block, tiles)
                p.loop(first, last, partial(self._put_row, first, ends, tiles, block))

            p.loop(begin, end, of_block)

        p.each(p["segments"], of_segment)

    def _turn_row(self, first: Value, ends: Values, tiles: Value, row: Value, _: Values) -> None:
        """Turn the pixels of a row of tiles, from the first to the second of `ends`."""
        p, channels = self.p, self.p["channels"]
        n, i = row // p["down"], row % p["down"]
        top = at(p["pixels"], n * p["image"] + i * 2 * p["line"] + ends[0] * 2 * channels)
        number = (row - first) * (ends[1] - ends[0])

        def of_tile(j: Value) -> None:
            source = at(top, j * 2 * channels)
            target = at(self.turned, (number + j) * channels)

            def of_channels(c: Value, _: Values) -> None:
                lines = [
                    [
                        p.load(at(source, p["line"] * y + channels * x + c), LANES)
                        for x in range(_SIDE)
                    ]
                    for y in range(_SIDE)
                ]
                columns = [_turned([line[x] for line in lines]) for x in range(_SIDE)]
                for y in range(_SIDE):
                    for x, value in enumerate(_turned([column[y] for column in columns])):
                        place = tiles * channels * (y * _SIDE + x)
                        p.store(value, at(target, place + c))

            p.loop(0, channels, of_channels, step=LANES)

        p.each(ends[1] - ends[0], of_tile)

    def _multiply(self, block: Value, tiles: Value) -> None:
        p, channels = self.p, self.p["channels"]
        one, none = p.number(1), p.number(0)
        groups = (tiles + (MOST_ROWS - 1)) // MOST_ROWS

        def of_place(place: Value) -> None:
            weights = at(p["weights"], (block * _PLACES + place) * channels * BLOCK)

            def of_group(group: Value) -> None:
                left = tiles * group // groups
                here = tiles * (group + 1) // groups - left
                line = place * tiles + left
                pointers = [at(self.products, line * BLOCK), at(self.turned, line * channels)]
                steps = [channels, none, none, one, none, none, p.number(BLOCK)]
                counts = [one, one, channels]
                p.call(
                    p["product"],
                    [*pointers, weights],
                    [here, *steps, p.number(BLOCK), *counts, none],
                )

            p.each(groups, of_group)

        p.each(p.number(_PLACES), of_place)

    def _put_row(
        self, first: Value, ends: Values, tiles: Value, block: Value, row: Value, _: Values
    ) -> None:
        """Turn the products of a row of tiles back, and bring the results, whose channels are
        innermost, to where they belong."""
        p, width = self.p, self.p["width"]
        n, i = row // p["down"], row % p["down"]
        across = ends[1] - ends[0]
        number = (row - first) * across
        is_single = p["segments"].compare("eq", 1)
        own = p.least(width - ends[0] * 2, across * 2)
        pitch = is_single.choose(width, across * 2)

        def of_tile(k: Value) -> None:
            j = across - 1 - k  # backwards: what reaches over the edge is written again
            source = at(self.products, (number + j) * BLOCK)
            target = at(self.made, j * (2 * BLOCK))
            for v in range(VECTORS):
                given = [
                    p.load(at(source, tiles * (place * BLOCK) + v * LANES), LANES)
                    for place in range(_PLACES)
                ]
                columns = [_turned_back(given[x::_SIDE]) for x in range(_SIDE)]
                for y in (0, 1):
                    for x, value in enumerate(_turned_back([column[y] for column in columns])):
                        p.store(value, at(target, (pitch * y + x) * BLOCK + v * LANES))

        p.each(across, of_tile)
        count = p.least(p["outs"] - block * BLOCK, p.number(BLOCK))
        plane = p["height"] * width
        place = (n * p["outs"] + block * BLOCK) * plane + i * 2 * width
        lines, pitches = p.least(p["height"] - i * 2, p.number(2)), (plane, p.number(BLOCK))

        def whole() -> None:
            shape = lines * width, count
            p.transpose(at(p["out"], place), self.made, shape, pitches, rows_first=True)

        def of_line(y: Value) -> None:
            target = at(p["out"], place + y * width + ends[0] * 2)
            source = at(self.made, y * pitch * BLOCK)
            p.transpose(target, source, (own, count), pitches, rows_first=True)

        p.either(is_single, whole, lambda: p.each(lines, of_line))


def _write() -> Program:
    return _Writer().p


def convolve(out: Array, pixels: Array, weights: Array) -> None:
    """out (N, O, H, W) <- the windows of pixels (`pixels_shape`), the first of which begins at its
    first pixel, times turned weights (`weights_shape`)."""
    samples, outs, height, width = out.shape
    blocks, _, channels, _ = weights.shape
    down, across = num_tiles(height), num_tiles(width)
    rows = samples * down
    at_once = max(1, min(_MOST_TILES, _TURNED // channels) // across)
    chunks = -(-rows // at_once)
    parts = min(blocks, -(-_LEAST_PIECES // chunks))
    segments = min(across, -(-across * channels // _MOST_TURNED))
    longest = -(-across // segments)
    # A last tile that reaches over the edge writes one position more.
    made = (2 * longest + 1) * 2 * BLOCK * FLOAT_NBYTES
    line = pixels.shape[2] * channels
    numbers = [
        parts, chunks, segments, rows, blocks, outs, height, width, down, across, channels, line,
        pixels.shape[1] * line, -(-rows // chunks) * longest, made, product(),
        *map(data_address, (out, pixels, weights)),
    ]  # fmt: skip
    work = _PLACES * rows * across * channels * blocks * BLOCK // _PRODUCTS
    pieces = cut(chunks * parts, work, _MOST_TASKS)
    run(function_of(_write), [[begin, end, *numbers] for begin, end in pieces])
