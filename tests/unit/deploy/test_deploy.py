"""Files of deploy/ parse, agree with the code, and their schemas fit."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from oneflow.cli.main import cli
from oneflow.core.metrics import METRICS
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.metrics import make_registry as make_scheduler_registry
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.metrics_page import make_registry as make_rank_registry

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
METRIC = re.compile(r"\boneflow_[a-z0-9_]+")


# ---- metrics -------------------------------------------------------------------------------------


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Labels of every series that a scheduler, a daemon or a rank may show."""
    monkeypatch.setattr(DAEMON, "node", "n1")
    scheduler = make_scheduler_registry(ClusterMetrics(tmp_path / "cluster.db"))
    found: set[str] = set()
    for registry in (scheduler, make_rank_registry(METRICS, "daemon")):
        for family in registry.collect():
            found |= _series(family.name, family.type)
    return found


def _series(name: str, kind: str) -> set[str]:
    if kind == "counter":
        return {f"{name}_total"}
    if kind == "histogram":
        return {f"{name}_{part}" for part in ("bucket", "count", "sum")}
    return {name}


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """(where it is, the expression) of all dashboards and rules."""
    for path in DASHBOARDS:
        loaded = json.loads(path.read_text())
        for panel in loaded["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in loaded["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: variable {variable['name']}", variable["definition"]
    for rule in rules():
        yield f"rules.yml: {rule['alert']}", rule["expr"]


def test_every_metric_that_is_used_exists(names: set[str]) -> None:
    used = 0
    for where, expression in queries():
        for metric in METRIC.findall(expression):
            used += 1
            assert metric in names, f"{where} uses {metric}, which nobody shows"
    assert used > 60


def test_every_query_parses() -> None:
    import promql_parser as parser

    for where, expression in queries():
        text = expression.replace("$__rate_interval", "1m")
        text = re.sub(r"\$(job|instance)", ".*", text)
        if text.startswith("label_values("):
            text = text[len("label_values(") :].partition(",")[0]
        try:
            parser.parse(text)
        except ValueError as error:
            pytest.fail(f"{where}: {error}: {text}")


def test_rules_are_whole() -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"]
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_dashboards_are_as_their_table_says() -> None:
    spec = importlib.util.spec_from_file_location("make", DEPLOY / "grafana" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["make"] = make
    try:
        spec.loader.exec_module(make)
        assert {path.stem for path in DASHBOARDS} == set(make.DASHBOARDS)
        for path in DASHBOARDS:
            assert path.read_text() == make.as_text(path.stem), "run deploy/grafana/make.py"
    finally:
        del sys.modules["make"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_takes_any_data_source(path: Path) -> None:
    loaded = json.loads(path.read_text())
    assert loaded["templating"]["list"][0]["type"] == "datasource"
    sources = re.findall(r'"uid": "([^"]*)"', path.read_text())
    assert set(sources) == {"${datasource}", f"oneflow-{path.stem}"}
    cells = {(x, y) for p in loaded["panels"] for x, y in _cells(p["gridPos"])}
    assert len(cells) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in loaded["panels"])


def _cells(grid: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert grid["x"] + grid["w"] <= 24
    for x in range(grid["x"], grid["x"] + grid["w"]):
        for y in range(grid["y"], grid["y"] + grid["h"]):
            yield x, y


# ---- Kubernetes ----------------------------------------------------------------------------------


def resources() -> list[dict[str, Any]]:
    found = [r for path in MANIFESTS for r in yaml.safe_load_all(path.read_text())]
    return [r for r in found if r["kind"] != "Kustomization"]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name of the workload, its pod's spec, container)."""
    for resource in resources():
        if resource["kind"] in ("Deployment", "StatefulSet"):
            pod = resource["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield resource["metadata"]["name"], pod, container


def test_manifests_fit_the_schema_of_kubernetes() -> None:
    import kubernetes_validate as checker

    checked = 0
    for resource in resources():
        if resource["kind"] in (
            "PodMonitor",
            "Component",
        ):  # of an operator or kustomize, not of Kubernetes itself
            continue
        if resource["kind"] == "JobSet":
            jobs = [job["template"] for job in resource["spec"]["replicatedJobs"]]
            for job in jobs:
                whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}} | job
                checker.validate(whole, "1.31", strict=True)
            continue
        checker.validate(resource, "1.31", strict=True)
        checked += 1
    assert checked >= 9


def test_the_pod_monitor_names_what_there_is() -> None:
    (monitor,) = [r for r in resources() if r["kind"] == "PodMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    ports = {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]}
    (match,) = monitor["spec"]["selector"]["matchExpressions"]
    assert set(match["values"]) == {name for name, _, _ in containers()}
    for _, _, container in containers():
        assert ports <= {port["name"] for port in container["ports"]}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("name", ["base", "gpu", "monitored"])
def test_kustomize_builds(name: str) -> None:
    folder = DEPLOY / "kubernetes" / name
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    # Without the operator that knows them, such objects end the whole `kubectl apply`.
    foreign = {r["kind"] for r in built if r["apiVersion"].startswith("monitoring.coreos.com")}
    assert foreign == ({"PodMonitor"} if name == "monitored" else set())
    assert {r["metadata"].get("namespace", "oneflow") for r in built} == {"oneflow"}
    (daemon,) = [r for r in built if r["kind"] == "StatefulSet"]
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
    device = {e["name"]: e.get("value") for e in container["env"]}["ONEFLOW_DEVICE"]
    assert (has_gpu, device) == ((True, "cuda:0") if name == "gpu" else (False, "cpu:0"))


def test_the_authoritys_key_is_put_away_before_the_secret_is_made() -> None:
    lines = (DEPLOY / "kubernetes" / "README.md").read_text().splitlines()
    block = lines[lines.index("```") + 1 :]
    away = next(n for n, line in enumerate(block) if line.startswith("mv tls/ca.key"))
    assert away < next(n for n, line in enumerate(block) if "--from-file=tls" in line)


def test_every_kustomization_lists_its_files() -> None:
    for path in (DEPLOY / "kubernetes").rglob("kustomization.yaml"):
        loaded = yaml.safe_load(path.read_text())
        for name in loaded["resources"]:
            assert (path.parent / name).exists()
        own = {p.name for p in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert own <= set(loaded["resources"])


def test_pods_run_with_few_rights() -> None:
    for _, pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"] is True
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"]["drop"] == ["ALL"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        templates = {"state"}  # of the claims
        assert mounted <= {volume["name"] for volume in pod["volumes"]} | templates


# ---- commands ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """(where it is, words after `oneflow`) of everything in deploy/ that is started."""
    for name, _, container in containers():
        yield f"kubernetes: {name}", container["args"]
        yield f"kubernetes: probe of {name}", container["readinessProbe"]["exec"]["command"][1:]
    for path in (DEPLOY / "systemd").glob("*.service"):
        yield path.name, _unit(path)["Service"]["ExecStart"].split()[2:]
    text = (DEPLOY / "slurm" / "oneflow.sbatch").read_text().replace("\\\n", " ")
    for found in re.findall(
        r"^\s*\(?oneflow ((?:job|cluster|scheduler|daemon) [^|>&)]*)", text, re.M
    ):
        yield "slurm", found.replace('"$@"', "").split()


def test_every_command_and_option_exists() -> None:
    checked = 0
    for where, words in commands():
        command: click.Command = cli
        words = list(words)
        while isinstance(command, click.Group):
            verb = words.pop(0)
            found = command.get_command(click.Context(command), verb)
            assert found is not None, f"{where}: there is no verb {verb}"
            command = found
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for word in words:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{where}: {word}"
                checked += 1
    assert checked > 30


def _unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


@pytest.mark.parametrize(
    "path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda p: p.name
)
def test_a_unit_says_when_it_is_ready(path: Path) -> None:
    service = _unit(path)["Service"]
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) >= 10
    assert service["NoNewPrivileges"] == "yes"
    assert service["User"] == "oneflow"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_units_are_accepted_by_systemd() -> None:
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "oneflow" in line]
    assert done.returncode == 0, said
    assert said == []


def test_the_slurm_script_is_bash_and_asks_for_a_signal() -> None:
    path = DEPLOY / "slurm" / "oneflow.sbatch"
    text = path.read_text()
    assert "#SBATCH --requeue" in text
    assert "#SBATCH --signal=B:TERM@" in text
    if shutil.which("bash"):
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_image_copies_what_there_is() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text()
    kept = [line[1:] for line in ignore.splitlines() if line.startswith("!")]
    for name in kept:
        assert (ROOT / name).exists(), name
    linked = [path.name for path in (ROOT / "oneflow").iterdir() if path.is_symlink()]
    assert set(linked) <= set(kept)
    lines = [
        line.split()[0]
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line[:1].isupper()
    ]
    assert lines.count("FROM") == 2
    assert {"USER", "ENTRYPOINT", "STOPSIGNAL"} <= set(lines)
