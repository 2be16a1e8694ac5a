"""The settings of a cluster's client, and where each value came from.

Precedence: flag > ONEFLOW_* variable > --file > <config>/config.toml > /etc/oneflow/config.toml >
default. This is the one place where clients and the command line read their environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.cluster.toml import check_keys, read_toml, suggestion
from oneflow.core.config import FALSE_WORDS, TRUE_WORDS, current_config, split_address
from oneflow.core.control_channel import is_label, socket_path
from oneflow.core.errors import ConfigError
from oneflow.core.folders import check_unwritten
from oneflow.services.quantities import parse_duration, parse_size

SYSTEM_FILE = Path("/etc/oneflow/config.toml")
MAX_DAEMONS = 256


@dataclass(frozen=True)
class Key:
    """A value that can be configured. kind: text, address, path, flag, count, number, list,
    folders (in a variable as in PATH), duration (seconds; written like 30d), size (bytes;
    written like 4GiB) or queues (tables by name; in a variable JSON).
    """

    name: str  # section.key
    kind: str
    default: Any
    text: str

    @property
    def variable(self) -> str:
        """Its environment variable: ONEFLOW_SCHEDULER_LISTEN for scheduler.listen."""
        return "ONEFLOW_" + self.name.replace(".", "_").upper()


KEYS = (
    Key(
        "client.address",
        "address",
        "",
        "the scheduler, host:port; else that of `cluster up`",
    ),
    Key("client.tls_dir", "path", "", "folder of ca.crt, client.crt and client.key, for TLS"),
    Key("client.output", "text", "table", "table, wide or json"),
    Key(
        "scheduler.listen",
        "address",
        "127.0.0.1:0",
        "where clients and daemons connect; `cluster up`: a Unix socket",
    ),
    Key("scheduler.metrics_addr", "address", "127.0.0.1:0", "where /metrics is served"),
    Key("scheduler.state_dir", "path", "", "the scheduler's state, kept for good"),
    Key("scheduler.allow_scripts", "flag", False, "take jobs that run programs"),
    Key("scheduler.ui", "flag", False, "serve the web page"),
    Key("scheduler.on_end", "text", "", "command that is run for each job that has ended"),
    Key("scheduler.tls_dir", "path", "", "folder of ca.crt, scheduler.crt and scheduler.key"),
    Key("scheduler.hosts", "list", (), "more names under which /metrics may be asked for"),
    Key("scheduler.queued_per_token", "count", 100, "jobs of one token that may be queued"),
    Key("scheduler.queues", "queues", {}, "queues of jobs, a table [scheduler.queues.NAME] each"),
    Key(
        "scheduler.usage_half_life",
        "duration",
        7 * 86400.0,
        "time after which use counts half in fair share; 0: first come, first served",
    ),
    Key("scheduler.requests_per_s", "number", 20.0, "requests of one token in a second"),
    Key("scheduler.streams_per_token", "count", 64, "streams (logs, watches) of one token at once"),
    Key("scheduler.max_time_limit", "duration", 0.0, "longest time limit of a job; 0: any"),
    Key("scheduler.compile_time", "duration", 60.0, "the compiler's time for one graph"),
    Key("scheduler.compile_nbytes", "size", 2 << 30, "the compiler's memory; 0: no limit"),
    Key("scheduler.keep_jobs", "count", 10_000, "jobs kept after their end, the newest; 0: all"),
    Key(
        "scheduler.keep_for", "duration", 30 * 86400.0, "time for which they are kept; 0: for good"
    ),
    Key(
        "scheduler.keep_failed_for",
        "duration",
        90 * 86400.0,
        "the same of failed jobs with a checkpoint",
    ),
    Key("scheduler.audit_nbytes", "size", 64 << 20, "one file of the audit log"),
    Key("scheduler.audit_files", "count", 8, "older files of the audit log that are kept"),
    Key("daemon.scheduler", "address", "", "the scheduler to join, host:port"),
    Key("daemon.node", "text", "", "name of this node; else its host name"),
    Key("daemon.address", "text", "", "under which other nodes reach this one; else found out"),
    Key("daemon.metrics_addr", "address", "127.0.0.1:0", "where /metrics is served"),
    Key("daemon.health_addr", "text", "", "health service: unix:<path> or host:port"),
    Key("daemon.state_dir", "path", "", "the daemon's logs, checkpoints and caches"),
    Key("daemon.token_file", "path", "", "file of the token to join with"),
    Key("daemon.tls_dir", "path", "", "folder of ca.crt, daemon.crt and daemon.key"),
    Key("daemon.data_roots", "folders", (), "folders whose files graph jobs may use"),
    Key("daemon.labels", "list", (), "labels of this node, name=value, which jobs may require"),
    Key("daemon.allow_scripts", "flag", False, "run script jobs, if the scheduler sends any"),
    Key("daemon.memory_nbytes", "size", 0, "memory of each rank; 0: no limit"),
    Key("daemon.pids", "count", 4096, "processes and threads of each rank"),
    Key("daemon.open_files", "count", 65_536, "files that each process of a rank may have open"),
    Key("daemon.log_nbytes", "size", 10 << 30, "logs of one job on this node"),
    Key("daemon.log_file_nbytes", "size", 64 << 20, "one file of a log; each stream has four"),
    Key("daemon.cache_nbytes", "size", 20 << 30, "files of jobs kept for the next job"),
    Key("daemon.train_loss", "flag", False, "show oneflow_train_loss on /metrics"),
    Key("local.daemons", "count", 0, "daemons of `cluster up`; 0: one for each device"),
    Key("local.device_type", "text", "", "cpu or cuda; else cuda if there is one"),
    Key("log.level", "text", "WARNING", "the least that scheduler and daemons log"),
    Key("log.format", "text", "text", "how they log, text or json"),
)
BY_NAME = {key.name: key for key in KEYS}
_LIMIT_KINDS = ("count", "number", "duration", "size")
LIMITS = tuple(
    key.name for key in KEYS if key.kind in _LIMIT_KINDS and not key.name.startswith("local.")
)
"""Bounds that operators set; flags of `scheduler run`, `daemon run` and `cluster up`."""
WORDS = {
    "client.output": ("table", "wide", "json"),
    "log.level": ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    "log.format": ("text", "json"),
    "local.device_type": ("", "cpu", "cuda"),
}
AT_LEAST_ONE = frozenset(
    (
        "scheduler.queued_per_token",
        "scheduler.requests_per_s",
        "scheduler.streams_per_token",
        "scheduler.compile_time",
        "scheduler.audit_nbytes",
        "scheduler.audit_files",
        "daemon.pids",
        "daemon.open_files",
        "daemon.log_nbytes",
        "daemon.log_file_nbytes",
        "daemon.cache_nbytes",
    )
)
OWN_VARIABLES = {  # a second, shorter name
    "client.address": "ONEFLOW_SCHEDULER_ADDRESS",
    "daemon.data_roots": "ONEFLOW_DATA_ROOTS",
}


@dataclass(frozen=True)
class Value:
    """origin: flag, a variable's name, a file, or default."""

    value: Any
    origin: str


