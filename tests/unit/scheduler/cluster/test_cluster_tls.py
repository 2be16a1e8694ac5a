"""Certificates that nobody would accept are refused in words, with their dates."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError
from oneflow.scheduler.cluster.certificates import init_tls
from oneflow.scheduler.cluster.settings import TlsFiles
from oneflow.scheduler.cluster.tls import (
    ServerTls,
    channel_credentials,
    check_files,
    why_refused,
)
from tests.support.waiting import CALL_S

TODAY = datetime.datetime.now(datetime.timezone.utc)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good; expired, of the same authority; strange, of another one."""
    base = tmp_path_factory.mktemp("tls")
    init_tls(base / "good")
    shutil.copytree(base / "good", base / "expired")
    init_tls(base / "expired", days=-3)
    init_tls(base / "strange")
    return base


def test_keys_are_for_their_owner_only(folder: Path) -> None:
    for path in (folder / "good").iterdir():
        wanted = 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_what_has_expired_is_said_with_its_date(folder: Path) -> None:
    day = f"{TODAY - datetime.timedelta(days=3):%Y-%m-%d}"
    with pytest.raises(ConfigError, match=f"client.crt expired on {day} .* UTC; renew it"):
        channel_credentials(folder / "expired", "client")
    with pytest.raises(ConfigError, match=f"scheduler.crt expired on {day}"):
        ServerTls(TlsFiles.in_folder(folder / "expired")).credentials()
    channel_credentials(folder / "good", "daemon")


def test_files_that_do_not_fit_are_named(folder: Path, tmp_path: Path) -> None:
    good, strange = folder / "good", folder / "strange"
    with pytest.raises(ConfigError, match="cannot be used together"):
        check_files(good / "ca.crt", good / "client.crt", strange / "client.key")
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nnone\n")
    with pytest.raises(ConfigError, match="not at all"):
        check_files(tmp_path / "ca.crt", good / "client.crt", good / "client.key")
    with pytest.raises(ConfigError, match="`oneflow cluster init-tls` makes it"):
        check_files(tmp_path / "none.crt", good / "client.crt", good / "client.key")


def test_a_renewal_that_is_half_done_is_waited_for(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "tls"
    shutil.copytree(folder / "good", mine)
    tls = ServerTls(TlsFiles.in_folder(mine))
    assert tls._renewed() is None
    shutil.copy(folder / "strange" / "scheduler.key", mine)
    assert tls._renewed() is None  # the old ones go on
    shutil.copy(folder / "strange" / "scheduler.crt", mine)
    assert tls._renewed() is not None
    assert tls._renewed() is None
    shutil.copy(folder / "expired" / "scheduler.crt", mine)
    shutil.copy(folder / "expired" / "scheduler.key", mine)
    assert tls._renewed() is None


@pytest.mark.parametrize(
    ("shown", "part", "said"),
    [
        ("expired", "scheduler", "certificate has expired"),
        ("strange", "scheduler", "unable to get local issuer certificate"),
        ("good", "daemon", "purpose"),  # a host of the cluster that plays the scheduler
        ("good", "scheduler", ""),
    ],
)
def test_why_a_scheduler_is_not_believed(folder: Path, shown: str, part: str, said: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / shown / f"{part}.crt", folder / shown / f"{part}.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2 if said else 1):
                line, _ = listener.accept()
                try:
                    context.wrap_socket(line, server_side=True).close()
                except OSError:
                    line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        why = why_refused("127.0.0.1", port, folder / "good")
        thread.join(CALL_S)
    assert said in why
    assert ("valid from" in why and "UTC" in why) == bool(said)


def test_nobody_there_is_no_reason(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert why_refused("127.0.0.1", port, folder / "good") == ""
