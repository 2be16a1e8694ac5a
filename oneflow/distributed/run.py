"""`python -m oneflow.distributed.run [flags] script args`: the launcher under torchrun's flags.

Under the mock, `python -m torch.distributed.run` is this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oneflow.launcher.launch import main as launch

DROPPED = frozenset(
    (
        *("rdzv_backend", "rdzv_id", "rdzv_conf", "role", "tee", "redirects", "start_method"),
        *("local_addr", "event_log_handler", "logs_specs", "duplicate_stdout_filters"),
        *("duplicate_stderr_filters", "shutdown_timeout"),
    )
)
"""Flags of torchrun with a value that say nothing to this launcher."""

SHORT = {"t": "tee", "r": "redirects"}
SWITCHES = ("standalone", "module", "m", "no_python", "no_fork", "print_config", "h", "help")
SWITCHES_DROPPED = ("run_path", "use_agent_store", "virtual_local_rank", "numa_binding")


def translated(argv: Sequence[str]) -> list[str]:
    """The launcher's arguments for those of torchrun.

    `--rdzv_endpoint HOST:PORT` is the address of rank 0. A number of nodes that may change
    (`--nnodes 1:4`) is not known here: its largest is taken.
    """
    made: list[str] = []
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        flag, has_value, value = rest.pop(0).partition("=")
        name = flag.lstrip("-").replace("-", "_")
        name = SHORT.get(name, name)
        if name in SWITCHES:
            made.append(flag)
            continue
        if name in SWITCHES_DROPPED:
            continue
        if not has_value:
            value = rest.pop(0) if rest else ""
        if name in DROPPED:
            continue
        if name == "rdzv_endpoint":
            host, _, port = value.rpartition(":")
            made += [f"--master_addr={host or value}"]
            made += [f"--master_port={port}"] if host and port.isdigit() else []
        elif name == "nnodes":
            made.append(f"--nnodes={value.rpartition(':')[2]}")
        else:
            made.append(f"--{name}={value}")
    return made + rest


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a job; returns the exit code."""
    return launch(translated(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
