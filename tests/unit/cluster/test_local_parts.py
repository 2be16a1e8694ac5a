"""The parts of a local cluster that need no process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oneflow.cluster.cluster_spec import local_wish
from oneflow.cluster.local import ClusterSpec, _free_address, _like, start
from oneflow.cluster.local_record import (
    LocalCluster,
    Process,
    folder,
    process_of,
    read_record,
    remove_record,
    write_record,
)
from oneflow.cluster.local_tokens import prepare_tokens
from oneflow.core.errors import AuthError, ConfigError
from oneflow.scheduler.cluster.audit import AUDIT_FILE
from oneflow.scheduler.cluster.auth import Tokens
from oneflow.scheduler.jobs.store import SqliteStore
from oneflow.scheduler.jobs.tokens import read_token_file, write_token_file


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_no_connection_can_take_the_schedulers_port_before_it(host: str) -> None:
    """The kernel gives one to a process that connects, and daemons do while nobody listens yet."""
    ports = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    found, _, port = _free_address(f"{host}:0").rpartition(":")
    assert found == host
    assert int(port) < int(ports[0])
    assert _free_address(f"{host}:9400") == f"{host}:9400"
    with pytest.raises(ConfigError, match="cannot listen on 192"):
        _free_address("192.0.2.1:0")


def test_the_record_comes_back(tmp_path: Path) -> None:
    folder(tmp_path).mkdir()
    assert read_record(tmp_path) is None
    own = process_of("scheduler", os.getpid())
    record = LocalCluster("127.0.0.1:7", (own, Process("cpu:0", 1 << 22, 0)), allow_scripts=True)
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record
    assert own.is_alive
    assert not record.is_whole
    mode = (folder(tmp_path) / "cluster.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    remove_record(tmp_path)
    assert read_record(tmp_path) is None


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    folder(tmp_path).mkdir()
    (folder(tmp_path) / "cluster.json").write_text('{"address": 3}')
    with pytest.raises(ConfigError, match="damaged"):
        read_record(tmp_path)


def test_a_process_that_ended_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = process_of("x", child.pid)
    assert found.is_alive
    child.kill()
    while found.is_alive:  # dead, but not waited for: a zombie
        pass
    child.communicate()
    assert not found.is_alive
    assert not Process("x", os.getpid(), 1).is_alive  # another one had this pid


def test_tokens_are_made_once_and_kept(tmp_path: Path) -> None:
    base, config = tmp_path / "local", tmp_path / "config"
    write_token_file(config / "token", "of-another-cluster-already")
    prepare_tokens(base, config)
    prepare_tokens(base, config)
    assert read_token_file(config / "token") == "of-another-cluster-already"
    store = SqliteStore(base / "scheduler" / "cluster.db")
    tokens = store.tokens()
    store.close()
    assert sorted(token.role for token in tokens) == ["admin", "daemon"]
    assert Tokens(tokens, lambda: 0.0).of_secret("of-another-cluster-already").role == "admin"
    daemon = base / "daemon.token"
    assert stat.S_IMODE(daemon.stat().st_mode) == 0o600
    assert Tokens(tokens, lambda: 0.0).of_secret(read_token_file(daemon)).role == "daemon"


def test_a_replaced_token_goes(tmp_path: Path) -> None:
    """One that is deleted, or given anew, makes the one before it worth nothing."""
    base, config = tmp_path / "local", tmp_path / "config"
    prepare_tokens(base, config)
    before = read_token_file(config / "token"), read_token_file(base / "daemon.token")
    (config / "token").unlink()
    (base / "daemon.token").unlink()
    prepare_tokens(base, config)
    store = SqliteStore(base / "scheduler" / "cluster.db")
    tokens = store.tokens()
    store.close()
    assert sorted(token.name for token in tokens) == ["local", "local-daemons"]
    assert Tokens(tokens, lambda: 0.0).of_secret(read_token_file(config / "token")).role == "admin"
    for secret in before:
        with pytest.raises(AuthError):
            Tokens(tokens, lambda: 0.0).of_secret(secret)
    notes = (base / "scheduler" / AUDIT_FILE).read_text().splitlines()
    assert sum('"token_revoke"' in line for line in notes) == 2


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config"
    prepare_tokens(tmp_path / "local", config)
    config.chmod(0o777)
    with pytest.raises(ConfigError, match=r"others may write to .*chmod go-w"):
        prepare_tokens(tmp_path / "local", config)


def test_a_state_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(state))
    with pytest.raises(ConfigError, match=rf"others may write to {state} .*chmod go-w"):
        start(ClusterSpec(devices=("cpu:0",)))
    assert not [path.name for path in state.glob("*/*") if path.name != "lock"]


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_token_file(tmp_path / "token", "of-another-cluster-already")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        prepare_tokens(tmp_path / "local", tmp_path)


def test_what_up_shall_start() -> None:
    wish = local_wish({"local.daemons": 3, "local.device_type": "cpu"})
    assert wish.devices == ("cpu:0", "cpu:1", "cpu:2")
    assert wish.allow_scripts is None
    with pytest.raises(ConfigError, match="this machine only"):
        local_wish({"scheduler.listen": "0.0.0.0:0"})
    with pytest.raises(ConfigError, match="GPUs"):
        local_wish({"local.daemons": 200, "local.device_type": "cuda"})


def test_what_runs_has_the_devices_that_were_asked_for() -> None:
    own = process_of("scheduler", os.getpid())
    old = LocalCluster("127.0.0.1:7", (own, replace(own, name="cpu:0")))
    for fits in (ClusterSpec(("cpu:0", "cpu:1")), ClusterSpec((), num_asked=1, type_asked="cpu")):
        assert _like(old, fits).devices == fits.devices
    with pytest.raises(ConfigError, match=r"with 1 daemon \(cpu:0\), not --daemons 2: end it"):
        _like(old, ClusterSpec((), num_asked=2))
    with pytest.raises(ConfigError, match="not --device-type cuda: end it"):
        _like(old, ClusterSpec((), type_asked="cuda"))
    remote = LocalCluster("127.0.0.1:7", (own,), ray="auto", num_remote=4)
    assert _like(remote, ClusterSpec((), num_asked=4, type_asked="cuda"))
    with pytest.raises(ConfigError, match=r"with 4 daemons \(on auto\), not --daemons 2"):
        _like(remote, ClusterSpec((), num_asked=2))
    assert local_wish({"local.daemons": 3}).num_asked == 3
    assert local_wish({}).num_asked == 0


def test_a_folder_of_data_must_be_there(tmp_path: Path) -> None:
    wish = ClusterSpec(("cpu:0",), daemon_flags=("--data-root", str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="no such folder"):
        start(wish)
