"""The command of a script job's rank, and the device that it sees."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from oneflow.core.errors import ConfigError
from oneflow.launcher.rank_env import bootstrap_path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_PLAIN_OPTIONS = frozenset(("-u", "-O", "-OO", "-B", "-E", "-s", "-v", "-q"))


def command(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> list[str]:
    """argv as it is, but that a Python script is run through the launcher's bootstrap, which
    records what ended it.

    Raises ConfigError if there is no such program.
    """
    if not argv:
        raise ConfigError("the job has no command to run")
    program = _find(argv[0], env, cwd)
    if not _PYTHON.fullmatch(os.path.basename(argv[0])):
        return [program, *argv[1:]]
    at = 1
    while at < len(argv) and argv[at] in _PLAIN_OPTIONS:
        at += 1
    is_script = at < len(argv) and (not argv[at].startswith("-") or argv[at] == "-m")
    if not is_script or at + (argv[at] == "-m") >= len(argv):
        return [program, *argv[1:]]
    return [program, *argv[1:at], str(bootstrap_path()), *argv[at:]]


def program_env(env: Mapping[str, str]) -> dict[str, str]:
    """`python` is the one that runs the daemon, and what it prints is seen at once."""
    found = dict(env)
    folders = [os.path.dirname(sys.executable), env.get("PATH") or os.defpath]
    found["PATH"] = os.pathsep.join(folders)
    found.setdefault("PYTHONUNBUFFERED", "1")
    return found


def device_env(
    device_type: str, device_index: int, local_rank: int, env: Mapping[str, str]
) -> dict[str, str]:
    """Makes the daemon's GPU the one that its rank finds under the number LOCAL_RANK.

    The others before it are there only to take their numbers; on a cpu no GPU is shown.
    """
    if device_type != "cuda":
        return {VISIBLE: ""}
    given = [word for word in env.get(VISIBLE, "").split(",") if word]
    if given and device_index >= len(given):
        raise ConfigError(f"cuda:{device_index} is not among {VISIBLE}={env[VISIBLE]}")
    names = given or [str(number) for number in range(max(local_rank, device_index) + 1)]
    own = names[device_index]
    others = [name for name in names if name != own]
    return {VISIBLE: ",".join([*others[:local_rank], own])}


def _find(program: str, env: Mapping[str, str], cwd: Path) -> str:
    if "/" in program:
        found = cwd / program
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return str(found)
        if os.path.exists(found):
            is_folder = os.path.isdir(found)
            what = "a folder" if is_folder else "not executable: chmod +x, or name what runs it"
            raise ConfigError(f"cannot run {program!r}: it is {what}")
    elif path := shutil.which(program, path=env.get("PATH")):
        return path
    raise ConfigError(f"cannot run {program!r}: there is no such program on this host")
