"""The launcher's flags: one table, and one of torchrun's flags that change nothing here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oneflow.launcher.values import (
    Nodes,
    Streams,
    boolean,
    endpoint,
    host,
    nodes,
    one_of,
    pairs,
    positive_seconds,
    processes,
    rank_list,
    seconds,
    streams,
    whole,
)

ENV_PREFIX = "ONEFLOW_LAUNCH_"
TORCHRUN_PREFIX = "PET_"
DEFAULT_PORT = 29500
PREFIX_TEMPLATE = "${hostname}:${rank}: "


@dataclass(frozen=True)
class Flag:
    """One flag: its name with underscores, its reader, its default and its help.

    torchrun: torchrun's name for it, which is taken as well; "": it has none.
    """

    name: str
    read: Callable[[str], Any]
    default: Any
    help: str
    short: tuple[str, ...] = ()
    torchrun: str = ""

    @property
    def spellings(self) -> list[str]:
        names = [self.name, *([self.torchrun] if self.torchrun else ())]
        dashed = [name.replace("_", "-") for name in names]
        return [*self.short, *dict.fromkeys(f"--{name}" for name in [*names, *dashed])]

    @property
    def variables(self) -> list[str]:
        """Variables that give its value, the stronger one first."""
        own = [ENV_PREFIX + self.name.upper()]
        return own + ([TORCHRUN_PREFIX + self.torchrun.upper()] if self.torchrun else [])


def _shared(name: str, read: Callable[[str], Any], default: object, help: str, *short: str) -> Flag:
    """A flag that torchrun has under the same name."""
    return Flag(name, read, default, help, short, torchrun=name)


FLAGS = (
    _shared("nnodes", nodes, Nodes(1, 1), "number of nodes (machines); MIN:MAX: they come and go"),
    _shared("node_rank", whole(0, 65535), 0, "this node's number, 0 to nnodes-1"),
    _shared("nproc_per_node", processes, 1, "processes to start here: a number, auto, cpu or gpu"),
    _shared("master_addr", host, "127.0.0.1", "address of node 0, where rank 0 listens"),
    _shared("master_port", whole(0, 65535), DEFAULT_PORT, "port of rank 0; 0: any free one"),
    _shared(
        "rdzv_backend",
        one_of("static", "c10d"),
        "static",
        "static: --node_rank says which node this is; c10d: of two nodes, or of MIN:MAX, the one "
        "that has the endpoint's address is node 0",
    ),
    _shared("rdzv_endpoint", endpoint, None, "HOST or HOST:PORT: --master_addr and --master_port"),
    _shared("rdzv_id", str, "", "name of the job in reports"),
    _shared(
        "rdzv_conf",
        pairs,
        (),
        "timeout=S or join_timeout=S: --rdzv_timeout; last_call_timeout=S: wait for more nodes "
        "than MIN; other keys: nothing",
    ),
    _shared("role", str, "default", "ROLE_NAME of the ranks"),
    _shared("standalone", boolean, False, "one node, any free port: several runs side by side"),
    _shared("module", boolean, False, "the script is a module name, as in python -m", "-m"),
    _shared("no_python", boolean, False, "run the script itself, without python"),
    _shared("run_path", boolean, False, "run the script with runpy, which is done anyway"),
    Flag("no_fork", boolean, False, "have each rank import everything by itself"),
    Flag("redirect_stdout_and_stderr", boolean, False, "the same as --redirects 3"),
    _shared(
        "redirects",
        streams,
        Streams(),
        "write output of ranks to files in logdir: 1 stdout, 2 stderr, 3 both; 0:1,1:3 by local "
        "rank",
        "-r",
    ),
    _shared(
        "tee", streams, Streams(), "write output to files and show it; as for --redirects", "-t"
    ),
    Flag("logdir", str, "log", "folder of local_rank_N/stdout and stderr", torchrun="log_dir"),
    Flag(
        "log_line_prefix_template",
        str,
        None,
        "put before each line of a rank's output: ${hostname} ${rank} ${local_rank}; "
        f"empty: lines go out untouched (default with several processes: {PREFIX_TEMPLATE!r})",
    ),
    _shared("local_ranks_filter", rank_list, (), "show output of these local ranks only: 0,1"),
    _shared(
        "max_restarts", whole(0, 10**6), 0, "start all ranks again after a failure, so many times"
    ),
    _shared("monitor_interval", seconds, 0.1, "longest time between two looks at the ranks, s"),
    Flag(
        "grace_period",
        seconds,
        10.0,
        "time between SIGTERM and SIGKILL, s",
        torchrun="shutdown_timeout",
    ),
    Flag("rdzv_timeout", positive_seconds, 300.0, "time for all ranks to join, s"),
    Flag("print_config", boolean, False, "print every value and where it comes from, then stop"),
)
WITHOUT_EFFECT = (
    _shared(
        "start_method",
        one_of("spawn", "fork", "forkserver"),
        None,
        "ranks are forked from one process, or with --no_fork started by themselves",
    ),
    _shared("local_addr", str, None, "peers reach a node at its address on the network to rank 0"),
    _shared("event_log_handler", str, None, "events go to the metrics page and the logs"),
    _shared("logs_specs", str, None, "--redirects, --tee and --logdir say where output goes"),
    _shared("duplicate_stdout_filters", str, None, "--tee copies the output of ranks"),
    _shared("duplicate_stderr_filters", str, None, "--tee copies the output of ranks"),
    _shared("signals_to_handle", str, None, "SIGINT, SIGTERM, SIGHUP and SIGQUIT end a job"),
    _shared("numa_binding", str, None, "start the launcher under numactl"),
    _shared("virtual_local_rank", boolean, None, "rank N of a node uses its device N"),
)
"""torchrun's flags that are read and change nothing here, each with the reason."""
