"""Virtual environments with the packages that script jobs list, made once a list and node.

An environment sees the daemon's own packages behind those of its list. A process of its own makes
it (`python -m oneflow.launcher.daemon.environments FOLDER LIST`), since a daemon reaps all of its
children and would take pip's exit code away. Ranks hold a shared lock on the environment they use;
one that no rank has used for KEEP_S goes when the next is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import site
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

from oneflow.core.errors import ConfigError, JobSpecError
from oneflow.core.processes import own_mark
from oneflow.launcher.daemon.orphans import MARK

COMPLETE = "complete"
KEEP_S = 30 * 86400.0
LAST_LINES = 6
"""Lines of the output of pip that are shown as the cause of a job that cannot start."""


class Environment:
    """One environment in use. programs: the folder of its `python`."""

    def __init__(self, home: Path) -> None:
        """Raises OSError if it is not complete."""
        self.programs = str(home / "bin")
        self._lock = open(home / COMPLETE)  # noqa: SIM115 (held until `close`)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        os.utime(home / COMPLETE)  # fails if it was removed meanwhile

    def close(self) -> None:
        """Give it back; the next one that is made may take its room."""
        self._lock.close()


class Environments:
    """Those of a node, below `folder`. pids: of processes that make one."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.pids: set[int] = set()
        self._folder, self._env = folder, dict(env) | {MARK: own_mark()}

    async def get(self, listed: Path) -> Environment:
        """Return the environment of the packages in this file, which is named by its digest.

        Raises JobSpecError with pip's last lines if they cannot be installed, or OSError.
        """
        home = self._folder / _key(listed.name)
        with contextlib.suppress(FileNotFoundError):
            return await asyncio.to_thread(Environment, home)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        report = home.with_suffix(f".{os.getpid()}.log")
        try:
            await self._make(home, listed, report)
            return await asyncio.to_thread(Environment, home)
        except FileNotFoundError:
            lines = report.read_text(errors="replace").strip().splitlines()
            faults = [line for line in lines if line.startswith("ERROR: ")] or lines
            said = "; ".join(faults[-LAST_LINES:])
            raise JobSpecError(
                f"the packages of requirements cannot be installed: {said}"
            ) from None
        finally:
            report.unlink(missing_ok=True)

    async def _make(self, home: Path, listed: Path, report: Path) -> None:
        argv = [sys.executable, "-m", __name__, str(home), str(listed.absolute())]
        with open(report, "wb") as output:
            process = await asyncio.to_thread(
                subprocess.Popen,
                argv,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process.returncode = 0  # the daemon reaps it
        self.pids.add(process.pid)
        try:
            await _ended(process.pid)
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            self.pids.discard(process.pid)


async def _ended(pid: int) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _key(digest: str) -> str:
    """Name an environment by its list and by the Python whose packages it sees."""
    words = (digest, sys.version, sys.prefix, *_own_packages())
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def _own_packages() -> list[str]:
    """Return the folders of packages that the daemon's Python imports from."""
    found = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    return [folder for folder in found if os.path.isdir(folder)]


# -- in the process that makes one -----------------------------------------------------------------


def make(home: Path, listed: Path) -> None:
    """Make the environment unless it is complete. Raises ConfigError or CalledProcessError."""
    with _locked(home.with_suffix(".lock")):
        if (home / COMPLETE).exists():
            return
        sweep(home.parent)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, symlinks=True, with_pip=False)
        packages = next(home.glob("lib/python*/site-packages"))
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in _own_packages()]
        (packages / "daemon_packages.pth").write_text("".join(lines))
        python = str(home / "bin" / "python")
        subprocess.run([*_installer(python), "-r", str(listed)], check=True)
        (home / COMPLETE).touch(mode=0o600)


def _installer(python: str) -> list[str]:
    if subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0:
        return [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", python]
    raise ConfigError("this host has neither pip nor uv, one of which installs requirements")


def sweep(folder: Path) -> None:
    """Remove environments that have not been used for long and are in no rank's use."""
    for mark in folder.glob(f"*/{COMPLETE}"):
        with contextlib.suppress(OSError), open(mark) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.stat(mark).st_mtime > KEEP_S:
                mark.unlink()  # first: what is left is no environment any more
                shutil.rmtree(mark.parent, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]), Path(sys.argv[2]))
    except ConfigError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # pip or uv has said why
