"""The oneflow command."""

import json

import pytest
from click.testing import CliRunner

from oneflow import __version__
from oneflow.cli.main import cli


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_names_the_verbs(arguments):
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0
    assert "doctor" in result.output and "launch" in result.output


def test_version():
    assert __version__ in CliRunner().invoke(cli, ["--version"]).output


@pytest.mark.parametrize("arguments", [["doctor"], ["--doctor"]])
def test_doctor_prints_versions_and_devices(arguments):
    lines = CliRunner().invoke(cli, arguments).output.splitlines()
    assert lines[0] == f"oneflow-actors {__version__}"
    assert any(line.startswith("numpy ") for line in lines)
    assert any(line.startswith("cpu: ") for line in lines)


def test_an_unknown_verb_is_a_usage_error():
    result = CliRunner().invoke(cli, ["fly"])
    assert result.exit_code == 2
    assert "fly" in result.output


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["jobs"], "job"), (["clutser", "up"], "cluster"), (["job", "lst"], "list")],
)
def test_a_mistyped_verb_is_answered_with_the_one_that_was_meant(words, meant):
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.output


def test_errors_are_json_where_the_answer_would_be(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEFLOW_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ONEFLOW_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("ONEFLOW_SCHEDULER_ADDRESS", raising=False)
    done = CliRunner().invoke(cli, ["job", "get", "j1", "-o", "json"])
    error = json.loads(done.stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("ClusterUnreachableError", 69)
    assert "cluster up" in error["message"]
    assert done.stdout == ""
    assert done.exit_code == 69
    done = CliRunner().invoke(cli, ["job", "get", "j1"])
    assert done.stderr.startswith("oneflow: ")
    monkeypatch.setenv("ONEFLOW_CLIENT_OUTPUT", "json")
    done = CliRunner().invoke(cli, ["job", "get", "j1"])
    assert json.loads(done.stderr)["error"]["exit_code"] == 69