class Settings:
    """All values, each with its origin; `settings["scheduler.listen"]`."""

    def __init__(self, values: Mapping[str, Value], file: Path | None = None) -> None:
        self._values = dict(values)
        self.file = str(file) if file is not None else ""  # as in origins

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def origin(self, name: str) -> str:
        return self._values[name].origin

    def path(self, name: str) -> Path | None:
        """None if it is not set."""
        return Path(self[name]).expanduser() if self[name] else None

    def items(self) -> list[tuple[Key, Value]]:
        return [(key, self._values[key.name]) for key in KEYS]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """flags: values of the command line by key name; None: not given.

    Raises ConfigError that names the flag, variable, or file and key.
    """
    env = os.environ if env is None else env
    values = {key.name: Value(key.default, "default") for key in KEYS}
    user_file = config_dir(env) / "config.toml"
    if user_file.exists():
        check_unwritten(user_file.parent)
    for path, is_needed in ((SYSTEM_FILE, False), (user_file, False), (file, True)):
        if path is not None and (is_needed or path.exists()):
            values |= _from_file(path)
    values |= _from_env(env)
    for name, given in (flags or {}).items():
        if given is not None:
            values[name] = Value(_checked(BY_NAME[name], given, f"--{name}"), "flag")
    return Settings(values, file)


