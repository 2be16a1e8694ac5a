"""The runtime's own log lines."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest

from oneflow.core.config import Config
from oneflow.core.errors import ConfigError
from oneflow.core.log import (
    CUT_MARK,
    LINES_PER_SECOND,
    MAX_LINE_CHARS,
    RateLimit,
    facts,
    get_logger,
    set_up,
)

HEAD = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z W rank \S+:1 job=j7.2 rank=3 step=41 test_log: "
)
log = get_logger("oneflow.tests.test_log")


def settings(**changes: object) -> Config:
    return Config(rank=3, world_size=4, local_rank=1, job_id="j7", attempt=2, **changes)  # type: ignore[arg-type]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    root = logging.getLogger("oneflow")
    before = root.level, root.propagate, list(root.handlers)
    yield capsys
    root.level, root.propagate = before[0], before[1]
    root.handlers[:] = before[2]


def test_a_line_of_text(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings(), lambda: 41)
    log.warning("rank %d is late", 2, extra=facts(seconds=1.5, why="no mail"))
    err = lines.readouterr().err
    assert HEAD.match(err)
    assert err.endswith('test_log: rank 2 is late seconds=1.5 why="no mail"\n')


def test_only_warnings_unless_asked_for_more(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings())
    log.info("quiet")
    assert lines.readouterr().err == ""
    set_up(settings(log_level="INFO"))
    log.info("heard")
    assert lines.readouterr().err.count("heard") == 1


def test_a_line_of_json(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings(log_format="json"), lambda: 41)
    log.warning("two\nlines\x1b[31m", extra=facts(nodes=7))
    err = lines.readouterr().err
    found = json.loads(err)
    assert err.count("\n") == 1 and "\x1b" not in err
    assert found["msg"] == "two\nlines\x1b[31m" and found["kv"] == {"nodes": 7}
    expected = {"level": "WARNING", "component": "rank", "job": "j7", "attempt": 2, "rank": 3}
    assert expected.items() <= found.items()
    assert found["step"] == 41 and found["logger"] == "test_log"


def test_lines_of_a_daemon_name_node_and_device(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings(), daemon="n2/cuda:3")
    log.warning("heard")
    assert re.match(r"^\S+Z W daemon n2/cuda:3 test_log: heard\n$", lines.readouterr().err)
    set_up(settings(log_format="json"), daemon="n2/cuda:3")
    log.warning("heard")
    found = json.loads(lines.readouterr().err)
    expected = {"component": "daemon", "node": "n2", "device": "cuda:3", "msg": "heard"}
    assert expected.items() <= found.items()


def test_a_line_of_text_stays_one_line(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings())
    log.warning("a\nb\x1b[0m\x9b\u2028c")
    assert lines.readouterr().err.endswith(": a\\nb\\x1b[0m\\x9b\\u2028c\n")
    log.warning("x" * 2 * MAX_LINE_CHARS)
    err = lines.readouterr().err
    assert err.endswith(CUT_MARK + "\n") and len(err) < MAX_LINE_CHARS + 200


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_secret_is_shown(lines: pytest.CaptureFixture[str], log_format: str) -> None:
    set_up(settings(job_token="hunter2", log_format=log_format))
    text = "joined with hunter2; WANDB_API_KEY=abc-1 aws_secret: 'd e f' my_token=\"gh\""
    log.warning(text, extra=facts(db_password="ijk", note="hunter2"))
    err = lines.readouterr().err
    for secret in ("hunter2", "abc-1", "d e f", "gh", "ijk"):
        assert secret not in err
    assert "WANDB_API_KEY=***" in err


def test_an_error_is_named(lines: pytest.CaptureFixture[str]) -> None:
    set_up(settings())
    try:
        raise ValueError("no such thing")
    except ValueError:
        log.exception("failed")
    assert lines.readouterr().err.endswith("failed (ValueError: no such thing)\n")


def test_a_site_that_fires_too_often_is_summed_up() -> None:
    now = [5.0]
    limit = RateLimit(lambda: now[0])

    def record(line: int) -> logging.LogRecord:
        return logging.LogRecord("oneflow", logging.WARNING, "f.py", line, "late %d", (1,), None)

    passed = [limit.filter(record(1)) for _ in range(3 * LINES_PER_SECOND)]
    assert passed == [True] * LINES_PER_SECOND + [False] * 2 * LINES_PER_SECOND
    assert limit.filter(record(2))  # another site
    now[0] = 6.1
    after = record(1)
    assert limit.filter(after)
    assert after.getMessage() == f"late 1 ({2 * LINES_PER_SECOND} more like this were left out)"


def test_settings_come_from_the_environment() -> None:
    config = Config.from_env({"ONEFLOW_LOG_FORMAT": "JSON", "ONEFLOW_LOG_LEVEL": "info"})
    assert (config.log_format, config.log_level) == ("json", "INFO")
    assert (Config.from_env({}).log_format, Config.from_env({}).log_level) == ("text", "WARNING")
    with pytest.raises(ConfigError, match="ONEFLOW_LOG_FORMAT='xml' must be one of text, json"):
        Config.from_env({"ONEFLOW_LOG_FORMAT": "xml"})


def test_a_scheduler_of_a_cluster_is_no_rank_of_a_job(
    lines: pytest.CaptureFixture[str],
) -> None:
    set_up(Config(), component="scheduler")
    log.warning("heard")
    err = lines.readouterr().err
    assert re.search(r"Z W scheduler \S+ test_log: heard\n$", err)
    assert "job=" not in err
    set_up(Config(log_format="json"), component="scheduler")
    log.warning("heard")
    found = json.loads(lines.readouterr().err)
    assert found["component"] == "scheduler"
    assert not {"job", "rank", "attempt"} & set(found)
