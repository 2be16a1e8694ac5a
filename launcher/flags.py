"""The launcher's settings, from flags, then `ONEFLOW_LAUNCH_<FLAG>`, then torchrun's `PET_<FLAG>`,
then defaults.

Every flag exists with underscores and with dashes. Each value remembers where it came from.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NoReturn

from oneflow.core.errors import ConfigError
from oneflow.launcher.flag_table import (
    ENV_PREFIX,
    FLAGS,
    PREFIX_TEMPLATE,
    TORCHRUN_PREFIX,
    WITHOUT_EFFECT,
    Flag,
)
from oneflow.launcher.values import (
    STDERR,
    STDOUT,
    Endpoint,
    Nodes,
    Streams,
    boolean,
    positive_seconds,
    seconds,
)

LAST_CALL, LAST_CALL_S = "last_call_timeout", "30"  # torchrun's key, and its default


@dataclass(frozen=True)
class Settings:
    """All flags, resolved. Times in seconds; `origin` says where each value came from, `notes` is
    for the user: flags that change nothing.
    """

    nnodes: Nodes
    node_rank: int
    nproc_per_node: int
    master_addr: str
    master_port: int
    rdzv_backend: str
    rdzv_endpoint: Endpoint | None
    rdzv_id: str
    rdzv_conf: tuple[tuple[str, str], ...]
    role: str
    standalone: bool
    module: bool
    no_python: bool
    run_path: bool
    no_fork: bool
    redirect_stdout_and_stderr: bool
    redirects: Streams
    tee: Streams
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
    notes: tuple[str, ...]
    last_call_s: float

    @property
    def num_nodes(self) -> int:
        return self.nnodes.most

    @property
    def is_elastic(self) -> bool:
        return self.nnodes.least < self.nnodes.most

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.nproc_per_node

    def describe(self) -> str:
        """One line per flag: name, value, origin."""
        rows = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name in self.origin]
        width = max(len(name) for name, _ in rows)
        return "\n".join(
            f"{name:<{width}}  {value!r}  ({self.origin[name]})" for name, value in rows
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
        epilog=f"Every flag can also be given as {ENV_PREFIX}<FLAG>, and those of torchrun as its "
        f"{TORCHRUN_PREFIX}<FLAG>.",
        allow_abbrev=False,
    )
    for flag in (*FLAGS, *WITHOUT_EFFECT):
        text = flag.help if flag in FLAGS else argparse.SUPPRESS
        how: dict[str, Any] = {"type": _for_argparse(flag.read)}
        if flag.read is boolean:
            how = {"action": "store_true", "default": None}
        parser.add_argument(*flag.spellings, dest=flag.name, help=text, **how)
    parser.add_argument("script", nargs="?", help="script, module (-m) or program (--no_python)")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Settings of a command line.

    Exits with 2 for a usage error; raises ConfigError for a bad variable.
    """
    parser = build_parser()
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_unknown(unknown[0], parser))
    given = vars(found)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for flag in FLAGS:
        values[flag.name], origin[flag.name] = _resolve(flag, given[flag.name], env)
    if given["script"] is None and not values["print_config"]:
        parser.error("which script? give its path after the flags")
    last_call_s = _last_call(values, parser)
    notes = [*_unused(given, env), *_meet(values, origin, parser)]
    _settle(values, parser)
    script, script_args = given["script"] or "", tuple(given["script_args"])
    return Settings(
        **values,
        script=script,
        script_args=script_args,
        origin=origin,
        notes=tuple(notes),
        last_call_s=last_call_s,
    )


def _resolve(flag: Flag, given: Any, env: Mapping[str, str]) -> tuple[Any, str]:
    if given is not None:
        return given, "flag"
    for variable in flag.variables:
        text = env.get(variable)
        if text is None or (text == "" and variable.startswith(TORCHRUN_PREFIX)):
            continue
        try:
            return flag.read(text), variable
        except ValueError as error:
            raise ConfigError(f"{variable}={text!r}: {error}") from None
    return flag.default, "default"


def _unknown(word: str, parser: Parser) -> str:
    """Say that a flag does not exist, and which one was probably meant."""
    flag = word.partition("=")[0]
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    close = get_close_matches(flag, known, n=1)
    return f"there is no flag {flag}" + (f"; did you mean {close[0]}?" if close else "")


