"""The one place where the environment is read. Everybody else is handed a `Config`.

Values are checked here, once, so that a typing mistake in a variable is an error that names the
variable and not a surprise an hour into the run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oneflow.core.errors import ConfigError

GRPC_VERBOSITY = "GRPC_VERBOSITY"  # read by gRPC when it is used for the first time
GRPC_SILENT = "NONE"
WORLD_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
PROXY_VARIABLES = (
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
)
MAX_SPIN_S = 0.01
TRUE_WORDS = frozenset(("1", "true", "on", "yes", "y"))
LOG_LEVELS = ("WARNING", "DEBUG", "INFO", "ERROR", "CRITICAL")  # the first is the default
FALSE_WORDS = frozenset(("0", "false", "off", "no", "n", ""))


class ConfigWarning(UserWarning):
    """Something in the environment is odd, but the run can go on."""


@dataclass(frozen=True)
class Config:
    """The facts that one process knows about its job from its environment. All times are in
    seconds.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    launched: bool = False  # the four world variables are set: other ranks exist or may exist
    job_token: str | None = None  # shared secret of the ranks of one job
    job_tls: bool = False  # ranks speak TLS with each other, by certificates made from the token
    job_id: str = "local"
    attempt: int = 1
    spin_s: float = 50e-6  # how long a wait for a rank of this host looks before it sleeps
    timeout_s: float = 300.0  # a collective, a barrier or a compile that waits longer is a hang
    rendezvous_timeout_s: float = 300.0
    heartbeat_s: float = 1.0
    suspect_s: float = 3.0  # silent for so long: shown as suspect
    act_s: float = 10.0  # silent for so long: lost, the job ends
    debug: bool = False
    loads_any_class: bool = False  # load follows every name of a class in a file
    color: bool = True  # messages of errors may be highlighted on a terminal
    trust_local_sizes: bool = False  # local to global compares nothing, whatever the call says
    view_may_copy: bool = False  # Tensor.view copies where the strides allow no view
    debug_pass: str = ""  # name of a compiler pass to dump after, or ALL
    dump_dir: str | None = None  # folder for the graph's text after each compiler pass
    progress_bar: bool = False
    tells_memory: bool = False  # each graph prints its memory analysis once it is compiled
    metrics_addr: str | None = None
    keep_freed_memory: bool = True  # unless the user tuned malloc by its own variables
    runtime_dir: Path = Path("/tmp")
    waits_for_kernels: bool = False  # after each call, to find the kernel that failed
    checks_numerics: bool = False  # a NaN or infinity ends the kernel's step
    dumps_numerics: bool = False  # and the arrays of that call go to a file
    log_dir: str = "log"  # folder of what is written for who looks for a defect
    quantizes_embeddings: bool = False  # rows of embeddings travel in 8 bits unless a table says
    dry_run: bool = False  # the first graph is compiled, and the process ends
    tf32: bool | None = None  # products of float32 on GPUs; None: as CuPy is told to
    message_nbytes: int = 4 << 20  # the largest gRPC message; -1: any
    read_nbytes: int = -1  # of files of records at once; -1: as Python does
    cuda_graphs: bool = True  # a segment's GPU kernels are replayed as CUDA graphs
    attention: str = "auto"  # fused: no scores are stored; scores: they are; auto: by the device
    cudnn: bool = True  # attention and convolutions by cuDNN where it is installed
    products: str = "auto"  # who multiplies matrices on the CPU; auto: measured once a machine
    convolutions: str = "auto"  # direct: windows of 3 x 3 on a CPU are not turned either
    fuses_kernels: bool = True  # chains of ops with formulas in graphs run as one kernel each
    host_identity: str = ""  # ranks with the same one share memory; empty: found out
    nccl_shares_gpu: bool = False  # NCCL is told to put several ranks on one GPU
    log_format: str = "text"  # of the runtime's own lines: text or json
    log_level: str = "WARNING"  # the least that is said
    exited_dir: Path | None = None  # where the launcher names the ranks that exited 0
    trace_dir: Path | None = None  # where this rank's trace goes; none: it records none
    trace_steps: int = 100  # of each graph
    data_roots: tuple[Path, ...] = ()  # folders whose files the data of graph jobs may be in
    kernel_cache: Path | None = None  # folder of compiled kernels; none: there is no home folder
    plan_cache: Path | None = None  # folder of compiled plans; none: there is no home folder
    cache_nbytes: int = 1 << 30  # what each of these folders holds at most
    kernel_threads: int = 0  # of large work; 0: one for each processor it may use
    counts_file: Path | None = None  # where a script's rank tells its daemon what it counts

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Config:
        """Reads `env` (default: the process's environment).

        Raises ConfigError naming the variable. Warns if only some of the world variables are set
        (the process is then a world of one, as upstream does) or if a proxy is set that other
        programs would send our traffic through.
        """
        env = os.environ if env is None else env
        launched = _is_launched(env)
        heartbeat_s, suspect_s, act_s, timeout_s = _times(env)
        trace_dir, trace_steps = _trace(env, "ONEFLOW_TRACE")
        checks_numerics = _boolean(env, "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK_NUMERICS")
        waits = _boolean(env, "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK") or checks_numerics
        dry_run, log_dir = _boolean(env, "ONEFLOW_DRY_RUN"), env.get("GLOG_log_dir") or "log"
        config = cls(
            **(_world(env) if launched else {}),  # type: ignore[arg-type]
            launched=launched,
            job_token=env.get("ONEFLOW_JOB_TOKEN") or None,
            job_tls=_boolean(env, "ONEFLOW_JOB_TLS"),
            job_id=env.get("ONEFLOW_JOB_ID") or "local",
            attempt=_integer(env, "ONEFLOW_ATTEMPT", 1, low=1),
            rendezvous_timeout_s=_seconds(env, "ONEFLOW_RDZV_TIMEOUT_SECONDS", 300.0),
            spin_s=_spin(env, "ONEFLOW_SPIN_SECONDS", 50e-6),
            timeout_s=timeout_s,
            heartbeat_s=heartbeat_s,
            suspect_s=suspect_s,
            act_s=act_s,
            debug=_boolean(env, "ONEFLOW_DEBUG") or _boolean(env, "ONEFLOW_DEBUG_MODE"),
            loads_any_class=_boolean(env, "ONEFLOW_LOAD_ANY_CLASS"),
            color=not env.get("NO_COLOR"),
            trust_local_sizes=_boolean(env, "ONEFLOW_EAGER_LOCAL_TO_GLOBAL_BALANCED_OVERRIDE"),
            view_may_copy=_boolean(env, "ONEFLOW_DISABLE_VIEW"),
            debug_pass=env.get("ONEFLOW_DEBUG_PASS", ""),
            log_dir=log_dir,
            dump_dir=env.get("ONEFLOW_DUMP") or (log_dir if dry_run else None),
            quantizes_embeddings=_boolean(env, "ONEFLOW_ONE_EMBEDDING_ENABLE_QUANTIZED_COMM"),
            dry_run=dry_run,
            waits_for_kernels=waits,
            checks_numerics=checks_numerics,
            dumps_numerics=_boolean(env, "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK_NUMERICS_DUMP"),
            tf32=_boolean_or_none(env, "ONEFLOW_EP_CUDA_ENABLE_TF32_EXECUTION"),
            message_nbytes=_message_nbytes(env, "ONEFLOW_GRPC_MAX_MESSAGE_BYTE_SIZE"),
            read_nbytes=_integer(
                env, "ONEFLOW_PERSISTENT_IN_STREAM_BUFFER_SIZE_BYTES", -1, low=512
            ),
            progress_bar=_boolean(env, "ONEFLOW_NNGRAPH_ENABLE_PROGRESS_BAR"),
            tells_memory=_integer(env, "GLOG_v", 0, low=0) >= 3,
            metrics_addr=_address(env, "ONEFLOW_METRICS_ADDR"),
            keep_freed_memory=not any(env.get(name) for name in MALLOC_VARIABLES),
            runtime_dir=_runtime_dir(env),
            cuda_graphs=_cuda_graphs(env) and not waits,
            attention=_choice(env, "ONEFLOW_ATTENTION", ("auto", "fused", "scores")),
            cudnn=_boolean(env, "ONEFLOW_CUDNN", True),
            convolutions=_choice(env, "ONEFLOW_CONVOLUTIONS", ("auto", "direct")),
            products=_choice(env, "ONEFLOW_PRODUCTS", ("auto", "oneflow", "openblas", "mkl")),
            fuses_kernels=_boolean(env, "ONEFLOW_KERNEL_FUSION", True) and not waits,
            host_identity=env.get("ONEFLOW_HOST_IDENTITY", ""),
            nccl_shares_gpu=_boolean(env, "NCCL_MULTI_RANK_GPU_ENABLE"),
            log_format=_choice(env, "ONEFLOW_LOG_FORMAT", ("text", "json")),
            log_level=_choice(env, "ONEFLOW_LOG_LEVEL", LOG_LEVELS),
            exited_dir=_path(env, "ONEFLOW_EXITED_DIR"),
            trace_dir=trace_dir,
            trace_steps=trace_steps,
            data_roots=_folders(env, "ONEFLOW_DATA_ROOTS"),
            kernel_cache=_cache_folder(env, "ONEFLOW_KERNEL_CACHE", "kernels"),
            plan_cache=_cache_folder(env, "ONEFLOW_PLAN_CACHE", "plans"),
            cache_nbytes=_integer(env, "ONEFLOW_CACHE_BYTES", 1 << 30, low=0, high=1 << 62),
            kernel_threads=_threads(env, "OMP_NUM_THREADS"),
            counts_file=_path(env, "ONEFLOW_COUNTS_FILE"),
        )
        config.check_order_of_times()
        _warn_of_proxies(env, launched)
        return config

    def check_order_of_times(self) -> None:
        """Each layer must wait strictly longer than the one below it, or the wrong layer reports
        a fault.
        """
        if not self.heartbeat_s < self.suspect_s < self.act_s < self.timeout_s:
            raise ConfigError(
                "the times must grow: ONEFLOW_HEARTBEAT_SECONDS "
                f"({self.heartbeat_s:g}) < ONEFLOW_SUSPECT_SECONDS ({self.suspect_s:g}) < "
                f"ONEFLOW_PEER_TIMEOUT_SECONDS ({self.act_s:g}) < "
                f"ONEFLOW_TIMEOUT_SECONDS ({self.timeout_s:g})"
            )

    @property
    def master_address(self) -> str:
        """host:port of rank 0's scheduler."""
        return join_address(self.master_addr, self.master_port)


