"""Limits of a job's requests: every limit of a JobSpec, checked once, where it comes in.

The messages are read by the one who submitted the job: they name the field, its value and the
values that it may have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from oneflow.core.control_channel import is_label
from oneflow.core.errors import JobSpecError
from oneflow.core.job_config import NO_OVERRIDES
from oneflow.scheduler.jobs.records import REASONS, JobKind, JobSpec

MAX_NAME_CHARS = 128
MAX_ARGS = 4096
MAX_STRING_NBYTES = 65536
MAX_SPEC_NBYTES = 512 * 1024  # of all strings; a control message holds 1 MiB
MAX_ENV = 1024
MAX_DEVICES = 65_536
MAX_RESTART_RULES = 64
MAX_GRAPH_SIZES = 64  # of an elastic graph job, whose file is checked for each
MAX_AFTER = 256
MAX_ARRAY_INDEX = 1_000_000
MAX_WHERE = 64  # nodes or labels that a job names, and labels of a node
AFTER_ENDS = ("ok", "any")
MAX_STEPS = 2**62
MAX_TIME_LIMIT_S = 10 * 366 * 86400.0
MAX_PATH_NBYTES = 4096
DEVICE_TYPES = ("cpu", "cuda")
AMP_DTYPES = ("", "float16", "bfloat16")
CPUS = (0.01, 65_536.0)
MEMORY_NBYTES = (16 << 20, 1 << 50)
RANGES = {
    "devices": (1, MAX_DEVICES),
    "max_devices": (0, MAX_DEVICES),
    "priority": (-1000, 1000),
    "steps": (0, MAX_STEPS),
    "max_restarts": (0, 1000),
    "checkpoint_every": (0, MAX_STEPS),
    "checkpoint_keep": (0, 1000),
    "zero": (0, 3),
    "array_index": (0, MAX_ARRAY_INDEX),
    "array_limit": (0, MAX_ARRAY_INDEX),
    "array_size": (0, MAX_ARRAY_INDEX),
}
"""The least and the most of whole numbers."""
LAUNCHER_VARIABLES = frozenset(
    ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "ONEFLOW_JOB_TOKEN")
)
GRAPH_VARIABLES = frozenset(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "ONEFLOW_TIMEOUT_SECONDS",
        "ONEFLOW_SPIN_SECONDS",
        "ONEFLOW_ATTENTION",
        "ONEFLOW_CUDA_GRAPHS",
        "ONEFLOW_CUDNN",
        "ONEFLOW_KERNEL_FUSION",
        "ONEFLOW_LOG_LEVEL",
        "ONEFLOW_DEBUG",
    )
)
"""All that a job without code may set: with others (LD_PRELOAD, PYTHONPATH) it would run some."""

_FOLDER = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62})(?:~([1-9][0-9]{0,8}))?")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_NODE = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_job_id(job_id: str) -> None:
    """Raises JobSpecError. A job's id is also the name of its folder (`folder_name`)."""
    _check_word("job id", job_id)


def check_queue_name(name: str) -> None:
    """Raises JobSpecError."""
    _check_word("queue", name)


def _check_word(what: str, word: str) -> None:
    if not _JOB_ID.fullmatch(word):
        raise JobSpecError(
            f"{what} {_shown(word)}: must be 1 to 63 letters, digits, - or _, and begin with a "
            "letter or a digit"
        )


def folder_name(job_id: str, life: int) -> str:
    """Name of the folder in which a daemon keeps a job.

    life: of the job (see JobRecord). It must find nothing of an earlier job of its id, whose folder
    a daemon that was away when that one was removed still has.
    """
    return f"{job_id}~{life}" if life else job_id


def parse_folder_name(name: str) -> tuple[str, int] | None:
    """Id and life of the job whose folder has this name; None for a folder that is no job's."""
    found = _FOLDER.fullmatch(name)
    return None if found is None else (found[1], int(found[2] or 0))


