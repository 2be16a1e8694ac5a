"""The runtime's log: one line per record, as text or JSON, on standard error.

    2026-11-21T06:11:19.123456Z W rank n2:3 job=j7f3.2 rank=3 step=1841 executor: message key=value

Warnings and above by default (ONEFLOW_LOG_LEVEL); ONEFLOW_LOG_FORMAT=json for machines. A line is
never broken by the text it quotes, never shows a secret, and a call site that fires too often is
summed up.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from oneflow.core.config import Config

ROOT = "oneflow"
MAX_LINE_CHARS = 16 << 10
CUT_MARK = " ...[cut]"
LINES_PER_SECOND = 10
MASK = "***"
_SECRET_NAME = re.compile(  # tried at a word's begin only: a long word must not cost its square
    r"""((?<![\w-])[\w-]*(?:TOKEN|SECRET|PASSWORD|_KEY)["']?\s*[=:]\s*)"""
    r"""("[^"]*"|'[^']*'|[^\s,;&]+)""",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVELS = {"CRITICAL": "C", "ERROR": "E", "WARNING": "W", "INFO": "I", "DEBUG": "D"}


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module.

    name: the module's `__name__`. Extra facts: `log.warning("text", extra=facts(seconds=3))`.
    """
    return logging.getLogger(name)


def facts(**values: object) -> dict[str, Any]:
    """Key-value pairs for a record; JSON keeps their types."""
    return {"facts": values}


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without these secrets and without the values of names that look like one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRET_NAME.sub(rf"\1{MASK}", text)


class Context:
    """The facts about this process that every line of its log carries. step: the last training
    step, or None.

    daemon: the name of the daemon (node/cpu:0) that this process is.  component: another part of a
    cluster that this process is (scheduler).  Both "": it is a rank.
    """

    def __init__(
        self,
        config: Config,
        step: Callable[[], int | None] = lambda: None,
        daemon: str = "",
        component: str = "",
    ) -> None:
        self.config = config
        self.daemon = daemon
        self.component = component
        self.step = step
        self.node = socket.gethostname()
        self.secrets = tuple(s for s in (config.job_token,) if s)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the facts in the order of the text form; without unknown ones."""
        config = self.config
        when = datetime.fromtimestamp(record.created, timezone.utc)
        found: dict[str, Any] = {
            "ts": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname,
        }
        if self.daemon:
            node, _, device = self.daemon.rpartition("/")
            found |= {"component": "daemon", "node": node, "device": device}
            return found | {"logger": record.name.rpartition(".")[2]}
        if self.component:
            found |= {"component": self.component, "node": self.node}
            return found | {"logger": record.name.rpartition(".")[2]}
        found |= {
            "component": "scheduler" if ".scheduler." in record.name else "rank",
            "node": self.node,
            "local_rank": config.local_rank,
            "job": config.job_id,
            "attempt": config.attempt,
            "rank": config.rank,
        }
        step = self.step()
        if step is not None:
            found["step"] = step
        found["logger"] = record.name.rpartition(".")[2]
        return found

    def message(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" ({type(error).__name__}: {error})"
        return text

    def mask(self, text: str) -> str:
        """Return `text` without the job's token and the values of names that look like a secret."""
        return mask(text, self.secrets)


class TextFormatter(logging.Formatter):
    """One line for people and grep."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        f = self._context.fields(record)
        if "rank" not in f:
            device = f"/{f['device']}" if "device" in f else ""
            who = f"{f['component']} {f['node']}{device}"
            head = f"{f['ts']} {_LEVELS.get(f['level'], '?')} {who} {f['logger']}: "
            return head + self._rest(record)
        step = f" step={f['step']}" if "step" in f else ""
        who = f"{f['component']} {f['node']}:{f['local_rank']}"
        head = (
            f"{f['ts']} {_LEVELS.get(f['level'], '?')} {who} "
            f"job={f['job']}.{f['attempt']} rank={f['rank']}{step} {f['logger']}: "
        )
        return head + self._rest(record)

    def _rest(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {k}={_quoted(v)}" for k, v in _facts_of(record).items())
        return one_line(self._context.mask(self._context.message(record) + pairs))


class JsonFormatter(logging.Formatter):
    """One JSON object a line; extra facts under `kv`."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        mask = self._context.mask
        found = self._context.fields(record)
        found["msg"] = cut(mask(self._context.message(record)))
        given = _facts_of(record)
        if given:
            shown = json.loads(json.dumps(dict(given), default=str))
            found["kv"] = {k: _masked(mask, k, v) for k, v in shown.items()}
        return json.dumps(found)  # ASCII: no control character gets through


class RateLimit(logging.Filter):
    """A filter that lets LINES_PER_SECOND of one call site through; the next line says how many
    were left out.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._sites: dict[tuple[str, int], tuple[int, int]] = {}  # second, lines in it
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        key, second = (record.pathname, record.lineno), int(self._now())
        with self._lock:
            begun, count = self._sites.get(key, (second, 0))
            if begun == second:
                self._sites[key] = begun, count + 1
                return count < LINES_PER_SECOND
            self._sites[key] = second, 1
        left_out = count - LINES_PER_SECOND
        if left_out > 0:
            record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
            record.args = ()
        return True


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 cannot subscript it
    """A handler to the standard error of the moment: programs and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        return


def set_up(
    config: Config,
    step: Callable[[], int | None] = lambda: None,
    daemon: str = "",
    component: str = "",
) -> logging.Handler:
    """Makes the runtime's loggers write as `config` says. A second call replaces the first.

    Handlers that a program has given the logger "oneflow" itself are left alone.
    """
    root = logging.getLogger(ROOT)
    for old in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(old)
    context = Context(config, step, daemon, component)
    handler = _Stderr()
    handler.setFormatter(
        JsonFormatter(context) if config.log_format == "json" else TextFormatter(context)
    )
    handler.addFilter(RateLimit())
    root.addHandler(handler)
    root.setLevel(config.log_level)
    root.propagate = False
    return handler


def one_line(text: str) -> str:
    """Control characters spelled out, and not too long."""
    return cut(_CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), text))


def cut(text: str) -> str:
    if len(text) <= MAX_LINE_CHARS:
        return text
    return text[: MAX_LINE_CHARS - len(CUT_MARK)] + CUT_MARK


def _facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, "facts", {})
    return found


def _quoted(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=') else text


def _masked(mask: Callable[[str], str], key: str, value: object) -> object:
    """A value, or its mask if its name says that it is a secret."""
    if mask(f"{key}=x") != f"{key}=x":
        return MASK
    return mask(value) if isinstance(value, str) else value
