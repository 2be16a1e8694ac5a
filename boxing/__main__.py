"""`python -m oneflow.boxing "S0,B@2x2 -> B,S1@2x2"`: how a change of layout would be done."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from oneflow.boxing.notation import Change, parse_change, parse_hosts, parse_shape, problem
from oneflow.boxing.view import explain
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import OneFlowError
from oneflow.core.tensor_type import TensorType

BAD_INPUT = 2
CLOSED_PIPE = 141

_NOTATION = """\
a change is two layouts with an arrow between; a layout is sbp@where:

  S0@4 -> B                   ranks 0..3 in a line; without @where: it stays where it is
  S0,B@2x2 -> B,S1@2x2        the same ranks as a grid; one sbp for each axis
  P@[0,1] -> S0@[2,3,4]       these very ranks
  B,P@[[0,1],[4,5]] -> B@4    nested as they stand
  S0@cuda:4 -> B@cuda[0,1]    on GPUs

sbp: B (a copy on each), P (partial sums), S0 or S(0) (split along dim 0). Put quotes around a
change: the shell takes > and ( for its own.

bytes are exact: what ranks receive from other ranks. seconds are predicted from a latency and a
bandwidth (docs/BOXING.md); between several hosts, from those of a network.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints how a change would be done. Returns 0, 2 after one line about a bad input, or 141."""
    options = _parser().parse_args(argv)
    try:
        change = parse_change(options.change)
        type_ = TensorType(parse_shape(options.shape), dtype_of(options.dtype))
        view = explain(type_, change, _hosts(options.hosts, change))
    except OneFlowError as error:
        print(f"python -m oneflow.boxing: {problem(error)}", file=sys.stderr)
        return BAD_INPUT
    try:
        print(json.dumps(view.to_json(), indent=1) if options.json else view, flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return 0


def _hosts(text: str, change: Change) -> tuple[int, ...]:
    if not text:
        return ()
    last = max(change.src_placement.rank_ids[-1], change.dst_placement.rank_ids[-1])
    return parse_hosts(text, last + 1)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; --help shows the notation\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m oneflow.boxing",
        description="Shows how a change of layout of a global tensor would be done, and why so.",
        epilog=_NOTATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("change", help='what to do, e.g. "S0,B@2x2 -> B,S1@2x2"')
    parser.add_argument(
        "--shape", default="1024,1024", help="sizes of the whole tensor (default: 1024,1024)"
    )
    parser.add_argument("--dtype", default="float32", help="of its elements (default: float32)")
    parser.add_argument(
        "--hosts",
        default="",
        metavar="RANKS",
        help="ranks on each host: 2, or 2x4 (two hosts of four), or 3,1 (default: all on one)",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
