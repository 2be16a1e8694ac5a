"""`python -m tests.parity`: runs PyTorch's tables against oneflow and prints the differences."""

from __future__ import annotations

import argparse
import json
import pathlib

from . import report
from .operators import SURFACES
from .running import TABLES, Job, run_all


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    parser.add_argument("--names", nargs="+", help="operators: name, or name.variant")
    parser.add_argument("--module", nargs="+", help="layers: Linear, BatchNorm2d, ...")
    parser.add_argument("--optimizer", nargs="+", help="optimizers: SGD, AdamW, ...")
    parser.add_argument("--surface", nargs="+", choices=SURFACES, default=SURFACES)
    parser.add_argument("--samples", type=int, help="at most so many per dtype and surface")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="a file for every finding")
    parser.add_argument("--absent", action="store_true", help="also list what is not there")
    return parser.parse_args()


def _jobs(chosen: argparse.Namespace) -> list[Job]:
    """The entries that were asked for: all, unless some were named."""
    wanted = dict(zip(TABLES, (chosen.names, chosen.module, chosen.optimizer), strict=True))
    everything = not any(wanted.values())
    jobs = []
    for table, module in TABLES.items():
        named = module.entries(None if everything else wanted[table] or [])
        jobs += [
            Job(table, i, chosen.samples, tuple(chosen.surface))
            for i, entry in enumerate(module.entries())
            if any(entry is n for n in named)
        ]
    return jobs


def main() -> None:
    chosen = arguments()
    found = run_all(_jobs(chosen), chosen.processes)
    print(report.failures(found))
    if chosen.absent:
        absent = {(f.table, f.entry) for f in found} - {(f.table, f.entry) for f in found if f.ran}
        print("not there: " + " ".join(sorted(e for _, e in absent)))
    print(report.summary(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_json(found), indent=1))


if __name__ == "__main__":
    main()
