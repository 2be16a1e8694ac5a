"""Sources of a configured value, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.cluster import settings as settings_module
from oneflow.cluster.queue_settings import make_queues
from oneflow.cluster.settings import KEYS, flags_for, load_settings
from oneflow.core.errors import ConfigError
from oneflow.scheduler.jobs.quotas import Queue


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(settings_module, "SYSTEM_FILE", tmp_path / "system.toml")
    (tmp_path / "config").mkdir()
    return {"ONEFLOW_CONFIG_DIR": str(tmp_path / "config")}


def write(path: Path, listen: str) -> Path:
    path.write_text(f'[scheduler]\nlisten = "{listen}"\n')
    return path


def test_each_source_wins_over_those_below_it(tmp_path: Path, env: dict[str, str]) -> None:
    def found(**more: object) -> tuple[str, str]:
        values = load_settings(env=env, **more)  # type: ignore[arg-type]
        return values["scheduler.listen"], values.origin("scheduler.listen")

    assert found() == ("127.0.0.1:0", "default")
    system = write(tmp_path / "system.toml", "127.0.0.1:1")
    assert found() == ("127.0.0.1:1", str(system))
    user = write(tmp_path / "config" / "config.toml", "127.0.0.1:2")
    assert found() == ("127.0.0.1:2", str(user))
    file = write(tmp_path / "cluster.toml", "127.0.0.1:3")
    assert found(file=file) == ("127.0.0.1:3", str(file))
    env["ONEFLOW_SCHEDULER_LISTEN"] = "127.0.0.1:4"
    assert found(file=file) == ("127.0.0.1:4", "ONEFLOW_SCHEDULER_LISTEN")
    flags = {"scheduler.listen": "127.0.0.1:5"}
    assert found(file=file, flags=flags) == ("127.0.0.1:5", "flag")
    assert found(file=file, flags={"scheduler.listen": None})[0] == "127.0.0.1:4"


def test_the_address_has_a_short_variable(env: dict[str, str]) -> None:
    env["ONEFLOW_SCHEDULER_ADDRESS"] = "host:7"
    assert load_settings(env=env)["client.address"] == "host:7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[scheduler]\nlisen = "127.0.0.1:0"', "did you mean 'listen'"),
        ('[sheduler]\nlisten = "127.0.0.1:0"', "did you mean 'scheduler'"),
        ("[scheduler]\nui = 1", "not a truth value"),
        ('[scheduler]\nlisten = "nowhere"', "not host:port"),
        ("[local]\ndaemons = -1", "not a whole number"),
        ("[local]\ndaemons = 1000", "at most 256"),
        ('[client]\noutput = "tabel"', "did you mean 'table'"),
        ('[scheduler]\nhosts = "a"', "not a list of texts"),
        ("[scheduler\n", "line 1"),
        ("scheduler = 3", "must be a table"),
    ],
)
def test_mistakes_in_a_file_are_named(
    tmp_path: Path, env: dict[str, str], text: str, said: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(file=path, env=env)
    assert str(path) in str(caught.value)


def test_variables_are_read_by_kind(env: dict[str, str]) -> None:
    env |= {"ONEFLOW_SCHEDULER_UI": "yes", "ONEFLOW_LOCAL_DAEMONS": "3"}
    env |= {"ONEFLOW_SCHEDULER_HOSTS": "a, b"}
    found = load_settings(env=env)
    assert found["scheduler.ui"] is True
    assert found["local.daemons"] == 3
    assert found["scheduler.hosts"] == ("a", "b")
    env["ONEFLOW_SCHEDULER_UI"] = "perhaps"
    with pytest.raises(ConfigError, match="ONEFLOW_SCHEDULER_UI"):
        load_settings(env=env)


def test_a_path_in_a_file_is_meant_from_there(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[scheduler]\nstate_dir = "state"\n')
    assert load_settings(file=path, env=env).path("scheduler.state_dir") == tmp_path / "state"


def test_folders_of_data_come_from_everywhere_and_are_handed_on(
    tmp_path: Path, env: dict[str, str]
) -> None:
    name, path = "daemon.data_roots", tmp_path / "cluster.toml"
    assert load_settings(env=env)[name] == ()
    env["ONEFLOW_DATA_ROOTS"] = "/data:/more"
    found = load_settings(env=env)
    assert found[name] == ("/data", "/more") and flags_for(found, "daemon") == ()  # inherited
    path.write_text('[daemon]\ndata_roots = ["here", "/there"]\n')
    env.clear()
    found = load_settings(file=path, env=env)
    wanted = ("--data-root", str(tmp_path / "here"), "--data-root", "/there")
    assert flags_for(found, "daemon") == wanted
    found = load_settings({name: ("/a",)}, path, env)
    assert flags_for(found, "daemon") == ("--data-root", "/a")
    with pytest.raises(ConfigError, match="'/a:b' is no folder that a list as in PATH can name"):
        load_settings({name: ("/a:b",)}, env=env)


def test_a_file_that_is_named_must_be_there(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings(file=tmp_path / "no.toml", env=env)


def test_names_of_variables_are_unique() -> None:
    assert len({key.variable for key in KEYS}) == len(KEYS)


# ---- limits --------------------------------------------------------------------------------------


def test_limits_are_written_as_people_do(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[scheduler]\nkeep_for = "2d"\nrequests_per_s = 5\n[daemon]\nmemory_nbytes = "4GiB"\n'
    )
    env |= {"ONEFLOW_DAEMON_LOG_NBYTES": "512M", "ONEFLOW_SCHEDULER_MAX_TIME_LIMIT": "1h30m"}
    found = load_settings(env=env, file=path)
    assert found["scheduler.keep_for"] == 2 * 86400
    assert found["scheduler.requests_per_s"] == 5.0
    assert found["daemon.memory_nbytes"] == 4 << 30
    assert found["daemon.log_nbytes"] == 512 << 20
    assert found["scheduler.max_time_limit"] == 5400


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ONEFLOW_SCHEDULER_KEEP_FOR", "2w", "write it like"),
        ("ONEFLOW_DAEMON_MEMORY_NBYTES", "4 GiBi", "write it like"),
        ("ONEFLOW_SCHEDULER_REQUESTS_PER_S", "nan", "not a number"),
        ("ONEFLOW_SCHEDULER_REQUESTS_PER_S", "0", "too little"),
        ("ONEFLOW_SCHEDULER_QUEUED_PER_TOKEN", "0", "too little"),
        ("ONEFLOW_SCHEDULER_KEEP_JOBS", "-1", "not a whole number"),
        ("ONEFLOW_LOG_FORMAT", "jsn", "did you mean 'json'"),
    ],
)
def test_limits_that_cannot_be_are_named(
    env: dict[str, str], variable: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(env=env | {variable: value})
    assert variable in str(caught.value)


def test_a_limit_that_is_misspelt_is_suggested(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[scheduler]\nkeep_job = 3\n")
    with pytest.raises(ConfigError, match="did you mean 'keep_jobs'"):
        load_settings(env=env, file=path)


def test_what_is_handed_on_is_what_others_would_not_read(
    tmp_path: Path, env: dict[str, str]
) -> None:
    path = tmp_path / "cluster.toml"
    text = '[scheduler]\nkeep_jobs = 3\nhosts = ["a"]\n[daemon]\npids = 99\ntrain_loss = true\n'
    path.write_text(text + '[log]\nformat = "json"\n')
    env["ONEFLOW_DAEMON_PIDS"] = "77"  # the daemon reads that itself
    found = load_settings({"scheduler.requests_per_s": 9.0}, path, env)
    wanted = ("--requests-per-s", "9.0", "--keep-jobs", "3", "--log-format", "json")
    assert flags_for(found, "scheduler") == (*wanted, "--host", "a")
    assert flags_for(found, "daemon") == ("--log-format", "json", "--train-loss")


def test_labels_of_a_node_are_handed_on_and_checked(tmp_path: Path, env: dict[str, str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[daemon]\nlabels = ["gpu=h200", "disk=nvme"]\n')
    handed_on = flags_for(load_settings(None, path, env), "daemon")
    assert handed_on == ("--label", "gpu=h200", "--label", "disk=nvme")
    path.write_text('[daemon]\nlabels = ["gpu"]\n')
    with pytest.raises(ConfigError, match="no list of labels, as gpu=h200"):
        load_settings(None, path, env)


def test_queues_are_tables_of_a_file_or_json_and_are_handed_on(
    tmp_path: Path, env: dict[str, str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[scheduler.queues.research]\ndevices = 8\nuser_devices = 4\nmax_priority = -3\n"
        'max_time_limit = "2h"\nusers = ["ada"]\nshare = 2\n'
        "user_shares = { ada = 3.5 }\npreemptible = true\n[scheduler.queues.all]\n"
    )
    found = load_settings(file=path, env=env)
    wanted = {"research": Queue(8, 4, -3, 7200.0, ("ada",), 2, {"ada": 3.5}, True), "all": Queue()}
    assert make_queues(found["scheduler.queues"], "here") == wanted
    flag, text = flags_for(found, "scheduler")
    assert flag == "--queues"
    for again in ({"scheduler.queues": text}, {}):
        env["ONEFLOW_SCHEDULER_QUEUES"] = "{}" if again else text
        handed_on = load_settings(again, env=env)["scheduler.queues"]
        assert make_queues(handed_on, "here") == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues = 3", "scheduler.queues: must be tables"),
        ("queues.r = 3", "must be tables"),
        ("queues.r.device = 3", "scheduler.queues.r: unknown key 'device'; did you mean 'devices'"),
        ("queues.r.devices = -1", "queues.r.devices: -1 is no whole number from 0 to 65536"),
        ("queues.r.devices = true", "queues.r.devices: True is no whole number"),
        ("queues.r.max_priority = 1001", "is no whole number from -1000 to 1000"),
        ('queues.r.max_time_limit = "soon"', "queues.r.max_time_limit 'soon': write it like"),
        ('queues.r.users = "ada"', "queues.r.users: 'ada' is not a list of names of tokens"),
        ("queues.r.preemptible = 1", "queues.r.preemptible: 1 is not true or false"),
        ("queues.r.share = 0", "the share of share, 0, is not a number above 0"),
        ("queues.r.user_shares = 3", "user_shares: 3 is not a table of users"),
        ("queues.r.user_shares.ada = true", "the share of ada, True, is not"),
        ('queues."a b".devices = 1', "queue 'a b': must be 1 to 63 letters"),
    ],
)
def test_queues_that_cannot_be_are_named(
    tmp_path: Path, env: dict[str, str], text: str, said: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"[scheduler]\n{text}\n")
    with pytest.raises(ConfigError, match=said):
        found = load_settings(file=path, env=env)
        make_queues(found["scheduler.queues"], found.origin("scheduler.queues"))
    with pytest.raises(ConfigError, match="ONEFLOW_SCHEDULER_QUEUES: is no JSON"):
        load_settings(env=env | {"ONEFLOW_SCHEDULER_QUEUES": text})
