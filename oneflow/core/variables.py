"""The variables of the environment that this library reads: one table.

docs/CONFIGURATION.md says more about each; a test compares both, and demands that every name in a
source file stands here. Kinds: flag (1, true, on, yes, y; 0, false, off, no, n), count (a whole
number), seconds, address (host:port), choice (a word of its meaning), path, folders (as in PATH),
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple


class Variable(NamedTuple):
    """A variable: its name, kind, default, and meaning, as the documentation shows them."""

    name: str
    kind: str
    default: str
    meaning: str


RANKS = (
    Variable("MASTER_ADDR", "text", "", "host of rank 0's scheduler"),
    Variable("MASTER_PORT", "count", "", "port of rank 0's scheduler"),
    Variable("WORLD_SIZE", "count", "1", "number of processes"),
    Variable("RANK", "count", "0", "number of this process"),
    Variable(
        "LOCAL_RANK",
        "count",
        "`RANK`",
        "number among the processes of this host; the default device index",
    ),
    Variable(
        "ONEFLOW_JOB_TOKEN",
        "text",
        "made by the launcher",
        "secret that all ranks of a job share; set it by hand for several nodes",
    ),
    Variable(
        "ONEFLOW_JOB_TLS",
        "flag",
        "off; on for jobs of a cluster with TLS",
        "ranks speak TLS 1.3 with each other (control and tensors over TCP)",
    ),
    Variable("ONEFLOW_JOB_ID", "text", "`local`", "name of the job in reports"),
    Variable("ONEFLOW_ARRAY_INDEX", "text", "set for members of an array", "which of them it is"),
    Variable("ONEFLOW_ATTEMPT", "count", "1", "which attempt at the job this is, in reports"),
    Variable(
        "ONEFLOW_COUNTS_FILE",
        "path",
        "set by a daemon",
        "file in which a script's rank tells it what it counts",
    ),
    Variable(
        "ONEFLOW_OUTPUTS",
        "path",
        "set by a daemon",
        "folder in which a script's rank leaves what `job outputs` fetches",
    ),
    Variable(
        "ONEFLOW_EXITED_DIR",
        "path",
        "set by the launcher",
        "folder with a file for each rank that exited 0",
    ),
    Variable(
        "ONEFLOW_PULSE_FD",
        "count",
        "set by a daemon",
        "pipe into which a rank's process shows that its interpreter runs",
    ),
    Variable(
        "ONEFLOW_DATA_ROOTS",
        "folders",
        "none",
        "folders, as in `PATH`, whose files graph jobs may read as data",
    ),
    Variable(
        "ONEFLOW_HOST_IDENTITY",
        "text",
        "of the host",
        "ranks with the same one share memory; others use TCP",
    ),
)
TIMES = (
    Variable("ONEFLOW_RDZV_TIMEOUT_SECONDS", "seconds", "300", "until all ranks must have come"),
    Variable(
        "ONEFLOW_TIMEOUT_SECONDS",
        "seconds",
        "300",
        "a step, collective or compile that moves nothing for so long is a hang",
    ),
    Variable("ONEFLOW_HEARTBEAT_SECONDS", "seconds", "1", "between heartbeats"),
    Variable(
        "ONEFLOW_SUSPECT_SECONDS", "seconds", "3", "silence after which a rank is shown as suspect"
    ),
    Variable(
        "ONEFLOW_PEER_TIMEOUT_SECONDS",
        "seconds",
        "10",
        "silence after which a rank is lost and the job ends",
    ),
)
SEEN = (
    Variable(
        "ONEFLOW_METRICS_ADDR",
        "address",
        "off",
        "`host:port` of the metrics page ([METRICS.md](METRICS.md))",
    ),
    Variable(
        "ONEFLOW_LOG_LEVEL",
        "choice",
        "`WARNING`",
        "the least that is logged: `WARNING`, `DEBUG`, `INFO`, `ERROR`, `CRITICAL`",
    ),
    Variable("ONEFLOW_LOG_FORMAT", "choice", "`text`", "the form of log lines: `text` or `json`"),
    Variable("ONEFLOW_TRACE", "path", "off", "`FOLDER` or `FOLDER:STEPS` (100)"),
    Variable(
        "ONEFLOW_DUMP", "path", "off", "folder for the text of each graph after each compiler pass"
    ),
    Variable("ONEFLOW_DEBUG_PASS", "text", "all", "dump after this pass only"),
    Variable(
        "ONEFLOW_DEBUG_MODE",
        "flag",
        "0",
        "1: check the graph after each pass, and shapes across ranks in `to_global`",
    ),
    Variable("ONEFLOW_DEBUG", "flag", "0", "a second name of `ONEFLOW_DEBUG_MODE`"),
    Variable(
        "ONEFLOW_DRY_RUN", "flag", "0", "1: compile the first graph, write its dumps, and exit"
    ),
    Variable(
        "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK", "flag", "0", "1: wait for the device after each kernel"
    ),
    Variable(
        "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK_NUMERICS",
        "flag",
        "0",
        "1: the first kernel whose result has a NaN or an infinity is an error",
    ),
    Variable(
        "ONEFLOW_DEBUG_KERNEL_SYNC_CHECK_NUMERICS_DUMP",
        "flag",
        "0",
        "1: and its inputs and outputs are written to a file",
    ),
    Variable(
        "ONEFLOW_LOAD_ANY_CLASS",
        "flag",
        "0",
        "1: `load` without `weights_only` makes objects of every class that a file names",
    ),
    Variable(
        "NO_COLOR", "text", "unset", "set: the message of an error is not highlighted on a terminal"
    ),
    Variable(
        "ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT",
        "flag",
        "0",
        "1: an eager op moves global inputs to the placement with the highest rank",
    ),
    Variable(
        "ONEFLOW_EAGER_LOCAL_TO_GLOBAL_BALANCED_OVERRIDE",
        "flag",
        "0",
        "1: `to_global` of a local tensor compares nothing across ranks",
    ),
    Variable(
        "ONEFLOW_DISABLE_VIEW",
        "flag",
        "0",
        "1: `Tensor.view` copies where strides allow no view, instead of raising",
    ),
    Variable(
        "ONEFLOW_NNGRAPH_ENABLE_PROGRESS_BAR", "flag", "0", "1: show the progress of compiling"
    ),
    Variable(
        "GLOG_v",
        "count",
        "0",
        "3 or more: each rank prints the memory analysis of each graph once it is compiled",
    ),
    Variable(
        "GLOG_log_dir", "path", "set by the launcher", "for scripts that ask where their logs go"
    ),
)
SPEED = (
    Variable(
        "OMP_NUM_THREADS",
        "text",
        "processors of the rank",
        "threads of BLAS and of large work in kernels",
    ),
    Variable(
        "MALLOC_TRIM_THRESHOLD_",
        "text",
        "kept sizes that suit eager training",
        "set one of these to tune glibc yourself",
    ),
    Variable("MALLOC_MMAP_THRESHOLD_", "text", "mapped sizes that suit eager training", "the same"),
    Variable("MALLOC_TOP_PAD_", "text", "of glibc", "the same"),
    Variable(
        "ONEFLOW_SPIN_SECONDS",
        "seconds",
        "0.00005",
        "busy waiting for a rank of this host, or of an idle thread of kernels, before it sleeps",
    ),
    Variable(
        "NCCL_MULTI_RANK_GPU_ENABLE",
        "flag",
        "0",
        "1: NCCL, from 2.30 on, may put several ranks on one GPU; read by NCCL too",
    ),
    Variable(
        "ONEFLOW_KERNEL_CACHE",
        "path",
        "`$XDG_CACHE_HOME/oneflow/kernels`, else under `~/.cache`",
        "folder of compiled kernels, used only if nobody else can write it",
    ),
    Variable(
        "ONEFLOW_PLAN_CACHE",
        "path",
        "`$XDG_CACHE_HOME/oneflow/plans`, else under `~/.cache`",
        "folder of the plans of graphs that took long to compile",
    ),
    Variable(
        "ONEFLOW_CACHE_BYTES",
        "count",
        "1073741824",
        "the most that each of these two folders holds",
    ),
    Variable(
        "ONEFLOW_ATTENTION",
        "choice",
        "auto",
        "`scaled_dot_product_attention`: `auto`, `fused` or `scores`",
    ),
    Variable(
        "ONEFLOW_CUDNN", "flag", "1", "0: attention and convolutions on GPUs never go to cuDNN"
    ),
    Variable(
        "ONEFLOW_CONVOLUTIONS",
        "choice",
        "auto",
        "float32 windows of 3 x 3 with stride 1 on the CPU: `auto` or `direct`",
    ),
    Variable(
        "ONEFLOW_PRODUCTS",
        "choice",
        "auto",
        "who multiplies float32 matrices on the CPU: `auto`, `oneflow`, `openblas` or `mkl`",
    ),
    Variable(
        "ONEFLOW_KERNEL_FUSION", "flag", "1", "0: every op of a graph has a kernel of its own"
    ),
    Variable(
        "ONEFLOW_CUDA_GRAPHS",
        "flag",
        "1; 0 with `CUDA_LAUNCH_BLOCKING=1`",
        "0: launch the kernels of segments one by one, not as CUDA graphs",
    ),
    Variable(
        "ONEFLOW_KERNEL_ENABLE_CUDA_GRAPH",
        "flag",
        "1",
        "upstream's name of `ONEFLOW_CUDA_GRAPHS`",
    ),
    Variable(
        "ONEFLOW_EP_CUDA_ENABLE_TF32_EXECUTION",
        "flag",
        "0",
        "1: products of float32 matrices on GPUs in TF32",
    ),
    Variable(
        "ONEFLOW_ONE_EMBEDDING_ENABLE_QUANTIZED_COMM",
        "flag",
        "0",
        "1: rows of embeddings travel as int8 where a table names no `communication`",
    ),
    Variable(
        "ONEFLOW_GRPC_MAX_MESSAGE_BYTE_SIZE",
        "count",
        "4194304",
        "largest message of gRPC between ranks, or -1 for any",
    ),
    Variable(
        "ONEFLOW_PERSISTENT_IN_STREAM_BUFFER_SIZE_BYTES",
        "count",
        "Python's",
        "bytes that readers of OFRecord files read from a disk at once, at least 512",
    ),
)
CLUSTERS = (
    Variable(
        "ONEFLOW_SCHEDULER_ADDRESS",
        "address",
        "that of `oneflow cluster up`",
        "scheduler that clients ask, `host:port`",
    ),
    Variable("ONEFLOW_AUTH_TOKEN", "text", "`<config>/token`", "token to show to the scheduler"),
    Variable(
        "ONEFLOW_AUTH_TOKEN_FILE", "path", "`<config>/token`", "file of that token, with mode 0600"
    ),
    Variable(
        "ONEFLOW_CONFIG_DIR", "path", "`~/.config/oneflow`", "configuration and token of this user"
    ),
    Variable(
        "ONEFLOW_STATE_DIR",
        "path",
        "`~/.local/state/oneflow`",
        "folder of what a local cluster keeps",
    ),
    Variable("ONEFLOW_TESTING", "text", "off", "1: failpoints may be set; for tests only"),
    Variable("ONEFLOW_FAILPOINTS", "text", "off", "what goes wrong where ([FAULTS.md](FAULTS.md))"),
)
OTHERS = (
    Variable(
        "ONEFLOW_HOME", "path", "the user's cache folder", "folder of files that `flow.hub` fetches"
    ),
    Variable("ONEFLOW_DISABLE_MOCK_TORCH", "flag", "0", "1: `mock_torch.enable` changes nothing"),
    Variable(
        "ONEFLOW_MOCK_TORCH_LAZY",
        "flag",
        "0",
        "`lazy` of `mock_torch.enable`: missing names fail when they are used",
    ),
    Variable(
        "ONEFLOW_MOCK_TORCH_VERBOSE",
        "flag",
        "0",
        "`verbose` of `mock_torch.enable`: print the missing names",
    ),
    Variable("ONEFLOW_SERVE_API_KEY_FILE", "path", "none", "`--api-key-file` of `oneflow serve`"),
    Variable(
        "ONEFLOW_ERROR_FILE", "path", "set by the launcher", "file for the error that ends a rank"
    ),
    Variable("ONEFLOW_DEVICE", "text", "set by deploy/kubernetes", "device of the daemon of a pod"),
    Variable(
        "ONEFLOW_DEVICES_PER_NODE",
        "count",
        "GPUs of the node, or 1",
        "daemons that deploy/slurm starts on a node",
    ),
    Variable(
        "ONEFLOW_PROCESSES_PER_NODE", "text", "auto", "ranks that deploy/slurm launches on a node"
    ),
    Variable(
        "ONEFLOW_PROFILE_CSV",
        "path",
        "`op_prof`",
        "file of `python -m oneflow.autoprof` ([AUTOTEST.md](AUTOTEST.md))",
    ),
    Variable("ONEFLOW_PROFILE_PRINT_SUMMARY", "flag", "1", "0: autoprof prints no table"),
    Variable("ONEFLOW_PROFILE_ONLY_ONEFLOW", "flag", "0", "1: autoprof measures OneFlow alone"),
    Variable("ONEFLOW_PROFILE_ONLY_PYTORCH", "flag", "0", "1: autoprof measures PyTorch alone"),
    Variable(
        "ONEFLOW_PROFILE_WARMUP_NUM", "count", "10", "calls of an op before autoprof measures it"
    ),
    Variable(
        "ONEFLOW_PROFILE_RUN_NUM", "count", "1000", "calls of an op in each measurement of autoprof"
    ),
    Variable(
        "ONEFLOW_PROFILE_VERBOSE", "flag", "0", "1: autoprof prints the tables of both profilers"
    ),
    Variable(
        "ONEFLOW_TEST_SEED",
        "count",
        "random",
        "seed with which each `autotest` of `oneflow.test_utils` begins",
    ),
    Variable(
        "ONEFLOW_TEST_CPU_ONLY",
        "text",
        "unset",
        "set: AutoTests draw no GPU, and those that need one are skipped",
    ),
)
TESTS = (
    Variable(
        "ONEFLOW_CLIENTS",
        "path",
        "build/clients",
        "folder of the virtual environments of client tests",
    ),
    Variable("ONEFLOW_LIBAI_MAIN", "path", "none", "checkout of LiBai for client tests"),
    Variable("ONEFLOW_CODEGEEX", "path", "none", "checkout of THUDM/CodeGeeX for client tests"),
    Variable("ONEFLOW_MODELS", "path", "none", "checkout of Oneflow-Inc/models for client tests"),
    Variable(
        "ONEFLOW_COMFYUI",
        "path",
        "none",
        "checkout of ComfyUI with OneDiff's nodes, for client tests",
    ),
    Variable(
        "ONEFLOW_UPSTREAM", "path", "none", "checkout of Oneflow-Inc/oneflow for client tests"
    ),
    Variable("ONEFLOW_YOLOV5", "path", "none", "checkout of one-yolov5 for client tests"),
)
PREFIXES = (
    "ONEFLOW_CLIENT_",
    "ONEFLOW_DAEMON_",
    "ONEFLOW_LAUNCH_",
    "ONEFLOW_LOCAL_",
    "ONEFLOW_SCHEDULER_",
    "ONEFLOW_SLURM_",
    "ONEFLOW_TEST_",
    "PET_",
)
"""Beginnings of names that are made of the launcher's flags, ours and torchrun's, or of keys of a
cluster's settings, or that belong to scripts of deploy/ and to tests.
"""
SECTIONS = {
    "Which ranks there are": RANKS,
    "Times": TIMES,
    "What can be seen": SEEN,
    "Speed": SPEED,
    "Clusters": CLUSTERS,
    "Other programs": OTHERS,
    "Tests of this library": TESTS,
}
"""Heading in docs/CONFIGURATION.md -> the variables of the table below it."""
VARIABLES = {variable.name: variable for rows in SECTIONS.values() for variable in rows}


def is_known(name: str) -> bool:
    """Return whether something reads the variable `name`."""
    return name in VARIABLES or name.startswith(PREFIXES)


def unread(env: Mapping[str, str]) -> list[str]:
    """Return a clause for each variable of `env` that is named ONEFLOW_... and that nothing reads:
    its name, and the name that was probably meant.
    """
    names = sorted(name for name in env if name.startswith("ONEFLOW_") and not is_known(name))
    return [_clause(name) for name in names]


def _clause(name: str) -> str:
    close = get_close_matches(name, VARIABLES, n=1, cutoff=0.85)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{name} is set, but nothing reads it{hint}"
