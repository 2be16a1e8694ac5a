"""Folders of a service are its own, with other users on the machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from oneflow.cluster.settings import load_settings
from oneflow.core.errors import ConfigError
from oneflow.core.folders import make_state_dir, write_private
from oneflow.scheduler.jobs.tokens import token_from, write_token_file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "state"
    make_state_dir(folder, "jobs")
    assert [mode_of(p) for p in (folder, folder / "jobs")] == [0o700, 0o700]


def test_an_empty_folder_loses_what_others_might_do_to_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    make_state_dir(tmp_path, "jobs", "cache")
    assert mode_of(tmp_path) == 0o755  # an operator may have let others look
    (tmp_path / "jobs").chmod(0o755)
    make_state_dir(tmp_path, "jobs", "cache")
    assert mode_of(tmp_path / "jobs") == mode_of(tmp_path / "cache") == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_in_which_others_may_have_left_something_is_refused(
    tmp_path: Path, mode: int
) -> None:
    (tmp_path / "cluster.db").touch()
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*chmod go-w"):
        make_state_dir(tmp_path, "jobs")
    assert not (tmp_path / "jobs").exists()


def test_configuration_that_others_may_write_is_refused(tmp_path: Path) -> None:
    env = {"ONEFLOW_CONFIG_DIR": str(tmp_path)}
    (tmp_path / "config.toml").touch()
    write_token_file(tmp_path / "token", "secret-of-enough-characters")
    for mode in (0o755, 0o1777):  # the second of root's volumes: nobody can replace what is there
        tmp_path.chmod(mode)
        load_settings(env=env)
        assert token_from({}, tmp_path) == "secret-of-enough-characters"
    tmp_path.chmod(0o775)
    with pytest.raises(ConfigError, match=r"mode 0775.*chmod go-w"):
        load_settings(env=env)
    with pytest.raises(ConfigError, match=r"mode 0775.*chmod go-w"):
        token_from({}, tmp_path)
    assert token_from({"ONEFLOW_AUTH_TOKEN": "another-of-enough-characters"}, tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    for folder, part in ((tmp_path / "jobs", "x"), (tmp_path, "jobs")):
        with pytest.raises(ConfigError, match="cannot use the state directory"):
            make_state_dir(folder, part)


def test_what_lies_on_another_disk_is_private_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "jobs").symlink_to(tmp_path / "elsewhere")
    make_state_dir(tmp_path, "jobs")
    assert mode_of(tmp_path / "elsewhere") == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        make_state_dir(tmp_path)
    os.chown(tmp_path, 0, 0)
    (tmp_path / "jobs").symlink_to("/tmp")
    os.chown(tmp_path / "jobs", 12345, 12345, follow_symlinks=False)
    with pytest.raises(ConfigError, match="is another user's"):
        make_state_dir(tmp_path, "jobs")


def test_a_file_is_written_beside_a_trap(tmp_path: Path) -> None:
    """Somebody guessed under which name it is written at first, and put a link there."""
    victim, path = tmp_path / "victim", tmp_path / "cluster.json"
    victim.write_text("mine")
    (tmp_path / f".cluster.json.{os.getpid()}").symlink_to(victim)
    write_private(path, "text")
    assert (path.read_text(), victim.read_text(), mode_of(path)) == ("text", "mine", 0o600)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cluster.json", "victim"]
    with pytest.raises(ConfigError, match="cannot write"):
        write_private(tmp_path / "none" / "x", "text")
