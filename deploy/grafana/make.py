"""Writes the dashboards beside it: `python deploy/grafana/make.py`. A table of panels is easier to
read, and to review, than the JSON that Grafana keeps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
SCHEMA_VERSION = 39


@dataclass(frozen=True)
class Panel:
    """kind: timeseries or stat. queries: (expression, legend)."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    text: str = ""
    is_stacked: bool = False


def rate(name: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({name}{where}[$__rate_interval]))"


def quantile(q: float, name: str, by: str = "", where: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    found = rate(f"{name}_bucket", labels, where)
    return f"histogram_quantile({q}, {found})"


def percentiles(name: str) -> tuple[tuple[str, str], ...]:
    return ((quantile(0.5, name), "median"), (quantile(0.99, name), "99 %"))


CLUSTER = (
    Panel("Jobs", (("oneflow_scheduler_jobs", "{{state}}"),), is_stacked=True),
    Panel("Daemons", (("oneflow_scheduler_daemons", "{{state}}"),), is_stacked=True),
    Panel(
        "Devices",
        (("sum by (device_type, state) (oneflow_scheduler_slots)", "{{device_type}} {{state}}"),),
        is_stacked=True,
        text="What the queue would use beside them: devices wanted.",
    ),
    Panel("Devices wanted", (("oneflow_scheduler_slots_desired", "{{device_type}}"),)),
    Panel(
        "Oldest job in the queue",
        (("oneflow_scheduler_queue_oldest_age_seconds", "{{queue}}"),),
        "s",
    ),
    Panel("Time in the queue", percentiles("oneflow_scheduler_job_queue_wait_seconds"), "s"),
    Panel("From placed to running", percentiles("oneflow_scheduler_job_start_seconds"), "s"),
    Panel(
        "Jobs that ended, by reason",
        (("sum by (state, reason) (increase(oneflow_scheduler_jobs_finished_total[1h]))",
          "{{state}} {{reason}}"),),
        text="In the last hour.",
    ),
    Panel(
        "Restarts, by reason",
        (("sum by (reason) (increase(oneflow_scheduler_job_restarts_total[1h]))", "{{reason}}"),),
        text="In the last hour.",
    ),
    Panel(
        "Oldest heartbeat",
        (("oneflow_scheduler_heartbeat_age_max_seconds", "oldest"),),
        "s",
        text="Suspect after 3 s; lost after 9.2 s (daemons) or 10 s (ranks).",
    ),
    Panel("Failures were noticed after", percentiles("oneflow_scheduler_failure_detection_seconds"),
          "s"),
    Panel(
        "Daemons lost",
        (("sum by (reason) (increase(oneflow_scheduler_daemons_lost_total[1h]))", "{{reason}}"),),
        text="In the last hour.",
    ),
    Panel("Calls", ((rate("oneflow_scheduler_rpc_requests_total", "method"), "{{method}}"),),
          "reqps"),
    Panel("Calls answered after (99 %)",
          ((quantile(0.99, "oneflow_scheduler_rpc_duration_seconds", "method"), "{{method}}"),),
          "s"),
    Panel("Refused",
          ((rate("oneflow_scheduler_auth_failures_total", "reason"), "token {{reason}}"),
           (rate("oneflow_scheduler_messages_rejected_total", "reason"), "message {{reason}}"),
           (rate("oneflow_scheduler_jobs_rejected_total", "reason"), "job {{reason}}")),
          "ops"),
    Panel("Lag of the event loop", percentiles("oneflow_scheduler_loop_lag_seconds"), "s"),
    Panel("Writes to the journal", percentiles("oneflow_scheduler_journal_write_seconds"), "s"),
    Panel("Size of the journal", (("oneflow_scheduler_journal_bytes", "bytes"),), "bytes"),
)  # fmt: skip

JOB = (
    Panel("Last step",
          (('max by (job) (oneflow_train_last_step{job=~"$job"})', "{{job}}"),)),
    Panel("Steps per second",
          (('max by (job) (rate(oneflow_train_steps_total{job=~"$job"}[$__rate_interval]))',
            "{{job}}"),), "ops"),
    Panel("Samples per second",
          (('max by (job) (rate(oneflow_train_samples_total{job=~"$job"}[$__rate_interval]))',
            "{{job}}"),), "ops"),
    Panel("Since the last step",
          (('time() - max by (job) (oneflow_train_last_step_timestamp_seconds{job=~"$job"})'
            ' and on(job) oneflow_train_running == 1', "{{job}}"),), "s"),
    Panel("Since the last step, by rank",
          (('timestamp(oneflow_train_last_step_timestamp_seconds{job=~"$job"})'
            ' - oneflow_train_last_step_timestamp_seconds and on(job, instance) '
            'oneflow_train_running == 1', "{{job}} rank {{rank}}"),), "s",
          text="At the scrape of each rank: pages are not scraped at the same moment."),
    Panel("Age of the last checkpoint",
          (('time() - oneflow_checkpoint_last_success_timestamp_seconds{job=~"$job"}',
            "{{job}}"),), "s"),
    Panel("Step of the last checkpoint",
          (('oneflow_checkpoint_last_step{job=~"$job"}', "{{job}}"),)),
    Panel("Time of a step", percentiles("oneflow_train_step_duration_seconds"), "s",
          text="Of all jobs of these daemons."),
    Panel("Last loss", (('oneflow_train_loss{job=~"$job"}', "{{job}}"),),
          text="Only of daemons that were started with --train-loss."),
    Panel("Numbers that are not finite",
          (('sum by (job, where) (increase(oneflow_train_nonfinite_total{job=~"$job"}[1h]))',
            "{{job}} {{where}}"),), text="In the last hour."),
    Panel("Time of a checkpoint, by phase (99 %)",
          ((quantile(0.99, "oneflow_checkpoint_save_duration_seconds", "phase"), "{{phase}}"),),
          "s", text="Training stops for the gathering only."),
    Panel("Checkpoints that failed",
          (("sum by (reason) (increase(oneflow_checkpoint_failures_total[1h]))", "{{reason}}"),),
          text="In the last hour."),
    Panel("Bytes of checkpoints",
          ((rate("oneflow_checkpoint_bytes_total", "direction"), "{{direction}}"),), "Bps"),
    Panel("Ends of ranks, by reason",
          (("sum by (reason) (increase(oneflow_daemon_worker_exits_total[1h]))", "{{reason}}"),),
          text="In the last hour."),
)  # fmt: skip

ON_DEVICE = '{instance=~"$instance"}'
ACTORS = (
    Panel("What actors wait for",
          ((rate("oneflow_actor_wait_seconds_total", "kind, cause", ON_DEVICE),
            "{{kind}} {{cause}}"),),
          "percentunit", width=16,
          text="no_input: others are slow. no_free_register: whoever reads the output is slow."),
    Panel("Worker processes",
          ((f"sum by (state) (oneflow_daemon_workers{ON_DEVICE})", "{{state}}"),),
          is_stacked=True),
    Panel("Acts", ((rate("oneflow_actor_acts_total", "kind", ON_DEVICE), "{{kind}}"),), "ops"),
    Panel("Time of an act (99 %)",
          ((quantile(0.99, "oneflow_actor_act_duration_seconds", "kind", ON_DEVICE),
            "{{kind}}"),), "s"),
    Panel("Actors", ((f"sum by (state) (oneflow_daemon_actors{ON_DEVICE})", "{{state}}"),),
          is_stacked=True),
    Panel("Registers",
          ((f"sum by (kind, state) (oneflow_registers{ON_DEVICE})", "{{kind}} {{state}}"),),
          is_stacked=True),
    Panel("Messages", ((rate("oneflow_messages_sent_total", "transport", ON_DEVICE),
                        "{{transport}}"),), "ops"),
    Panel("Bytes in messages",
          ((rate("oneflow_message_bytes_total", "transport, direction", ON_DEVICE),
            "{{transport}} {{direction}}"),), "Bps"),
    Panel("Latency of messages (99 %)",
          ((quantile(0.99, "oneflow_message_latency_seconds", "transport", ON_DEVICE),
            "{{transport}}"),), "s"),
    Panel("Fullest mailbox", ((f"oneflow_mailbox_depth_max{ON_DEVICE}", "{{instance}}"),)),
    Panel("Collectives (99 %)",
          ((quantile(0.99, "oneflow_collective_duration_seconds", "op", ON_DEVICE), "{{op}}"),),
          "s"),
    Panel("Bytes in collectives",
          ((rate("oneflow_collective_bytes_total", "op", ON_DEVICE), "{{op}}"),), "Bps"),
    Panel("Memory of the device",
          ((f"sum by (kind) (oneflow_device_memory_bytes{ON_DEVICE})", "{{kind}}"),
           (f"max(oneflow_device_memory_peak_bytes{ON_DEVICE})", "peak")), "bytes"),
    Panel("Memory of the host",
          ((f"oneflow_host_memory_bytes{ON_DEVICE}", "{{instance}} {{kind}}"),), "bytes"),
    Panel("Errors of the device",
          ((f"sum by (kind) (increase(oneflow_device_errors_total{ON_DEVICE}[1h]))", "{{kind}}"),),
          text="In the last hour."),
    Panel("Rows of embeddings",
          ((rate("oneflow_embedding_lookups_total", "tier, result", ON_DEVICE),
            "{{tier}} {{result}}"),), "ops"),
    Panel("Embeddings: distinct ids by all ids",
          ((" / ".join(rate("oneflow_embedding_ids_total", "instance",
                            f'{{kind="{kind}",instance=~"$instance"}}')
                       for kind in ("distinct", "asked")), "{{instance}}"),), "percentunit",
          text="What is left of a batch's ids when each is looked up once."),
    Panel("Bytes of embeddings",
          ((rate("oneflow_embedding_bytes_total", "tier, direction", ON_DEVICE),
            "{{tier}} {{direction}}"),), "Bps"),
    Panel("Embeddings: rows to be written",
          ((f"oneflow_embedding_queued_rows{ON_DEVICE}", "{{instance}}"),)),
    Panel("Embeddings: share of time waiting for the disk",
          ((rate("oneflow_embedding_stall_seconds_total", "instance", ON_DEVICE),
            "{{instance}}"),), "percentunit"),
    Panel("Heartbeats", ((rate("oneflow_daemon_heartbeats_total", "result", ON_DEVICE),
                          "{{result}}"),), "ops"),
    Panel("Lag of the daemon's loop (99 %)",
          ((quantile(0.99, "oneflow_daemon_loop_lag_seconds", "instance", ON_DEVICE),
            "{{instance}}"),), "s"),
    Panel("Output of ranks", ((rate("oneflow_log_bytes_total", "stream", ON_DEVICE),
                               "{{stream}}"),), "Bps"),
    Panel("Lines of output dropped",
          ((rate("oneflow_log_lines_dropped_total", "stream", ON_DEVICE), "{{stream}}"),), "ops"),
    Panel("Messages refused by daemons",
          ((rate("oneflow_messages_rejected_total", "reason", ON_DEVICE), "{{reason}}"),), "ops"),
)  # fmt: skip


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """One that is chosen from the values of a label."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2,
        "query": {"query": query, "refId": name}, "definition": query, "sort": 1,
        "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


DATASOURCE = {
    "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
    "refresh": 1, "hide": 0, "current": {},
}  # fmt: skip

DASHBOARDS = {
    "cluster": ("OneFlow: cluster", CLUSTER, []),
    "job": (
        "OneFlow: job",
        JOB,
        [variable("job", "Job", "label_values(oneflow_train_last_step, job)")],
    ),
    "device-and-actors": (
        "OneFlow: device and actors",
        ACTORS,
        [variable("instance", "Daemon", "label_values(oneflow_daemon_info, instance)")],
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """What Grafana imports. The data source is a variable: no id of ours is in it."""
    title, panels, variables = DASHBOARDS[name]
    placed, x, y = [], 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + 8
        placed.append(_panel(number, panel, x, y))
        x += panel.width
    return {
        "uid": f"oneflow-{name}", "title": title, "tags": ["oneflow"], "editable": True,
        "schemaVersion": SCHEMA_VERSION, "version": 1, "refresh": "15s", "timezone": "utc",
        "time": {"from": "now-1h", "to": "now"}, "graphTooltip": 1, "annotations": {"list": []},
        "templating": {"list": [DATASOURCE, *variables]}, "panels": placed,
    }  # fmt: skip


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom = {"fillOpacity": 20 if panel.is_stacked else 0, "lineWidth": 1, "showPoints": "never"}
    if panel.is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    targets = [
        {"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.text,
        "datasource": SOURCE, "gridPos": {"x": x, "y": y, "w": panel.width, "h": 8},
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom},
                        "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"},
                    "tooltip": {"mode": "multi", "sort": "desc"}},
    }  # fmt: skip


def as_text(name: str) -> str:
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(as_text(name))