_current: Config | None = None


def current_config() -> Config:
    """The process's own configuration, read from its environment at the first call."""
    global _current
    if _current is None:
        _current = Config.from_env()
    return _current


@cache
def warn_of_unread() -> None:
    """Warn once about the variables named ONEFLOW_... that are set and that nothing reads.

    On rank 0 only, and when the first op runs: launchers, daemons and the command line, which start
    programs with the same variables, run none.
    """
    if current_config().rank == 0 and any(name.startswith("ONEFLOW_") for name in os.environ):
        from oneflow.core.variables import unread  # few programs need the table

        if clauses := unread(os.environ):
            warnings.warn("; ".join(clauses), ConfigWarning, stacklevel=2)


def set_config(config: Config | None) -> None:
    """Replaces the process's configuration (tests, embedding programs).

    None: read it again when next asked.
    """
    global _current
    _current = config


def inputs_may_move() -> bool:
    """Whether an eager op brings global inputs of several placements together. Read anew at each
    such op, because scripts set the variable around the lines that need it.
    """
    return _boolean(os.environ, "ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT")


def join_address(host: str, port: int) -> str:
    """`host:port`, with the brackets an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Inverse of `join_address`. Raises ConfigError for anything else than host:port."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not is_number or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port with a port of 0 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def _is_launched(env: Mapping[str, str]) -> bool:
    present = [name for name in WORLD_VARIABLES if env.get(name)]
    if present and len(present) < len(WORLD_VARIABLES):
        missing = [name for name in WORLD_VARIABLES if name not in present]
        warnings.warn(
            f"{', '.join(present)} set but not {', '.join(missing)}: running as a world of one "
            "process; set all four (python -m oneflow.distributed.launch does) or none",
            ConfigWarning,
            stacklevel=4,
        )
    return len(present) == len(WORLD_VARIABLES)


def _world(env: Mapping[str, str]) -> dict[str, object]:
    world_size = _integer(env, "WORLD_SIZE", 1, low=1)
    rank = _integer(env, "RANK", 0, low=0)
    if rank >= world_size:
        raise ConfigError(f"RANK={rank} must be less than WORLD_SIZE={world_size}")
    return {
        "rank": rank,
        "world_size": world_size,
        "local_rank": _integer(env, "LOCAL_RANK", rank, low=0),
        "master_addr": env["MASTER_ADDR"],
        "master_port": _integer(env, "MASTER_PORT", 0, low=1, high=65535),
    }


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _times(env: Mapping[str, str]) -> tuple[float, float, float, float]:
    """Heartbeat, suspect, act, time-out; a user that sets one need not set those below it."""
    timeout_s = _seconds(env, "ONEFLOW_TIMEOUT_SECONDS", 300.0)
    heartbeat_s = _seconds(env, "ONEFLOW_HEARTBEAT_SECONDS", min(1.0, timeout_s / 8))
    act_default = min(10.0 * heartbeat_s, 0.8 * timeout_s)
    act_s = _seconds(env, "ONEFLOW_PEER_TIMEOUT_SECONDS", act_default)
    suspect_s = _seconds(env, "ONEFLOW_SUSPECT_SECONDS", min(3.0 * heartbeat_s, 0.5 * act_s))
    return heartbeat_s, suspect_s, act_s, timeout_s


def _warn_of_proxies(env: Mapping[str, str], launched: bool) -> None:
    found = [name for name in PROXY_VARIABLES if env.get(name)]
    if launched and found:
        warnings.warn(
            f"{', '.join(found)} set: traffic between ranks does not use it and must be able to go "
            "direct",
            ConfigWarning,
            stacklevel=3,
        )


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int = 2**31) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        return whole(text, low, high)
    except ValueError as error:
        raise ConfigError(f"{name}={error}") from None


def whole(text: str, low: int, high: int) -> int:
    """Read a whole number in low..high. Raises ValueError."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if not low <= value <= high:
        raise ValueError(f"{value} is not in {low}..{high}")
    return value


