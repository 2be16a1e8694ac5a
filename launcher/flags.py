"""The launcher's settings, from flags, then `ONEFLOW_LAUNCH_<FLAG>`, then defaults.

Every flag exists with underscores and with dashes. Each value remembers where it came from.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from oneflow.core.errors import ConfigError

ENV_PREFIX = "ONEFLOW_LAUNCH_"
DEFAULT_PORT = 29500
PREFIX_TEMPLATE = "${hostname}:${rank}: "
TRUE_WORDS = ("1", "true", "on", "yes")


@dataclass(frozen=True)
class Settings:
    """All flags, resolved. Times in seconds; `origin` says where each value came from."""

    nnodes: int
    node_rank: int
    nproc_per_node: int
    master_addr: str
    master_port: int
    standalone: bool
    module: bool
    no_python: bool
    no_fork: bool
    redirect_stdout_and_stderr: bool
    logdir: str
    log_line_prefix_template: str
    local_ranks_filter: tuple[int, ...]
    max_restarts: int
    monitor_interval: float
    grace_period: float
    rdzv_timeout: float
    print_config: bool
    script: str
    script_args: tuple[str, ...]
    origin: Mapping[str, str]

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def describe(self) -> str:
        """One line per flag: name, value, origin."""
        rows = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name in self.origin]
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            f"{name:<{width}}  {value!r}  ({self.origin[name]})" for name, value in rows
        )


@dataclass(frozen=True)
class Flag:
    """One flag: its name with underscores, how to read it, its default, what it is for."""

    name: str
    read: Callable[[str], Any]
    default: Any
    help: str
    short: tuple[str, ...] = ()

    @property
    def spellings(self) -> list[str]:
        names = [self.name, *(("log_dir",) if self.name == "logdir" else ())]
        dashed = [name.replace("_", "-") for name in names]
        return [*self.short, *dict.fromkeys(f"--{name}" for name in [*names, *dashed])]

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()


def whole(low: int, high: int = 2**31) -> Callable[[str], int]:
    """Reads a whole number in low..high."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low}..{high}")
        return value

    return read


def seconds(text: str) -> float:
    """Reads a finite number of seconds >= 0."""
    value = float(text)
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{text} is not a number of seconds")
    return value


def positive_seconds(text: str) -> float:
    """Reads a finite number of seconds > 0."""
    value = seconds(text)
    if value == 0:
        raise ValueError("must be more than 0 seconds")
    return value


def boolean(text: str) -> bool:
    """Reads a truth value (only from a variable; on the command line the flag has no value)."""
    return text.strip().lower() in TRUE_WORDS


def processes(text: str) -> int:
    """Reads `auto`, `cpu`, `gpu` or a number: how many processes this node starts."""
    num_gpus, num_cpus = count_gpus(os.environ), len(os.sched_getaffinity(0))
    match text:
        case "gpu" if num_gpus == 0:
            raise ValueError("gpu: no NVIDIA device is visible on this machine")
        case "gpu":
            return num_gpus
        case "cpu":
            return num_cpus
        case "auto":
            return num_gpus or num_cpus
    try:
        int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number, auto, cpu or gpu") from None
    return whole(1, 65536)(text)


