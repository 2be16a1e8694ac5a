"""The table of neighbours: how each is installed, which tests run, and which claims stay
unproven.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN = "tests/neighbours"


@dataclass(frozen=True)
class Neighbour:
    """One program, or a family of programs, beside the cluster.

    Attributes:
        name: Name on the command line and in the table.
        ran: Acts of its tests, for the table.
        tests: Files of pytest.
        version: Command that prints the version.
        programs: Commands that must be there.
        debian: Packages that bring them.
        index: Requirements for pip, in an environment of the neighbour's own.
        unproven: Claims that no test here can show, for the table.
        time_limit_s: Time for all of its tests.
    """

    name: str
    ran: str
    tests: tuple[str, ...]
    version: tuple[str, ...]
    programs: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    unproven: str = ""
    time_limit_s: float = 1800.0

    @property
    def digest(self) -> str:
        """Digest of the tests."""
        texts = (ROOT / file for file in self.tests)
        return hashlib.sha256(b"".join(text.read_bytes() for text in texts)).hexdigest()[:16]


NEIGHBOURS = (
    Neighbour(
        name="prometheus",
        ran="`deploy/prometheus` as it is, scraping a cluster of two daemons: targets, each query "
        "of METRICS.md and each panel have data; all alerts quiet over ten jobs, and right in "
        "five failures",
        tests=(f"{OWN}/test_prometheus.py",),
        version=("prometheus", "--version"),
        programs=("prometheus", "promtool"),
        debian=("prometheus",),
        unproven="a running Grafana; panels of embeddings with data; Alertmanager",
    ),
    Neighbour(
        name="slurm",
        ran="two `slurmd` on one host, as root: the three scripts of `deploy/slurm` save at the "
        "signal, are queued again and go on; cancelled jobs stay so; exit codes; an array",
        tests=(f"{OWN}/test_slurm.py",),
        version=("slurmctld", "-V"),  # sbatch needs a configuration for that
        programs=("slurmctld", "slurmd", "munged", "sbatch"),
        debian=("slurmctld", "slurmd", "slurm-client", "munge"),
        unproven="several hosts, GPUs, `proctrack/cgroup`, an ordinary user's job",
    ),
    Neighbour(
        name="ray",
        ran="`cluster up --on`: two users' clusters on one Ray, a daemon and a scheduler that are "
        "killed, too little room, graph jobs and scripts",
        tests=(f"{OWN}/test_ray.py",),
        version=("python", "-c", "import ray; print(ray.__version__)"),
        index=("ray>=2.40",),
        unproven="several hosts, GPUs",
    ),
    Neighbour(
        name="kubernetes",
        ran="kubectl and the commands of `deploy/kubernetes/README.md` against kmock, a simulated "
        "API server: `base` and `gpu` arrive, again without change, and go; the secrets hold what "
        "pods mount and no key of the authority; `monitored` and the JobSet want their operators",
        tests=(f"{OWN}/test_kubernetes.py",),
        version=("python", "-c", "import importlib.metadata as m; print(m.version('kmock'))"),
        programs=("kubectl",),
        debian=("kubernetes-client",),
        index=("kmock>=0.8",),
        unproven="a real API server: admission, controllers, probes, network policies, volumes",
    ),
    Neighbour(
        name="chromium",
        ran="the web page with 0 to 500 jobs, narrow and wide, light and dark: focus, selection, "
        "keyboard, curves, plan, cancelling, and axe's rules of accessibility",
        tests=(f"{OWN}/test_page.py",),
        version=("chromium", "--version"),
        programs=("chromium",),
        debian=("chromium",),
        unproven="Firefox, Safari, screen readers",
    ),
    Neighbour(
        name="image",
        ran="buildah builds `deploy/Dockerfile` on a stand-in for its base (Debian 12 and its "
        "Python 3.11, by debootstrap); in it, as user 1000, a cluster begins, a script job runs "
        "on two devices, the health check answers, the cluster ends",
        tests=(f"{OWN}/test_image.py",),
        version=("buildah", "--version"),
        programs=("buildah", "debootstrap"),
        debian=("buildah", "debootstrap"),
        unproven="the image on its own base (`python:slim`), Docker, podman",
    ),
)
