"""Reactions of a client to a scheduler's errors, and how often it asks again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.cluster import connection as module
from oneflow.cluster.connection import (
    Connection,
    GoneError,
    NotNowError,
    Patience,
    Retries,
    StoreTroubleError,
    error_of,
)
from oneflow.core.errors import (
    AuthError,
    ClusterRequestError,
    ClusterUnreachableError,
    ConfigError,
    InternalError,
    JobSpecError,
)
from oneflow.scheduler.cluster import tls


@pytest.mark.parametrize(
    ("code", "name", "kind", "exit_code"),
    [
        ("UNAVAILABLE", "", ClusterUnreachableError, 69),
        ("UNAVAILABLE", "UnavailableError", NotNowError, 69),
        ("UNAVAILABLE", "StoreError", StoreTroubleError, 69),
        ("CANCELLED", "", ClusterUnreachableError, 69),
        ("DEADLINE_EXCEEDED", "", ClusterUnreachableError, 69),
        ("UNAUTHENTICATED", "AuthError", AuthError, 77),
        ("PERMISSION_DENIED", "DeniedError", AuthError, 77),
        ("INVALID_ARGUMENT", "JobSpecError", JobSpecError, 64),
        ("INVALID_ARGUMENT", "ConfigError", ConfigError, 78),
        ("INVALID_ARGUMENT", "ProtocolError", ClusterRequestError, 64),
        ("NOT_FOUND", "NotFoundError", GoneError, 64),
        ("ALREADY_EXISTS", "ExistsError", ClusterRequestError, 64),
        ("RESOURCE_EXHAUSTED", "ExhaustedError", ClusterRequestError, 64),
        ("UNIMPLEMENTED", "", ClusterRequestError, 64),
        ("INTERNAL", "InternalError", InternalError, 70),
        ("UNKNOWN", "", InternalError, 70),
    ],
)
def test_every_status_is_an_error_of_ours(code: str, name: str, kind: type, exit_code: int) -> None:
    found = error_of(code, name, "the text", "host:1")
    assert type(found) is kind
    assert found.exit_code == exit_code


def test_a_limit_that_will_be_over_soon_is_waited_for() -> None:
    found = error_of("RESOURCE_EXHAUSTED", "ExhaustedError", "x; try again in 50 ms", "host:1")
    assert isinstance(found, NotNowError)


class Flaky(Connection):
    """Fails as often as told, then answers."""

    def __init__(self, failures: int, **patience: float) -> None:
        super().__init__("host:1", lambda: None, patience=Patience(**patience))
        self.failures, self.tries = failures, 0

    def _call(self, service: str, method: str, make_request: Any, timeout_s: float) -> Any:
        self.tries += 1
        if self.tries <= self.failures:
            raise ClusterUnreachableError("away")
        return "answer"


def test_a_scheduler_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    flaky = Flaky(5, connect_s=60.0)
    assert flaky.call("Jobs", "Get", None) == "answer"
    assert flaky.tries == 6


def test_a_full_disk_is_said_at_once() -> None:
    """Only an operator can mend it: nobody is kept waiting for that without a word."""
    script = Script(error_of("UNAVAILABLE", "StoreError", "no room for 5 bytes", "host:1"), "done")
    with pytest.raises(StoreTroubleError, match=r"no room for 5 bytes.*operator") as caught:
        script.call("Jobs", "Submit", None)
    assert isinstance(caught.value, NotNowError)
    assert script.call("Jobs", "Submit", None) == "done"


def test_patience_ends() -> None:
    flaky = Flaky(10**9, connect_s=0.0)
    with pytest.raises(ClusterUnreachableError, match="away"):
        flaky.call("Jobs", "Get", None)
    assert flaky.tries == 1


def test_an_answer_renews_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    retries = Retries(10.0)
    clock[0] = 9.0
    retries.pause(ClusterUnreachableError("away"))
    retries.answered()
    clock[0] = 18.0
    retries.pause(ClusterUnreachableError("away"))
    clock[0] = 25.0
    retries.pause(ClusterUnreachableError("away"))
    clock[0] = 28.5
    with pytest.raises(ClusterUnreachableError):
        retries.pause(ClusterUnreachableError("away"))


@pytest.mark.parametrize("address", ["192.0.2.1:9400", "[2001:db8::1]:9400", "0.0.0.0:9400"])
def test_a_token_is_not_sent_in_the_clear_to_another_machine(address: str) -> None:
    connection = Connection(address, lambda: "oft_" + "x" * 43, None, Patience(0.0, 0.0))
    with pytest.raises(ConfigError, match=r"without TLS .* ONEFLOW_CLIENT_TLS_DIR"):
        connection.call("Cluster", "Status", None)


class Script(Connection):
    """Answers as written: an error, or anything else."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("host:1", lambda: None, patience=Patience(5.0, 5.0))
        self.answers = list(answers)

    def _call(self, service: str, method: str, make_request: Any, timeout_s: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


LOST = ClusterUnreachableError("no scheduler answers at host:1 (Socket closed)")
UNSENT = ClusterUnreachableError("no scheduler answers (failed to connect to all addresses)")
GONE = GoneError("there is no job j1")


@pytest.mark.parametrize("method", ["Restart", "CreateToken", "RotateToken"])
def test_what_may_be_done_already_is_not_done_again(method: str) -> None:
    connection = Script(LOST, "done")
    with pytest.raises(ClusterUnreachableError, match=f"not known whether {method} was done"):
        connection.call("Jobs", method, None)
    assert Script(UNSENT, "done").call("Jobs", method, None) == "done"
    assert Script(NotNowError("asked too often"), "done").call("Jobs", method, None) == "done"


@pytest.mark.parametrize("method", ["Remove", "RevokeToken"])
def test_what_is_gone_after_a_lost_answer_was_removed(method: str) -> None:
    assert Script(LOST, GONE).call("Jobs", method, None).ByteSize() == 0
    for answers in ((GONE,), (UNSENT, GONE)):
        with pytest.raises(GoneError):
            Script(*answers).call("Jobs", method, None)


def test_what_is_gone_is_an_error_of_all_other_calls() -> None:
    with pytest.raises(GoneError):
        Script(LOST, GONE).call("Jobs", "Get", None)


@pytest.mark.parametrize("code", ["UNKNOWN", "INTERNAL"])
def test_rubbish_on_the_line_is_a_broken_line(code: str) -> None:
    text = "Stream removed (Unwrap failed (TSI_DATA_CORRUPTED))"
    assert type(error_of(code, "", text, "host:1")) is ClusterUnreachableError
    assert type(error_of(code, "InternalError", text, "host:1")) is InternalError


def test_a_socket_whose_folder_is_gone_is_nobody_who_answers(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'gone' / 'scheduler.sock'}"
    connection = Connection(address, lambda: "t" * 32, patience=Patience(0.0, 0.0))
    with pytest.raises(ClusterUnreachableError, match=r"no scheduler answers .*No such file"):
        connection.call("Cluster", "Status", None)


def test_who_shows_a_bad_certificate_is_not_believed_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the words of gRPC, and without the advice to start a scheduler."""
    why = "its certificate is refused: self-signed certificate"
    monkeypatch.setattr(tls, "why_refused", lambda host, port, folder: why)
    connection = Connection("host:1", lambda: None, tmp_path, Patience(0.0, 0.0))
    said = connection._translated(Handshake())
    assert type(said) is ClusterUnreachableError
    assert str(said).startswith(f"the scheduler at host:1 is not believed: {why}; ")
    assert str(tmp_path / "ca.crt") in str(said) and "SSL" not in str(said)


class Handshake:
    """The error that gRPC gives for a certificate that it does not believe."""

    def code(self) -> Any:
        return SimpleNamespace(name="UNAVAILABLE")

    def details(self) -> str:
        return "ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: ..."

    def trailing_metadata(self) -> tuple[Any, ...]:
        return ()