def config_dir(env: Mapping[str, str] | None = None) -> Path:
    """ONEFLOW_CONFIG_DIR, else the user's own folder for configuration."""
    return _user_dir("config", env)


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """Return ONEFLOW_STATE_DIR, else the user's own folder for the state of programs."""
    return _user_dir("state", env)


def _user_dir(kind: str, env: Mapping[str, str] | None) -> Path:
    given = (os.environ if env is None else env).get(f"ONEFLOW_{kind.upper()}_DIR")
    if given:
        return Path(given)
    import platformdirs

    usual = {"config": platformdirs.user_config_path, "state": platformdirs.user_state_path}
    return usual[kind]("oneflow", appauthor=False)


def runtime_dir() -> Path:
    """Return the folder for files that do not survive a restart of the machine, mode 0700."""
    return current_config().runtime_dir


def use_log_settings(settings: Settings) -> None:
    """Set the environment of this process and all that it starts; ranks log as their
    daemon does.
    """
    for name in ("log.level", "log.format"):
        if settings.origin(name) != "default":
            os.environ[BY_NAME[name].variable] = str(settings[name])


def flags_for(settings: Settings, section: str) -> tuple[str, ...]:
    """Make the flags that hand on to a scheduler or daemon the settings that it would not read
    itself: limits and log settings of the command line and of --file, and others of --file that
    make sense for all.
    """
    found: list[str] = []
    for name in (*LIMITS, "log.level", "log.format"):
        of, _, word = name.partition(".")
        origin = settings.origin(name)
        if of in (section, "log") and (origin == "flag" or origin == settings.file):
            flag = f"--log-{word}" if of == "log" else f"--{word}"
            found += [flag.replace("_", "-"), str(settings[name])]
    if section == "daemon" and settings.origin("daemon.train_loss") == settings.file:
        found.append("--train-loss" if settings["daemon.train_loss"] else "--no-train-loss")
    if section == "daemon" and settings.origin("daemon.data_roots") in ("flag", settings.file):
        for root in settings["daemon.data_roots"]:
            found += ["--data-root", root]
    if section == "scheduler" and settings.origin("scheduler.on_end") in ("flag", settings.file):
        found += ["--on-end", settings["scheduler.on_end"]]
    if section == "scheduler" and settings.origin("scheduler.queues") in ("flag", settings.file):
        found += ["--queues", json.dumps(settings["scheduler.queues"])]
    if section == "daemon" and settings.origin("daemon.labels") == settings.file:
        for label in settings["daemon.labels"]:
            found += ["--label", label]
    if section == "scheduler" and settings.origin("scheduler.hosts") == settings.file:
        for host in settings["scheduler.hosts"]:
            found += ["--host", host]
    return tuple(found)


def environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def _from_file(path: Path) -> dict[str, Value]:
    found = read_toml(path)
    sections = {key.name.partition(".")[0] for key in KEYS}
    check_keys(found, sections, str(path))
    values = {}
    for section, table in found.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} must be a table, [{section}]")
        names = [k.name.partition(".")[2] for k in KEYS if k.name.startswith(f"{section}.")]
        check_keys(table, names, f"{path}: [{section}]")
        for name, given in table.items():
            key = BY_NAME[f"{section}.{name}"]
            checked = _checked(key, given, f"{path}: {key.name}")
            values[key.name] = Value(_beside(path, key, checked), str(path))
    return values