def _threads(env: Mapping[str, str], name: str) -> int:
    """The number of threads of OpenMP's variable, of whose levels ours are the first; 0 where it
    says none: OpenMP itself complains about a value that is no number."""
    first = env.get(name, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a number of seconds") from None
    if not 0 < value < 1e9:
        raise ConfigError(f"{name}={text} must be more than 0 seconds and finite")
    return value


def _spin(env: Mapping[str, str], name: str, default: float) -> float:
    """Seconds of busy waiting; 0: none. Long ones would take a core from those waited for."""
    if env.get(name, "").strip() in ("0", "0.0"):
        return 0.0
    value = _seconds(env, name, default)
    if value > MAX_SPIN_S:
        raise ConfigError(f"{name}={value:g} must be 0 to {MAX_SPIN_S:g} seconds")
    return value


def _boolean(env: Mapping[str, str], name: str, default: bool = False) -> bool:
    text = env.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise ConfigError(f"{name}={text!r} is not a truth value; use 1 or 0")


def _boolean_or_none(env: Mapping[str, str], name: str) -> bool | None:
    """A truth value; None if the variable is not set."""
    return _boolean(env, name) if name in env else None


def _cuda_graphs(env: Mapping[str, str]) -> bool:
    """Whether kernels are replayed as CUDA graphs, by our name or else by upstream's."""
    usual = env.get("CUDA_LAUNCH_BLOCKING") != "1"
    usual = _boolean(env, "ONEFLOW_KERNEL_ENABLE_CUDA_GRAPH", usual)
    return _boolean(env, "ONEFLOW_CUDA_GRAPHS", usual)


def _message_nbytes(env: Mapping[str, str], name: str) -> int:
    """The limit of a message; -1: none. A smaller one would refuse messages of a plan's parts."""
    if env.get(name, "").strip() == "-1":
        return -1
    return _integer(env, name, 4 << 20, low=4 << 20)


def _address(env: Mapping[str, str], name: str) -> str | None:
    """host:port; None if the variable is not set."""
    text = env.get(name) or None
    if text is not None:
        try:
            split_address(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    return text


def _choice(env: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of `words`, in any case; the first if the variable is not set."""
    text = (env.get(name) or words[0]).strip()
    for word in words:
        if text.lower() == word.lower():
            return word
    raise ConfigError(f"{name}={text!r} must be one of {', '.join(words)}")


def _cache_folder(env: Mapping[str, str], variable: str, name: str) -> Path | None:
    """The folder that is named, else one in the user's cache folder; None: nothing is kept."""
    named = env.get(variable, "")
    if named:
        return None if named.lower() in FALSE_WORDS else Path(named)
    try:
        base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "oneflow" / name


def _folders(env: Mapping[str, str], name: str) -> tuple[Path, ...]:
    """Absolute folders, as in PATH, with links followed."""
    listed = [text for text in env.get(name, "").split(os.pathsep) if text]
    for text in listed:
        if not os.path.isabs(text):
            raise ConfigError(f"{name}: {text!r} is not an absolute path")
    return tuple(Path(os.path.realpath(text)) for text in listed)


def _trace(env: Mapping[str, str], name: str) -> tuple[Path | None, int]:
    """FOLDER or FOLDER:STEPS; the text after the last colon is of the folder if it is no number."""
    text = env.get(name, "")
    folder, colon, steps = text.rpartition(":")
    if not (colon and steps.isascii() and steps.isdecimal()):
        return (Path(text) if text else None), 100
    if not folder or not 1 <= int(steps[:12]) <= 1 << 30:
        raise ConfigError(f"{name}={text!r} is not FOLDER or FOLDER:STEPS, with 1 step or more")
    return Path(folder), int(steps[:12])


def _runtime_dir(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "oneflow"
    return Path(env.get("TMPDIR") or "/tmp") / f"oneflow-{os.getuid()}"