def up_to(folder: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that are folders of the same job's id and of no later life: after
    a restore (see journal.py) one job may have had several.
    """
    last = parse_folder_name(folder)
    found = [(name, parse_folder_name(name)) for name in names]
    return [name for name, it in found if it and last and it[0] == last[0] and it[1] <= last[1]]


def check_spec(spec: JobSpec) -> None:
    """Raises JobSpecError for the first thing that is wrong with it."""
    if len(spec.name) > MAX_NAME_CHARS or not spec.name.isprintable():
        raise JobSpecError(
            f"name {_shown(spec.name)}: must be at most {MAX_NAME_CHARS} printable characters"
        )
    for name, (low, high) in RANGES.items():
        _check_range(name, getattr(spec, name), low, high)
    _check_devices(spec)
    _check_after(spec.after)
    if spec.array:
        check_job_id(spec.array)
    elif spec.array_index or spec.array_limit or spec.array_size:
        raise JobSpecError(
            "array_index, array_limit, array_size: only a member of an array has them"
        )
    if spec.queue:
        check_queue_name(spec.queue)
    _check_where(spec)
    limit = spec.time_limit_s
    if not math.isfinite(limit) or not 0 <= limit <= MAX_TIME_LIMIT_S:
        raise JobSpecError(
            f"time_limit_s={limit:g}: must be 0 (none) to {MAX_TIME_LIMIT_S:.0f} seconds"
        )
    _check_share(spec)
    _check_restarts(spec.restart_on)
    _check_paths(spec)
    _check_env(spec)
    _check_overrides(spec)
    if spec.kind is JobKind.SCRIPT:
        _check_script(spec)
    else:
        _check_graph(spec)
    _check_size(spec)


def _check_share(spec: JobSpec) -> None:
    """Processors and memory of a rank."""
    cpus, nbytes = spec.cpus, spec.memory_nbytes
    if (cpus or nbytes) and spec.kind is not JobKind.SCRIPT:
        raise JobSpecError("cpus, memory: of script jobs only")
    low, high = CPUS
    if cpus and not low <= cpus <= high:
        raise JobSpecError(f"cpus={cpus:g}: must be 0 (no limit), or {low:g} to {high:g}")
    least, most = MEMORY_NBYTES
    if nbytes and not least <= nbytes <= most:
        raise JobSpecError(
            f"memory={nbytes}: must be 0 (no limit), or at least {least >> 20} MiB and at most "
            f"{most >> 40} TiB"
        )


def check_priority(priority: int) -> None:
    """Raises JobSpecError."""
    _check_range("priority", priority, *RANGES["priority"])


def _check_where(spec: JobSpec) -> None:
    for name in ("only_nodes", "exclude_nodes", "require_labels"):
        words: tuple[str, ...] = getattr(spec, name)
        if len(words) > MAX_WHERE:
            raise JobSpecError(f"{name}: {len(words)} of them, at most {MAX_WHERE} allowed")
        for word in words:
            if name == "require_labels" and not is_label(word):
                raise JobSpecError(
                    f"require_labels {_shown(word)}: must be name=value, of letters, digits, _, -, "
                    ". and /"
                )
            if name != "require_labels" and not _NODE.fullmatch(word):
                raise JobSpecError(f"{name} {_shown(word)}: must be the name of a node")


def _check_after(after: str) -> None:
    words = after.split(",") if after else []
    if len(words) > MAX_AFTER:
        raise JobSpecError(f"after: {len(words)} jobs, at most {MAX_AFTER} allowed")
    seen = set()
    for word in words:
        job_id, colon, end = word.partition(":")
        check_job_id(job_id)
        if colon and end not in AFTER_ENDS:
            raise JobSpecError(
                f"after {_shown(word)}: must be ID or ID:ok (it has succeeded), or ID:any (it has "
                "ended)"
            )
        if job_id in seen:
            raise JobSpecError(f"after: names job {job_id} twice")
        seen.add(job_id)


def _check_devices(spec: JobSpec) -> None:
    _check_range("nodes", spec.nodes, 0, spec.devices)
    if spec.device_type not in DEVICE_TYPES:
        raise JobSpecError(
            f"device_type {_shown(spec.device_type)}: must be {' or '.join(DEVICE_TYPES)}"
        )
    if spec.nodes and spec.devices % spec.nodes:
        raise JobSpecError(
            f"nodes={spec.nodes}: {spec.devices} devices cannot be shared out evenly over them; "
            "choose a number of nodes that divides the devices"
        )
    if not spec.max_devices:
        return
    if spec.max_devices < spec.devices:
        raise JobSpecError(
            f"devices={spec.devices}:{spec.max_devices}: MIN must not be more than MAX"
        )
    if spec.kind is JobKind.INFERENCE:
        raise JobSpecError("devices=MIN:MAX: for script and graph jobs; give one number")
    num_sizes = spec.max_devices - spec.devices + 1
    if spec.kind is JobKind.GRAPH and num_sizes > MAX_GRAPH_SIZES:
        raise JobSpecError(
            f"devices={spec.size}: a graph job may have at most {MAX_GRAPH_SIZES} sizes"
        )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise JobSpecError(f"{name}={value}: must be {low} to {high}")


def _check_restarts(rules: tuple[str, ...]) -> None:
    if len(rules) > MAX_RESTART_RULES:
        raise JobSpecError(f"restart_on: {len(rules)} rules, at most {MAX_RESTART_RULES} allowed")
    for rule in rules:
        is_code = rule.isascii() and rule.isdecimal() and 1 <= int(rule[:9]) <= 255
        if not is_code and rule not in REASONS:
            raise JobSpecError(
                f"restart_on {_shown(rule)}: must be an exit code (1 to 255) or one of "
                f"{', '.join(REASONS)}"
            )


def _check_paths(spec: JobSpec) -> None:
    for name in ("checkpoint_dir", "resume_from"):
        path: str = getattr(spec, name)
        if len(path.encode(errors="replace")) > MAX_PATH_NBYTES or not path.isprintable():
            raise JobSpecError(
                f"{name} {_shown(path)}: must be at most {MAX_PATH_NBYTES} bytes and printable"
            )
        if ".." in path.split("/"):
            raise JobSpecError(f"{name} {_shown(path)}: must not contain `..`")
    if spec.checkpoint_dir and not spec.checkpoint_dir.startswith("/"):
        raise JobSpecError(f"checkpoint_dir {_shown(spec.checkpoint_dir)}: must begin with /")


def _check_env(spec: JobSpec) -> None:
    if len(spec.env) > MAX_ENV:
        raise JobSpecError(f"env: {len(spec.env)} variables, at most {MAX_ENV} allowed")
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name):
            raise JobSpecError(
                f"env {_shown(name)}: a name has letters, digits and _, and no digit first"
            )
        if name in LAUNCHER_VARIABLES:
            raise JobSpecError(f"env {name}: is set by the launcher for each rank; leave it out")
        if spec.kind is not JobKind.SCRIPT and name not in GRAPH_VARIABLES:
            raise JobSpecError(
                f"env {name}: a {spec.kind} job may set {', '.join(sorted(GRAPH_VARIABLES))} only"
            )
        _check_string(f"env {name}", value)


def _check_overrides(spec: JobSpec) -> None:
    if spec.amp not in AMP_DTYPES:
        raise JobSpecError(f"amp {_shown(spec.amp)}: must be float16 or bfloat16")
    if spec.kind is JobKind.SCRIPT and spec.overrides != NO_OVERRIDES:
        raise JobSpecError(
            "auto_parallel, zero, amp: a program sets these itself, in its graph's config"
        )
    if spec.kind is JobKind.INFERENCE and (spec.auto_parallel or spec.zero):
        raise JobSpecError(
            "auto_parallel, zero: for training jobs only; each rank of an inference job answers "
            "with a graph of its own"
        )


def _check_script(spec: JobSpec) -> None:
    if not spec.argv or not spec.argv[0]:
        raise JobSpecError("argv: a script job needs a program to run, after `--`")
    if len(spec.argv) > MAX_ARGS:
        raise JobSpecError(f"argv: {len(spec.argv)} words, at most {MAX_ARGS} allowed")
    for position, word in enumerate(spec.argv):
        _check_string(f"argv[{position}]", word)
    if spec.graph:
        raise JobSpecError("graph: a script job has none; leave it out or choose kind=graph")
    _check_digest("archive", spec.archive, is_needed=False)
    _check_digest("requirements", spec.requirements, is_needed=False)


def _check_graph(spec: JobSpec) -> None:
    _check_digest("graph", spec.graph, is_needed=True)
    if spec.argv or spec.archive or spec.requirements:
        raise JobSpecError(
            f"argv, archive, requirements: a {spec.kind} job has no code to run; leave them out"
        )


def _check_digest(name: str, digest: str, is_needed: bool) -> None:
    if (digest or is_needed) and not _DIGEST.fullmatch(digest):
        raise JobSpecError(
            f"{name} {_shown(digest)}: must be the digest of an uploaded file, 64 hex digits"
        )


def _check_string(name: str, text: str) -> None:
    if len(text.encode(errors="replace")) > MAX_STRING_NBYTES:
        raise JobSpecError(f"{name}: longer than {MAX_STRING_NBYTES} bytes")
    if "\0" in text or not _is_encodable(text):
        raise JobSpecError(f"{name} {_shown(text)}: must be text without NUL characters")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_size(spec: JobSpec) -> None:
    strings: Iterable[str] = (*spec.argv, *spec.env, *spec.env.values(), *spec.restart_on)
    nbytes = sum(len(text.encode()) + 8 for text in strings)
    if nbytes > MAX_SPEC_NBYTES:
        raise JobSpecError(
            f"argv and env: {nbytes} bytes in all, at most {MAX_SPEC_NBYTES} allowed; put large "
            "data into files"
        )


def _shown(text: str) -> str:
    """Quoted, short enough for a message, without control characters."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
