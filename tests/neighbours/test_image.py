"""The image of deploy/Dockerfile, built by buildah on a stand-in for its base, and a cluster in it.

The stand-in is Debian's own Python of the base's version, by debootstrap. It is kept with buildah's
storage below XDG_CACHE_HOME, so that a later run begins where an earlier one was ended.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneflow" / "neighbours"
BASE = "docker.io/library/python:3.11-slim-bookworm"
LIMIT_S = 900.0
OF_THIS_HOST = ("etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")  # how pip reaches the index

pytestmark = [
    pytest.mark.neighbour,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("buildah") and shutil.which("debootstrap")),
        reason="needs buildah and debootstrap, and root",
    ),
]


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


def buildah(*words: str) -> str:
    places = f"--root={CACHE}/storage", f"--runroot={CACHE}/run"
    return run("env", "BUILDAH_ISOLATION=chroot", "buildah", *places, *words)


def make_root() -> Path:
    """Return the stand-in's files."""
    root, partial = CACHE / "root", CACHE / "partial"
    if root.exists():
        return root
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with_python = "--include=python3,python3-pip,ca-certificates"
    # In a namespace of its own, which takes along what it mounts, such as /proc, if it is killed.
    words = ["debootstrap", "--variant=minbase", with_python, "bookworm", str(partial)]
    run("unshare", "--mount", *words)
    (partial / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    (partial / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()  # pip may install, as in the base
    for name in OF_THIS_HOST:
        if Path("/", name).exists():
            shutil.copy(Path("/", name), partial / name)
    partial.rename(root)
    return root


@pytest.fixture(scope="module")
def image() -> str:
    """The name of the image, which is built anew on a base that stays."""
    if BASE not in buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines():
        container = buildah("from", "scratch")
        buildah("copy", "--quiet", container, str(make_root()), "/")
        buildah("commit", "--quiet", "--rm", container, BASE)
    file = ROOT / "deploy" / "Dockerfile"
    words = ["--pull=never", "--format=docker", f"--ignorefile={file}.dockerignore", f"-f={file}"]
    buildah("bud", *words, "-t=oneflow-actors", str(ROOT))
    return "oneflow-actors"


def config(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(buildah("inspect", "--type=image", image))
    return dict(found["Docker"]["config"])


def test_the_image_says_how_it_is_run(image: str) -> None:
    found = config(image)
    assert (found["User"], found["Entrypoint"], found["Cmd"]) == (
        "1000:1000",
        ["oneflow"],
        ["--help"],
    )
    assert found["StopSignal"] == "SIGTERM"
    assert [*found["Volumes"]] == ["/var/lib/oneflow"]


SCENE = """
set -e
id -u
oneflow cluster up --daemons 2 --allow-scripts >&2
job=$(oneflow job submit --devices 2 -- python -c 'import oneflow as flow
print("rank", flow.env.get_rank(), "of", flow.env.get_world_size())')
oneflow job wait "$job" >&2
oneflow job logs "$job"
{health}
echo healthy
oneflow cluster down >&2
"""


def test_a_cluster_runs_a_job_in_the_image_as_an_ordinary_user(image: str) -> None:
    health = config(image)["Healthcheck"]["Test"]
    assert health[0] == "CMD"
    container = buildah("from", "--pull=never", image)
    try:
        told = buildah(
            "run", container, "--", "sh", "-c", SCENE.format(health=shlex.join(health[1:]))
        )
    finally:
        buildah("rm", container)
    lines = told.splitlines()
    assert (lines[0], lines[-1]) == ("1000", "healthy")
    assert "rank 0 of 2" in told
