"""Convolutions of float32 images that gather no windows.

An image is copied once with its channels innermost ("pixels": samples, padded height and width,
channels). A row of a window is then one run of numbers, for any stride, and the innermost product
(product.py) reads it where it lies. Results come in blocks of BLOCK channels, with the channels
innermost; they are transposed while they are in the cache. Weights ("packed") are (groups, blocks
of channels, kernel, channels of a group, BLOCK).

For 4 samples of 64 x 56 x 56 into 64 channels by 3 x 3, one thread with AVX-512: 4.2 ms of products
and 0.6 of copies, where gathered windows and BLAS took 8.9. As functions for numba these loops took
eight seconds to compile; as programs they take 0.3.
"""

from __future__ import annotations

from collections.abc import Callable

from oneflow.kernels import threads
from oneflow.kernels.array import Array, data_address
from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.native.product import BLOCK, MOST_ROWS, product
from oneflow.kernels.native.program import (
    FLOAT_NBYTES,
    SIDE,
    Program,
    Values,
    at,
    cut,
    function_of,
    run,
)
from oneflow.ops.conv import Sizes

_POSITIONS = 512
"""Positions whose results are computed before they are transposed: they stay in the cache."""

_ELEMENTS = 1536
"""Elements of a window in one product: their weights, 192 KB, stay in the second cache while all
positions of a chunk go by."""

_TURNED = 128
"""Elements of a channel's weights that are transposed at once: runs of several lines of the cache,
which the processor fetches ahead."""

_MOST_TASKS = 64
_PRODUCTS = 32
"""Multiplications that take as long as one element of the loops by which threads are counted."""


def _shared(
    write: Callable[..., Program], args: tuple[object, ...], count: int, elements: int,
    numbers: list[int], unit: int = 1,
) -> None:  # fmt: skip
    """Run a program over `count` pieces of work, shared among threads by multiples of `unit`. Its
    first two numbers are where its share begins and ends."""
    tasks = [[begin, end, *numbers] for begin, end in cut(count, elements, _MOST_TASKS, unit)]
    run(function_of(write, *args), tasks)


# ---- images --------------------------------------------------------------------------------------


def _write_to_pixels() -> Program:
    p = Program((
        "begin", "end", "padded", "across", "channels", "height", "width", "top", "left", "pixels",
        "x",
    ))  # fmt: skip
    plane = p["height"] * p["width"]

    def of_task(task: Value, _: Values) -> None:
        n, row = task // p["padded"], task % p["padded"]
        line = at(p["pixels"], task * p["across"] * p["channels"])
        h = row - p["top"]
        is_inside = row.compare("ge", p["top"]) & h.compare("lt", p["height"])

        def fill() -> None:
            source = at(p["x"], n * p["channels"] * plane + h * p["width"])
            p.zero(line, p["left"] * p["channels"])
            end = p["left"] + p["width"]
            p.zero(at(line, end * p["channels"]), (p["across"] - end) * p["channels"])
            target = at(line, p["left"] * p["channels"])
            shape = p["channels"], p["width"]
            p.transpose(target, source, shape, (p["channels"], plane))

        p.either(is_inside, fill, lambda: p.zero(line, p["across"] * p["channels"]))

    p.loop(p["begin"], p["end"], of_task)
    return p


def to_pixels(pixels: Array, x: Array, begin: Sizes) -> None:
    """pixels (N, padded height, padded width, C) <- x (N, C, H, W), whose first element comes to
    `begin`; zeros around it.
    """
    samples, channels, height, width = x.shape
    padded, across = pixels.shape[1], pixels.shape[2]
    numbers = [padded, across, channels, height, width, *begin]
    numbers += [data_address(pixels), data_address(x)]
    _shared(_write_to_pixels, (), samples * padded, pixels.size, numbers)


def _write_to_blocks() -> Program:
    p = Program((
        "begin", "end", "samples", "channels", "positions", "per_group", "own", "blocks", "x",
    ))  # fmt: skip

    def of_task(task: Value, _: Values) -> None:
        block, n = task // p["samples"], task % p["samples"]
        inside = block % p["per_group"] * BLOCK
        first = block // p["per_group"] * p["own"] + inside
        count = p.least(p["own"] - inside, p.number(BLOCK))
        target = at(p["blocks"], task * p["positions"] * BLOCK)
        p.when(count.compare("lt", BLOCK), lambda: p.zero(target, p["positions"] * BLOCK))
        source = at(p["x"], (n * p["channels"] + first) * p["positions"])
        pitches = p.number(BLOCK), p["positions"]
        p.transpose(target, source, (count, p["positions"]), pitches)

    p.loop(p["begin"], p["end"], of_task)
    return p