def _beside(path: Path, key: Key, value: Any) -> Any:
    """A path in a file is meant from where the file is."""
    if key.kind == "path" and value:
        return str(path.resolve().parent / Path(value).expanduser())
    if key.kind == "folders":
        return tuple(str(path.resolve().parent / Path(folder).expanduser()) for folder in value)
    return value


def _from_env(env: Mapping[str, str]) -> dict[str, Value]:
    values = {}
    for key in KEYS:
        for variable in (key.variable, OWN_VARIABLES.get(key.name, "")):
            if given := env.get(variable):
                values[key.name] = Value(_checked(key, _typed(key, given), variable), variable)
    return values


def _typed(key: Key, text: str) -> Any:
    """Parse the text of a variable."""
    if key.kind == "flag":
        word = text.strip().lower()
        if word in TRUE_WORDS or word in FALSE_WORDS:
            return word in TRUE_WORDS
    if key.kind == "count" and text.strip().isdecimal() and len(text) < 25:
        return int(text)
    if key.kind == "number":
        try:
            return float(text)
        except ValueError:
            return text
    if key.kind == "list":
        return [word.strip() for word in text.split(",") if word.strip()]
    if key.kind == "folders":
        return [folder for folder in text.split(os.pathsep) if folder]
    return text


def _checked(key: Key, value: Any, where: str) -> Any:
    """The value, if it is of the key's kind."""
    kind = key.kind
    if kind == "flag" and not isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r} is not a truth value; use true or false")
    if kind == "count" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"{where}: {value!r} is not a whole number of at least 0")
    if kind in ("number", "duration", "size"):
        value = _quantity(kind, value, where)
    if key.name in AT_LEAST_ONE and value < 1:
        raise ConfigError(f"{where}: {value!r} is too little; at least 1")
    if kind == "queues":
        return _tables(value, where)
    if kind in ("list", "folders"):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise ConfigError(f"{where}: {value!r} is not a list of texts")
        odd = [v for v in value if not v or os.pathsep in v] if kind == "folders" else []
        if odd:
            raise ConfigError(f"{where}: {odd[0]!r} is no folder that a list as in PATH can name")
        if key.name == "daemon.labels" and not all(map(is_label, value)):
            raise ConfigError(f"{where}: {list(value)} is no list of labels, as gpu=h200")
        return tuple(value)
    if kind in ("text", "path", "address") and not isinstance(value, (str, Path)):
        raise ConfigError(f"{where}: {value!r} is not a text")
    if kind == "address" and value:
        _check_address(str(value), where)
    words = WORDS.get(key.name)
    if words is not None:
        value = str(value).upper() if key.name == "log.level" else value
        if value not in words:
            what = key.name.rpartition(".")[2].replace("_", " ")
            near = suggestion(str(value), filter(None, words))
            raise ConfigError(f"{where}: unknown {what} {value!r}{near}")
    if key.name == "local.daemons" and value > MAX_DAEMONS:
        raise ConfigError(f"{where}: {value} daemons, at most {MAX_DAEMONS} on one machine")
    return str(value) if kind in ("text", "path", "address") else value


def _tables(value: object, where: str) -> dict[str, Any]:
    """Return tables by name, of a file or as JSON; queue_settings.py judges their contents."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{where}: is no JSON: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ConfigError(f"{where}: must be tables, [scheduler.queues.NAME]")
    return value


def _quantity(kind: str, value: Any, where: str) -> float | int:
    if kind == "duration":
        return parse_duration(value, where)
    if kind == "size":
        return parse_size(value, where)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: {value!r} is not a number of at least 0")
    return float(value)


def _check_address(text: str, where: str) -> None:
    try:
        if socket_path(text) is None:
            split_address(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
