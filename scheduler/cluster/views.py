"""Records of jobs as a caller may see them: found, filtered, and without others' secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import caller
from oneflow.scheduler.cluster.driver import by_id
from oneflow.scheduler.jobs.records import REASONS, JobRecord, JobState
from oneflow.scheduler.jobs.specs import record_to_proto

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

FILTERS = ("state", "name", "owner", "kind", "reason", "device_type", "array", "queue")
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_FILTER_CHARS = 1024


class Views:
    """Shows jobs to the caller of the call that is being answered."""

    def __init__(self, state: State) -> None:
        self._state = state

    def shown(self, record: JobRecord) -> pb.JobRecord:
        """Return the record as this caller may see it: others' commands and environments may hold
        their secrets.
        """
        state, message, who = self._state, record_to_proto(record), caller()
        if not who.is_admin and who.name != record.owner:
            for name in message.spec.env:
                message.spec.env[name] = HIDDEN
            message.spec.argv[:] = masked_words(record.spec.argv)
        if note := self.pending(record):
            message.pending = note
        message.eta_s = state.paces.eta_s(record)
        for w in state.points.waits.of(record.id):
            message.waits.add(rank=w.rank, waiting=w.waiting, shares=w.shares)
        return message

    def pending(self, record: JobRecord) -> str:
        """Return the cause of a wait besides its turn: a full disk, or the compiler."""
        trouble = "" if record.state.is_final else self._state.driver.trouble
        return trouble or self._state.plans.progress(record)

    def page(self, request: pb.ListRequest) -> pb.ListReply:
        """The newest jobs that fit the filters, from the cursor on. Raises ProtocolError."""
        wanted = _filters(request.filters)
        limit = min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)
        after = _parse_cursor(request.cursor)
        found = []
        for record in by_id(self._state.driver.jobs):
            if after is not None and (record.submitted_at, record.id) >= after:
                continue
            if _matches(record, wanted):
                found.append(record)
                if len(found) > limit:
                    break
        cursor = _cursor(found[limit - 1]) if len(found) > limit else ""
        return pb.ListReply(jobs=[self.shown(record) for record in found[:limit]], cursor=cursor)


# ---- lists ---------------------------------------------------------------------------------------


def _filters(given: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """name -> values of which a job must have one. Raises ProtocolError."""
    for key, value in given.items():
        if key not in FILTERS:
            raise ProtocolError(f"filter {key[:40]!r}: must be one of {', '.join(FILTERS)}")
        if len(value) > MAX_FILTER_CHARS:
            raise ProtocolError(f"filter {key}: too long")
    wanted = {key: frozenset(value.split(",")) for key, value in given.items()}
    if "state" in wanted:
        wanted["state"] = _known("state", wanted["state"], [state.value for state in JobState])
    if "reason" in wanted:
        wanted["reason"] = _known("reason", wanted["reason"], REASONS)
    return wanted


def _known(key: str, given: frozenset[str], there_are: Sequence[str]) -> frozenset[str]:
    values = frozenset(value.upper() for value in given)
    unknown = sorted(values - set(there_are))
    if unknown:
        raise ProtocolError(
            f"filter {key}={unknown[0][:40]}: must be one of {', '.join(there_are)}"
        )
    return values


def _matches(record: JobRecord, wanted: Mapping[str, frozenset[str]]) -> bool:
    spec = record.spec
    facts = {
        "state": record.state.value,
        "name": spec.name,
        "owner": record.owner,
        "kind": spec.kind.value,
        "reason": record.reason,
        "device_type": spec.device_type,
        "array": spec.array,
        "queue": record.queue,
    }
    return all(facts[key] in values for key, values in wanted.items())


def _cursor(record: JobRecord) -> str:
    return base64.urlsafe_b64encode(f"{record.submitted_at!r}/{record.id}".encode()).decode()


def _parse_cursor(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    try:
        at, _, job_id = base64.urlsafe_b64decode(text[:400]).decode().partition("/")
        return float(at), job_id
    except ValueError:
        raise ProtocolError("that is no cursor of a list of jobs") from None


# ---- secrets in commands -------------------------------------------------------------------------


HIDDEN = "***"
MAX_WORD_CHARS = 4096  # of a longer word the rest is hidden, whatever it is
MAX_NAME_CHARS = 256
_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "credential", "credentials")
_KEYS = ("key", "apikey", "accesskey", "secretkey", "privatekey")
_PARTS = re.compile(r"[-_.]+")
_URL = re.compile(r"(://[^/\s:@]{0,256}:)[^/\s@]{1,1024}@")
_KNOWN = re.compile(  # secrets that say themselves what they are
    r"\b(?:oft_|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[baprs]-|AKIA)[\w-]{8,}|"
    r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*",
    re.DOTALL,
)


def masked_words(argv: Iterable[str]) -> list[str]:
    """The words of a command; the value after a flag that is named like a secret goes too."""
    found: list[str] = []
    hides_next = False
    for word in argv:
        is_value = hides_next and not word.startswith("--")
        found.append(HIDDEN if is_value else masked(word))
        hides_next = not is_value and word.startswith("-") and is_secret_name(word)
    return found


def masked(word: str) -> str:
    """One word, without the secret in it."""
    if len(word) > MAX_WORD_CHARS:
        word = word[:MAX_WORD_CHARS] + HIDDEN
    name, equals, _ = word.partition("=")
    if equals and is_secret_name(name):
        return f"{name}={HIDDEN}"
    return _KNOWN.sub(HIDDEN, _URL.sub(rf"\g<1>{HIDDEN}@", word))


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name most likely holds a secret."""
    parts = _PARTS.split(name[:MAX_NAME_CHARS].lower())
    return any(part.endswith(_ENDINGS) or part in _KEYS for part in parts)