def _unused(given: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    """Say of each flag that changes nothing here why it does not."""
    for flag in WITHOUT_EFFECT:
        value, origin = _resolve(flag, given[flag.name], env)
        if value:
            name = flag.spellings[-1] if origin == "flag" else origin
            yield f"{name} has no effect: {flag.help}"


def _strength(origin: str) -> int:
    """Rank the places that values come from, the weakest first."""
    kinds = ("default", TORCHRUN_PREFIX, ENV_PREFIX, "flag")
    return next(i for i, kind in enumerate(kinds) if origin.startswith(kind))


def _meet(values: dict[str, Any], origin: dict[str, str], parser: Parser) -> Iterator[str]:
    """Turn torchrun's rendezvous into an address, a port and a time, or exit with a usage error."""

    def put(name: str, value: object, source: str) -> None:
        if _strength(origin[source]) >= _strength(origin[name]):
            values[name] = value
            origin[name] = f"flag --{source}" if origin[source] == "flag" else origin[source]

    is_c10d, found = values["rdzv_backend"] == "c10d", values["rdzv_endpoint"]
    most = values["nnodes"].most
    if found is not None:
        put("master_addr", found.host, "rdzv_endpoint")
        if found.port is not None:
            put("master_port", found.port, "rdzv_endpoint")
    elif is_c10d and origin["master_addr"] == "default" and most > 1:
        parser.error("--rdzv-backend c10d with several nodes needs --rdzv-endpoint HOST:PORT")
    elif is_c10d and origin["master_port"] == "default" and most == 1:
        put("master_port", 0, "rdzv_backend")
    limits = dict(values["rdzv_conf"])
    for key in ("timeout", "join_timeout"):  # c10d's own word for it is the second one
        if key in limits:
            try:
                limit_s = positive_seconds(limits.pop(key))
            except ValueError as error:
                parser.error(f"--rdzv-conf {key}: {error}")
            if origin["rdzv_timeout"] != "flag":
                put("rdzv_timeout", limit_s, "rdzv_conf")
    limits.pop(LAST_CALL, None)
    for key in limits:
        yield (
            f"--rdzv-conf {key} has no effect: timeout, join_timeout and {LAST_CALL} are the keys "
            "known here"
        )


def _last_call(values: dict[str, Any], parser: Parser) -> float:
    """Return the seconds that an elastic job waits for more nodes than MIN."""
    try:
        return seconds(dict(values["rdzv_conf"]).get(LAST_CALL, LAST_CALL_S))
    except ValueError as error:
        parser.error(f"--rdzv-conf {LAST_CALL}: {error}")


def _settle(values: dict[str, Any], parser: argparse.ArgumentParser) -> None:
    """Fill in values that depend on several flags, and refuse flags that contradict each other."""
    nnodes = values["nnodes"]
    several_nodes = nnodes.most > 1
    if nnodes.least < nnodes.most and values["rdzv_backend"] != "c10d":
        parser.error(f"--nnodes {nnodes!r} needs --rdzv-backend c10d: node numbers change")
    if values["node_rank"] >= nnodes.most:
        parser.error(f"--node_rank {values['node_rank']} must be less than --nnodes {nnodes!r}")
    if several_nodes and (values["standalone"] or values["master_port"] == 0):
        parser.error(
            "--standalone and --master_port 0 are for one node: the others must know the port"
        )
    if values["run_path"]:
        values["no_python"] = False
    if values["no_python"] and values["module"]:
        parser.error("--no_python and -m exclude each other")
    named = {
        "local_ranks_filter": values["local_ranks_filter"],
        "redirects": [rank for rank, _ in values["redirects"].by_rank],
        "tee": [rank for rank, _ in values["tee"].by_rank],
    }
    for name, ranks in named.items():
        for rank in ranks:
            if rank >= values["nproc_per_node"]:
                parser.error(
                    f"--{name} {rank}: there is no such local rank among the "
                    f"{values['nproc_per_node']} of --nproc_per_node, which count from 0"
                )
    if values["redirect_stdout_and_stderr"]:
        values["redirects"] = Streams(STDOUT | STDERR)
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