def to_blocks(blocks: Array, x: Array, groups: int) -> None:
    """blocks (groups * blocks, N, positions, BLOCK) <- x (N, C, positions), of whose channels each
    group has its own blocks; zeros where there are no channels.
    """
    samples, channels, positions = x.shape
    numbers = [samples, channels, positions, blocks.shape[0] // groups, channels // groups]
    numbers += [data_address(blocks), data_address(x)]
    _shared(_write_to_blocks, (), blocks.shape[0] * samples, blocks.size, numbers)


# ---- weights -------------------------------------------------------------------------------------

_PACK_NAMES = ("begin", "end", "outs", "channels", "kernel", "blocks", "packed", "w")


def _write_pack(is_back: bool) -> Program:
    p = Program(_PACK_NAMES)
    kernel, channels = p["kernel"], p["channels"]
    row = channels * kernel

    def of_task(task: Value, _: Values) -> None:
        group, first = task // p["blocks"], task % p["blocks"] * BLOCK
        count = p.least(p["outs"] - first, p.number(BLOCK))
        own = at(p["packed"], task * row * BLOCK)
        weights = at(p["w"], (group * p["outs"] + first) * row)
        if not is_back:
            p.when(count.compare("lt", BLOCK), lambda: p.zero(own, row * BLOCK))

        def places(element: Value, number: int) -> Values:
            """Addresses of the packed rows of neighbouring elements of a channel's weights."""
            c, place, found = element // kernel, element % kernel, []
            for _ in range(number):
                found.append(at(own, (place * channels + c) * BLOCK))
                place = place + 1
                is_next = place.compare("eq", kernel)
                place, c = is_next.choose(p.number(0), place), is_next.choose(c + 1, c)
            return found

        def in_tiles() -> None:
            def of_chunk(start: Value, _: Values) -> None:
                elements = p.least(row - start, p.number(_TURNED))
                begin = p.least(start, row - SIDE)
                elements = elements.compare("lt", SIDE).choose(p.number(SIDE), elements)

                def of_outs(o: Value) -> None:
                    def of_elements(k: Value) -> None:
                        element = begin + k
                        lines = [at(weights, (o + i) * row + element) for i in range(SIDE)]
                        rows = [at(place, o) for place in places(element, SIDE)]
                        p.tile(*((rows, lines) if is_back else (lines, rows)))

                    p.tiles(elements, of_elements)

                p.tiles(count, of_outs)

            p.loop(0, row, of_chunk, step=_TURNED)

        def one_by_one() -> None:
            def of_element(element: Value) -> None:
                (place,) = places(element, 1)

                def of_out(o: Value) -> None:
                    ends = at(weights, o * row + element), at(place, o)
                    source, target = ends[::-1] if is_back else ends
                    p.store(p.load(source), target)

                p.each(count, of_out)

            p.each(row, of_element)

        p.either(row.compare("ge", SIDE) & count.compare("ge", SIDE), in_tiles, one_by_one)

    p.loop(p["begin"], p["end"], of_task)
    return p


def _pack(is_back: bool, packed: Array, w: Array) -> None:
    groups, outs, channels, kernel = w.shape
    blocks = packed.shape[1]
    numbers = [outs, channels, kernel, blocks, data_address(packed), data_address(w)]
    _shared(_write_pack, (is_back,), groups * blocks, packed.size, numbers)


def pack(packed: Array, w: Array) -> None:
    """packed (groups, blocks, kernel, C / groups, BLOCK) <- w (groups, O / groups, C / groups,
    kernel); zeros where there are no channels.
    """
    _pack(False, packed, w)


def unpack(w: Array, packed: Array) -> None:
    """The way back of `pack`."""
    _pack(True, packed, w)


def _write_pack_turned(is_whole: bool) -> Program:
    p = Program((
        "begin", "end", "outs", "channels", "area", "kernel_w", "blocks", "taps_h", "taps_w",
        "first_h", "first_w", "step_h", "step_w", "packed", "w",
    ))  # fmt: skip
    outs, channels, area = p["outs"], p["channels"], p["area"]

    def of_task(task: Value, _: Values) -> None:
        group, start = task // p["blocks"], task % p["blocks"] * BLOCK
        count = p.least(channels - start, p.number(BLOCK))
        own = at(p["packed"], task * p["taps_h"] * p["taps_w"] * outs * BLOCK)
        size = p["taps_h"] * p["taps_w"] * outs * BLOCK
        p.when(count.compare("lt", BLOCK), lambda: p.zero(own, size))

        def weights(o: Value) -> Value:
            return at(p["w"], ((group * outs + o) * channels + start) * area)

        def in_tiles() -> None:
            """The kernel positions backwards: a transpose whose rows go up."""

            def of_out(o: Value) -> None:
                last = at(own, ((area - 1) * outs + o) * BLOCK)
                p.transpose(last, weights(o), (count, area), (0 - outs * BLOCK, area))

            p.each(outs, of_out)

        def one_by_one() -> None:
            def of_out(o: Value) -> None:
                def of_row(a: Value) -> None:
                    def of_tap(b: Value) -> None:
                        i, j = p["first_h"] - a * p["step_h"], p["first_w"] - b * p["step_w"]
                        source = at(weights(o), i * p["kernel_w"] + j)
                        target = at(own, ((a * p["taps_w"] + b) * outs + o) * BLOCK)

                        def of_channel(c: Value) -> None:
                            p.store(p.load(at(source, c * area)), at(target, c))

                        p.each(count, of_channel)

                    p.each(p["taps_w"], of_tap)

                p.each(p["taps_h"], of_row)

            p.each(outs, of_out)

        in_tiles() if is_whole else one_by_one()

    p.loop(p["begin"], p["end"], of_task)
    return p


def pack_turned(packed: Array, w: Array, first: Sizes, step: Sizes) -> None:
    """packed (groups, blocks, taps, taps, O / groups, BLOCK) <- w (groups, O / groups, C / groups,
    kernel, kernel): the factor in the gradient of the data. Tap 0 along a dim is the kernel
    position `first`, the next ones are `step` before it.
    """
    groups, outs, channels, kernel_h, kernel_w = w.shape
    blocks, taps_h, taps_w = packed.shape[1:4]
    numbers = [outs, channels, kernel_h * kernel_w, kernel_w, blocks, taps_h, taps_w]
    numbers += [*first, *step, data_address(packed), data_address(w)]
    is_whole = (taps_h, taps_w) == (kernel_h, kernel_w) and tuple(step) == (1, 1)
    _shared(_write_pack_turned, (is_whole,), groups * blocks, packed.size, numbers)


# ---- products ------------------------------------------------------------------------------------


def _multiply(
    p: Program, pointers: Values, rows: Value, a_steps: Values, b_steps: Values, counts: Values,
    adds: Value,
) -> None:  # fmt: skip
    """out[r, :BLOCK] <- sum over planes, segments and elements of a[r, ...] * b[..., :BLOCK].

    pointers: out, a, b. a_steps: between rows, planes, segments and elements of a. b_steps: between
    those but rows. adds: 1 to add to out.
    """
    integers = [rows, *a_steps, *b_steps, p.number(BLOCK), *counts, adds]
    p.call(p["product"], pointers, integers)


def _write_convolve(is_whole: bool) -> Program:
    p = Program((
        "begin", "end", "outs", "own_outs", "height", "width", "down", "across", "blocks", "of_all",
        "taps", "runs", "length", "planes", "parts", "rows_at_once", "tiles", "pixel", "line",
        "image", "channels", "origin_h", "origin_w", "stride_h", "stride_w", "dilation_h",
        "dilation_w", "begin_h", "begin_w", "step_h", "step_w", "made", "product", "out", "pixels",
        "packed",
    ))  # fmt: skip
    made = p.memory(p["made"])
    one, across = p.number(1), p["across"]

    def of_task(task: Value, _: Values) -> None:
        n, block = task // p["of_all"], task % p["of_all"]
        group, inside = block // p["blocks"], block % p["blocks"] * BLOCK
        first_out = group * p["own_outs"] + inside
        count = p.least(p["own_outs"] - inside, p.number(BLOCK))
        image = at(p["pixels"], n * p["image"] + group * p["channels"])
        target = at(p["out"], (n * p["outs"] + first_out) * p["height"] * p["width"])

        def of_rows(row: Value, _: Values) -> None:
            rows = p.least(p["down"] - row, p["rows_at_once"])

            def of_taps(tap: Value, _: Values) -> None:
                def of_part(part: Value) -> None:
                    start = p["length"] * part // p["parts"]
                    end = p["length"] * (part + 1) // p["parts"]
                    weight = (block * p["taps"] + tap) * p["runs"] * p["length"] + start
                    weights = at(p["packed"], weight * BLOCK)
                    adds = (tap + part).compare("gt", 0).choose(one, p.number(0))

                    def of_row(r: Value) -> None:
                        top = p["origin_h"] + (row + r) * p["stride_h"] + tap * p["dilation_h"]
                        base = top * p["line"] + p["origin_w"] * p["pixel"] + start

                        def of_tile(tile: Value) -> None:
                            left = across * tile // p["tiles"]
                            here = across * (tile + 1) // p["tiles"] - left
                            step = p["stride_w"] * p["pixel"]
                            pointers = [
                                at(made, (r * across + left) * BLOCK),
                                at(image, base + left * step),
                                weights,
                            ]
                            a_steps = [step, p["dilation_h"] * p["line"]]
                            a_steps += [p["dilation_w"] * p["pixel"], one]
                            run_step = p["length"] * BLOCK
                            b_steps = [p["runs"] * run_step, run_step, p.number(BLOCK)]
                            counts = [p["planes"], p["runs"], end - start]
                            _multiply(p, pointers, here, a_steps, b_steps, counts, adds)

                        p.each(p["tiles"], of_tile)

                    p.each(rows, of_row)

                p.each(p["parts"], of_part)

            def of_tap(k: Value) -> None:
                of_taps(k * p["planes"], [])

            p.each(p["taps"] // p["planes"], of_tap)
            plane = p["height"] * p["width"]
            if is_whole:
                shape, pitches = (rows * across, count), (plane, p.number(BLOCK))
                p.transpose(at(target, row * p["width"]), made, shape, pitches, rows_first=True)
                return

            def of_channel(c: Value) -> None:
                def of_row(r: Value) -> None:
                    h = p["begin_h"] + (row + r) * p["step_h"]
                    line = at(target, c * plane + h * p["width"] + p["begin_w"])

                    def of_position(k: Value) -> None:
                        value = p.load(at(made, (r * across + k) * BLOCK + c))
                        p.store(value, at(line, k * p["step_w"]))

                    p.each(across, of_position)

                p.each(rows, of_row)

            p.each(count, of_channel)

        # The rows that are made together, by their first one.
        def of_chunk(k: Value) -> None:
            of_rows(k * p["rows_at_once"], [])

        p.each((p["down"] + p["rows_at_once"] - 1) // p["rows_at_once"], of_chunk)

    p.loop(p["begin"], p["end"], of_task)
    return p


def convolve(
    out: Array, pixels: Array, packed: Array, origin: Sizes, stride: Sizes, dilation: Sizes,
    begin: Sizes, step: Sizes,
) -> None:  # fmt: skip
    """Products of all windows, or of some.

    out: (N, O, H, W), of which the elements (begin[0] + i * step[0], begin[1] + j * step[1]) are
    written.  pixels: (N, padded height, padded width, C).  packed: (groups, blocks, taps, taps,
    C / groups, BLOCK).  Window (i, j) begins at origin + (i, j) * stride.
    """
    samples, outs, height, width = out.shape
    groups, blocks, taps_h, taps_w, channels, _ = packed.shape
    down, across = -(-(height - begin[0]) // step[0]), -(-(width - begin[1]) // step[1])
    pixel = pixels.shape[3]
    line = pixels.shape[2] * pixel
    # One run of numbers is a row of the window, or if that has gaps, a pixel of it.
    is_joined = groups == 1 and dilation[1] == 1
    runs, length = (1, taps_w * channels) if is_joined else (taps_w, channels)
    planes, parts = taps_h, 1
    if taps_h * runs * length > _ELEMENTS:
        planes = 1
        parts = -(-length // _ELEMENTS) if runs == 1 else 1
    rows_at_once = max(1, _POSITIONS // across)
    made = min(rows_at_once, down) * across * BLOCK * FLOAT_NBYTES
    numbers = [
        outs, outs // groups, height, width, down, across, blocks, groups * blocks, taps_h, runs,
        length, planes, parts, rows_at_once, -(-across // MOST_ROWS), pixel, line,
        pixels.shape[1] * line, channels, *origin, *stride, *dilation, *begin, *step, made,
        product(), data_address(out), data_address(pixels), data_address(packed),
    ]  # fmt: skip
    is_whole = tuple(step) == (1, 1)
    work = samples * outs * down * across * taps_h * taps_w * channels // _PRODUCTS
    _shared(_write_convolve, (is_whole,), samples * groups * blocks, work, numbers)


def _write_filter_gradient() -> Program:
    p = Program((
        "begin", "end", "per_group", "kernel_h", "runs", "length", "channels", "pixel", "line",
        "image", "samples", "down", "across", "stride_h", "stride_w", "dilation_h", "dilation_w",
        "at_once", "rows_at_once", "tiles", "product", "packed", "pixels", "blocks",
    ))  # fmt: skip
    one, down, across = p.number(1), p["down"], p["across"]
    taps = p["kernel_h"] * p["runs"]

    def of_block(block: Value, _: Values) -> None:
        group = block // p["per_group"]
        own = at(p["packed"], block * taps * p["length"] * BLOCK)
        first_tap = p.most(p["begin"] - block * taps, 0)
        end_tap = p.least(p["end"] - block * taps, taps)

        def of_samples(k: Value) -> None:
            n = k * p["at_once"]
            together = p.least(p["samples"] - n, p["at_once"])

            def of_rows(chunk: Value) -> None:
                row = chunk * p["rows_at_once"]
                rows = p.least(down - row, p["rows_at_once"])
                adds = (n + row).compare("gt", 0).choose(one, p.number(0))
                start = ((block * p["samples"] + n) * down + row) * across
                given = at(p["blocks"], start * BLOCK)

                def of_tap(tap: Value, _: Values) -> None:
                    i, j = tap // p["runs"], tap % p["runs"]
                    top = row * p["stride_h"] + i * p["dilation_h"]
                    base = n * p["image"] + top * p["line"] + group * p["channels"]
                    source = at(p["pixels"], base + j * p["dilation_w"] * p["pixel"])

                    def of_tile(tile: Value) -> None:
                        first = p["length"] * tile // p["tiles"]
                        here = p["length"] * (tile + 1) // p["tiles"] - first
                        target = at(own, (tap * p["length"] + first) * BLOCK)
                        a_steps = [one, p["image"], p["stride_h"] * p["line"]]
                        a_steps.append(p["stride_w"] * p["pixel"])
                        b_steps = [down * across * BLOCK, across * BLOCK, p.number(BLOCK)]
                        pointers = [target, at(source, first), given]
                        _multiply(
                            p, pointers, here, a_steps, b_steps, [together, rows, across], adds
                        )

                    p.each(p["tiles"], of_tile)

                p.loop(first_tap, end_tap, of_tap)

            p.each((down + p["rows_at_once"] - 1) // p["rows_at_once"], of_rows)

        p.each((p["samples"] + p["at_once"] - 1) // p["at_once"], of_samples)

    p.loop(p["begin"] // taps, (p["end"] + taps - 1) // taps, of_block)
    return p


def filter_gradient(
    packed: Array, pixels: Array, blocks: Array, positions: Sizes, stride: Sizes, dilation: Sizes
) -> None:
    """packed (groups, blocks, KH, KW, C / groups, BLOCK) <- products of the pixels with blocks
    (groups * blocks, N, positions, BLOCK).
    """
    groups, per_group, kernel_h, kernel_w, channels, _ = packed.shape
    down, across = positions
    samples, padded, _, pixel = pixels.shape
    line = pixels.shape[2] * pixel
    is_joined = groups == 1 and dilation[1] == 1
    runs, length = (1, kernel_w * channels) if is_joined else (kernel_w, channels)
    # Numbers of both operands that stay in the cache while the window goes by.
    area = max(1, 65536 // (pixel * stride[0] * stride[1]))
    rows_at_once = min(down, max(1, min(_POSITIONS, area) // across))
    at_once = max(1, min(samples, _POSITIONS // (2 * down * across)))
    if rows_at_once < down:
        at_once = 1
    numbers = [
        per_group, kernel_h, runs, length, channels, pixel, line, padded * line, samples, down,
        across, *stride, *dilation, at_once, rows_at_once, -(-length // MOST_ROWS), product(),
        data_address(packed), data_address(pixels), data_address(blocks),
    ]  # fmt: skip
    work = packed.size * samples * down * across // _PRODUCTS
    blocks_in_all, taps = groups * per_group, kernel_h * runs
    # All taps of a block read its operands from the cache; few blocks are not enough for threads.
    unit = taps if blocks_in_all >= 2 * threads.num_threads() else 1
    _shared(_write_filter_gradient, (), blocks_in_all * taps, work, numbers, unit)