def host(text: str) -> str:
    """Reads a name or an address; an IPv6 address may have brackets."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def rank_list(text: str) -> tuple[int, ...]:
    """Reads `0,2,5`."""
    return tuple(whole(0)(part) for part in text.split(",") if part.strip())


FLAGS = (
    Flag("nnodes", whole(1, 65536), 1, "number of nodes (machines)"),
    Flag("node_rank", whole(0, 65535), 0, "this node's number, 0 to nnodes-1"),
    Flag("nproc_per_node", processes, 1, "processes to start here: a number, auto, cpu or gpu"),
    Flag("master_addr", host, "127.0.0.1", "address of node 0, where rank 0 listens"),
    Flag("master_port", whole(0, 65535), DEFAULT_PORT, "port of rank 0; 0: any free one"),
    Flag("standalone", boolean, False, "one node, any free port: several runs side by side"),
    Flag("module", boolean, False, "the script is a module name, as in python -m", ("-m",)),
    Flag("no_python", boolean, False, "run the script itself, without python"),
    Flag("no_fork", boolean, False, "have each rank import everything by itself"),
    Flag(
        "redirect_stdout_and_stderr", boolean, False, "write each rank's output to files in logdir"
    ),
    Flag("logdir", str, "log", "folder of local_rank_N/stdout and stderr"),
    Flag(
        "log_line_prefix_template",
        str,
        None,
        "put before each line of a rank's output: ${hostname} ${rank} ${local_rank}; "
        f"empty: lines go out untouched (default with several processes: {PREFIX_TEMPLATE!r})",
    ),
    Flag("local_ranks_filter", rank_list, (), "show the output of these local ranks only: 0,1"),
    Flag(
        "max_restarts", whole(0, 10**6), 0, "start all ranks again after a failure, so many times"
    ),
    Flag("monitor_interval", seconds, 0.1, "longest time between two looks at the ranks, s"),
    Flag("grace_period", seconds, 10.0, "time between SIGTERM and SIGKILL, s"),
    Flag("rdzv_timeout", positive_seconds, 300.0, "time for all ranks to join, s"),
    Flag("print_config", boolean, False, "print every value and where it comes from, then stop"),
)


class Parser(argparse.ArgumentParser):
    """A parser whose usage errors are one line: the list of all flags would bury it."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")


def build_parser() -> Parser:
    """The command line; values stay None where the flag was not given."""
    parser = Parser(
        prog="python -m oneflow.distributed.launch",
        description="Starts the ranks of a job on this node and ends them together.",
        epilog=f"Every flag can also be given as {ENV_PREFIX}<FLAG>.",
        allow_abbrev=False,
    )
    for flag in FLAGS:
        if flag.read is boolean:
            parser.add_argument(
                *flag.spellings, dest=flag.name, action="store_true", default=None, help=flag.help
            )
        else:
            parser.add_argument(
                *flag.spellings, dest=flag.name, type=_for_argparse(flag.read), help=flag.help
            )
    parser.add_argument("script", nargs="?", help="script, module (-m) or program (--no_python)")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Settings of a command line.

    Exits with 2 for a usage error; raises ConfigError for a bad variable.
    """
    parser = build_parser()
    given = vars(parser.parse_args(argv))
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for flag in FLAGS:
        values[flag.name], origin[flag.name] = _resolve(flag, given[flag.name], env)
    if given["script"] is None and not values["print_config"]:
        parser.error("which script? give its path after the flags")
    _settle(values, parser)
    script, script_args = given["script"] or "", tuple(given["script_args"])
    return Settings(**values, script=script, script_args=script_args, origin=origin)


def count_gpus(env: Mapping[str, str]) -> int:
    """NVIDIA devices a process of this environment may use, without loading CUDA."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])


def _resolve(flag: Flag, given: Any, env: Mapping[str, str]) -> tuple[Any, str]:
    if given is not None:
        return given, "flag"
    text = env.get(flag.variable)
    if text is None:
        return flag.default, "default"
    try:
        return flag.read(text), flag.variable
    except ValueError as error:
        raise ConfigError(f"{flag.variable}={text!r}: {error}") from None


def _settle(values: dict[str, Any], parser: argparse.ArgumentParser) -> None:
    """Fills in what depends on several flags, and refuses what contradicts itself."""
    several_nodes = values["nnodes"] > 1
    if values["node_rank"] >= values["nnodes"]:
        parser.error(
            f"--node_rank {values['node_rank']} must be less than --nnodes {values['nnodes']}"
        )
    if several_nodes and (values["standalone"] or values["master_port"] == 0):
        parser.error(
            "--standalone and --master_port 0 are for one node: the others must know the port"
        )
    if values["no_python"] and values["module"]:
        parser.error("--no_python and -m exclude each other")
    odd = [r for r in values["local_ranks_filter"] if r >= values["nproc_per_node"]]
    if odd:
        parser.error(
            f"--local_ranks_filter {odd[0]}: there is no such local rank among the "
            f"{values['nproc_per_node']} of --nproc_per_node, which count from 0"
        )
    if values["standalone"]:
        values["master_addr"], values["master_port"] = "127.0.0.1", 0
    if values["log_line_prefix_template"] is None:
        many = values["nproc_per_node"] > 1
        values["log_line_prefix_template"] = PREFIX_TEMPLATE if many else ""


def _for_argparse(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
