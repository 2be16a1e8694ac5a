from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobSpec(_message.Message):
    __slots__ = ("kind", "name", "devices", "device_type", "nodes", "priority", "argv", "env", "archive", "graph", "steps", "max_restarts", "restart_on", "time_limit_s", "checkpoint_every", "checkpoint_keep", "checkpoint_dir", "resume_from", "auto_parallel", "zero", "amp", "after", "max_devices", "hold", "queue", "preemptible", "array", "array_index", "array_limit", "array_size", "only_nodes", "exclude_nodes", "require_labels", "cpus", "memory_nbytes", "requirements")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCRIPT: _ClassVar[JobSpec.Kind]
        GRAPH: _ClassVar[JobSpec.Kind]
        INFERENCE: _ClassVar[JobSpec.Kind]
    SCRIPT: JobSpec.Kind
    GRAPH: JobSpec.Kind
    INFERENCE: JobSpec.Kind
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RESTART_ON_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KEEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    AUTO_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    AMP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    ARRAY_INDEX_FIELD_NUMBER: _ClassVar[int]
    ARRAY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ARRAY_SIZE_FIELD_NUMBER: _ClassVar[int]
    ONLY_NODES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODES_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_LABELS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NBYTES_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    kind: JobSpec.Kind
    name: str
    devices: int
    device_type: str
    nodes: int
    priority: int
    argv: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    archive: str
    graph: str
    steps: int
    max_restarts: int
    restart_on: _containers.RepeatedScalarFieldContainer[str]
    time_limit_s: float
    checkpoint_every: int
    checkpoint_keep: int
    checkpoint_dir: str
    resume_from: str
    auto_parallel: bool
    zero: int
    amp: str
    after: str
    max_devices: int
    hold: bool
    queue: str
    preemptible: bool
    array: str
    array_index: int
    array_limit: int
    array_size: int
    only_nodes: _containers.RepeatedScalarFieldContainer[str]
    exclude_nodes: _containers.RepeatedScalarFieldContainer[str]
    require_labels: _containers.RepeatedScalarFieldContainer[str]
    cpus: float
    memory_nbytes: int
    requirements: str
    def __init__(self, kind: _Optional[_Union[JobSpec.Kind, str]] = ..., name: _Optional[str] = ..., devices: _Optional[int] = ..., device_type: _Optional[str] = ..., nodes: _Optional[int] = ..., priority: _Optional[int] = ..., argv: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., archive: _Optional[str] = ..., graph: _Optional[str] = ..., steps: _Optional[int] = ..., max_restarts: _Optional[int] = ..., restart_on: _Optional[_Iterable[str]] = ..., time_limit_s: _Optional[float] = ..., checkpoint_every: _Optional[int] = ..., checkpoint_keep: _Optional[int] = ..., checkpoint_dir: _Optional[str] = ..., resume_from: _Optional[str] = ..., auto_parallel: _Optional[bool] = ..., zero: _Optional[int] = ..., amp: _Optional[str] = ..., after: _Optional[str] = ..., max_devices: _Optional[int] = ..., hold: _Optional[bool] = ..., queue: _Optional[str] = ..., preemptible: _Optional[bool] = ..., array: _Optional[str] = ..., array_index: _Optional[int] = ..., array_limit: _Optional[int] = ..., array_size: _Optional[int] = ..., only_nodes: _Optional[_Iterable[str]] = ..., exclude_nodes: _Optional[_Iterable[str]] = ..., require_labels: _Optional[_Iterable[str]] = ..., cpus: _Optional[float] = ..., memory_nbytes: _Optional[int] = ..., requirements: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("rank", "daemon", "node", "device", "folder")
    RANK_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    rank: int
    daemon: str
    node: str
    device: str
    folder: str
    def __init__(self, rank: _Optional[int] = ..., daemon: _Optional[str] = ..., node: _Optional[str] = ..., device: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class JobRecord(_message.Message):
    __slots__ = ("id", "spec", "state", "reason", "cause", "exit_code", "first_failed_rank", "host", "attempt", "restarts_spent", "last_step", "total_steps", "last_checkpoint", "last_checkpoint_step", "pending", "owner", "assignments", "metrics", "submitted_at", "started_at", "first_step_at", "finished_at", "pid", "ran_s", "attempt_started_at", "waits", "warning", "eta_s", "life", "is_held", "priority_shift")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILED_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_SPENT_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RAN_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    ETA_S_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_SHIFT_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: JobSpec
    state: str
    reason: str
    cause: str
    exit_code: int
    first_failed_rank: int
    host: str
    attempt: int
    restarts_spent: int
    last_step: int
    total_steps: int
    last_checkpoint: str
    last_checkpoint_step: int
    pending: str
    owner: str
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    metrics: _containers.ScalarMap[str, float]
    submitted_at: float
    started_at: float
    first_step_at: float
    finished_at: float
    pid: int
    ran_s: float
    attempt_started_at: float
    waits: _containers.RepeatedCompositeFieldContainer[RankWaits]
    warning: str
    eta_s: float
    life: int
    is_held: bool
    priority_shift: int
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., first_failed_rank: _Optional[int] = ..., host: _Optional[str] = ..., attempt: _Optional[int] = ..., restarts_spent: _Optional[int] = ..., last_step: _Optional[int] = ..., total_steps: _Optional[int] = ..., last_checkpoint: _Optional[str] = ..., last_checkpoint_step: _Optional[int] = ..., pending: _Optional[str] = ..., owner: _Optional[str] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., submitted_at: _Optional[float] = ..., started_at: _Optional[float] = ..., first_step_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., pid: _Optional[int] = ..., ran_s: _Optional[float] = ..., attempt_started_at: _Optional[float] = ..., waits: _Optional[_Iterable[_Union[RankWaits, _Mapping]]] = ..., warning: _Optional[str] = ..., eta_s: _Optional[float] = ..., life: _Optional[int] = ..., is_held: _Optional[bool] = ..., priority_shift: _Optional[int] = ...) -> None: ...

class RankWaits(_message.Message):
    __slots__ = ("rank", "waiting", "shares")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    waiting: str
    shares: _containers.ScalarMap[str, float]
    def __init__(self, rank: _Optional[int] = ..., waiting: _Optional[str] = ..., shares: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("job_id", "spec")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    spec: JobSpec
    def __init__(self, job_id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("job_id", "is_held", "priority")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    is_held: bool
    priority: int
    def __init__(self, job_id: _Optional[str] = ..., is_held: _Optional[bool] = ..., priority: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("filters", "limit", "cursor")
    class FiltersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.ScalarMap[str, str]
    limit: int
    cursor: str
    def __init__(self, filters: _Optional[_Mapping[str, str]] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("jobs", "cursor")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobRecord]
    cursor: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobRecord, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("job_id", "follow")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    follow: bool
    def __init__(self, job_id: _Optional[str] = ..., follow: _Optional[bool] = ..., **kwargs) -> None: ...

class MetricPoint(_message.Message):
    __slots__ = ("index", "attempt", "step", "at", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    step: int
    at: float
    values: _containers.ScalarMap[str, float]
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., at: _Optional[float] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job_id", "ranks", "attempt", "stream", "follow", "offsets", "since")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    stream: str
    follow: bool
    offsets: _containers.ScalarMap[str, int]
    since: float
    def __init__(self, job_id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., follow: _Optional[bool] = ..., offsets: _Optional[_Mapping[str, int]] = ..., since: _Optional[float] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("attempt", "rank", "stream", "offset", "data", "host")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    rank: int
    stream: str
    offset: int
    data: bytes
    host: str
    def __init__(self, attempt: _Optional[int] = ..., rank: _Optional[int] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., host: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ("job_id", "inputs", "timeout_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    timeout_s: float
    def __init__(self, job_id: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class InferReply(_message.Message):
    __slots__ = ("outputs",)
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, outputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class BlobInfo(_message.Message):
    __slots__ = ("digest", "nbytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    nbytes: int
    def __init__(self, digest: _Optional[str] = ..., nbytes: _Optional[int] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("digest", "nbytes", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    nbytes: int
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., nbytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class OutputRequest(_message.Message):
    __slots__ = ("job_id", "name", "rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    rank: int
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class DebugRequest(_message.Message):
    __slots__ = ("job_id", "what", "ranks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    what: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job_id: _Optional[str] = ..., what: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class DebugPiece(_message.Message):
    __slots__ = ("rank", "host", "text", "error", "phase")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    text: str
    error: str
    phase: str
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., text: _Optional[str] = ..., error: _Optional[str] = ..., phase: _Optional[str] = ...) -> None: ...

class TraceOrder(_message.Message):
    __slots__ = ("what", "trace", "ranks", "steps", "seconds")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    what: str
    trace: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    steps: int
    seconds: float
    def __init__(self, what: _Optional[str] = ..., trace: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., steps: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("job_id", "order")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    order: TraceOrder
    def __init__(self, job_id: _Optional[str] = ..., order: _Optional[_Union[TraceOrder, _Mapping]] = ...) -> None: ...

class TraceState(_message.Message):
    __slots__ = ("rank", "host", "trace", "state", "file", "steps", "acts", "dropped", "nbytes", "truncated", "error")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ACTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    trace: str
    state: str
    file: str
    steps: int
    acts: int
    dropped: int
    nbytes: int
    truncated: bool
    error: str
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., trace: _Optional[str] = ..., state: _Optional[str] = ..., file: _Optional[str] = ..., steps: _Optional[int] = ..., acts: _Optional[int] = ..., dropped: _Optional[int] = ..., nbytes: _Optional[int] = ..., truncated: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[TraceState]
    def __init__(self, ranks: _Optional[_Iterable[_Union[TraceState, _Mapping]]] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("job_id", "rank", "argv", "limit_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rank: int
    argv: _containers.RepeatedScalarFieldContainer[str]
    limit_s: float
    def __init__(self, job_id: _Optional[str] = ..., rank: _Optional[int] = ..., argv: _Optional[_Iterable[str]] = ..., limit_s: _Optional[float] = ...) -> None: ...

class ExecPiece(_message.Message):
    __slots__ = ("stream", "data", "is_last", "exit_code", "note")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    data: bytes
    is_last: bool
    exit_code: int
    note: str
    def __init__(self, stream: _Optional[str] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., exit_code: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("by", "since")
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    by: _containers.RepeatedScalarFieldContainer[str]
    since: float
    def __init__(self, by: _Optional[_Iterable[str]] = ..., since: _Optional[float] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("keys", "device_type", "jobs", "attempts", "device_s")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_S_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    device_type: str
    jobs: int
    attempts: int
    device_s: float
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., device_type: _Optional[str] = ..., jobs: _Optional[int] = ..., attempts: _Optional[int] = ..., device_s: _Optional[float] = ...) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DaemonStatus(_message.Message):
    __slots__ = ("id", "node", "device", "state", "epoch", "version", "pid", "job", "heartbeat_age_s", "address", "labels", "use")
    ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    id: str
    node: str
    device: str
    state: str
    epoch: int
    version: str
    pid: int
    job: str
    heartbeat_age_s: float
    address: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    use: NodeUse
    def __init__(self, id: _Optional[str] = ..., node: _Optional[str] = ..., device: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., job: _Optional[str] = ..., heartbeat_age_s: _Optional[float] = ..., address: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., use: _Optional[_Union[NodeUse, _Mapping]] = ...) -> None: ...

class NodeUse(_message.Message):
    __slots__ = ("processors", "load", "memory_nbytes", "memory_free_nbytes", "disk_nbytes", "disk_free_nbytes", "received_nbytes_per_s", "sent_nbytes_per_s")
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NBYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_NBYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_NBYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_NBYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SENT_NBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    processors: int
    load: float
    memory_nbytes: int
    memory_free_nbytes: int
    disk_nbytes: int
    disk_free_nbytes: int
    received_nbytes_per_s: float
    sent_nbytes_per_s: float
    def __init__(self, processors: _Optional[int] = ..., load: _Optional[float] = ..., memory_nbytes: _Optional[int] = ..., memory_free_nbytes: _Optional[int] = ..., disk_nbytes: _Optional[int] = ..., disk_free_nbytes: _Optional[int] = ..., received_nbytes_per_s: _Optional[float] = ..., sent_nbytes_per_s: _Optional[float] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("version", "started_at", "address", "metrics_address", "daemons", "jobs", "allows_scripts", "pid", "has_page", "trouble")
    class JobsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DAEMONS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_SCRIPTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HAS_PAGE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    version: str
    started_at: float
    address: str
    metrics_address: str
    daemons: _containers.RepeatedCompositeFieldContainer[DaemonStatus]
    jobs: _containers.ScalarMap[str, int]
    allows_scripts: bool
    pid: int
    has_page: bool
    trouble: str
    def __init__(self, version: _Optional[str] = ..., started_at: _Optional[float] = ..., address: _Optional[str] = ..., metrics_address: _Optional[str] = ..., daemons: _Optional[_Iterable[_Union[DaemonStatus, _Mapping]]] = ..., jobs: _Optional[_Mapping[str, int]] = ..., allows_scripts: _Optional[bool] = ..., pid: _Optional[int] = ..., has_page: _Optional[bool] = ..., trouble: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "grace_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    grace_s: float
    def __init__(self, node: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class TokenRequest(_message.Message):
    __slots__ = ("name", "role", "lifetime_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    lifetime_s: float
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., lifetime_s: _Optional[float] = ...) -> None: ...

class TokenReply(_message.Message):
    __slots__ = ("name", "role", "secret", "expires_at", "created_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    secret: str
    expires_at: float
    created_at: float
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., secret: _Optional[str] = ..., expires_at: _Optional[float] = ..., created_at: _Optional[float] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenReply]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenReply, _Mapping]]] = ...) -> None: ...

class AttemptId(_message.Message):
    __slots__ = ("job_id", "attempt", "rank", "life")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    rank: int
    life: int
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class RunningAttempt(_message.Message):
    __slots__ = ("id", "phase", "pid", "last_step")
    ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    phase: str
    pid: int
    last_step: int
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., phase: _Optional[str] = ..., pid: _Optional[int] = ..., last_step: _Optional[int] = ...) -> None: ...

class JournalMark(_message.Message):
    __slots__ = ("journal", "start", "attempts")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    journal: str
    start: str
    attempts: int
    def __init__(self, journal: _Optional[str] = ..., start: _Optional[str] = ..., attempts: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("daemon", "node", "device_type", "device_index", "address", "incarnation", "running", "version", "protocol", "pid", "epoch", "draining", "folder", "kept", "data_roots", "mark", "labels")
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    DATA_ROOTS_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    daemon: str
    node: str
    device_type: str
    device_index: int
    address: str
    incarnation: int
    running: _containers.RepeatedCompositeFieldContainer[RunningAttempt]
    version: str
    protocol: int
    pid: int
    epoch: int
    draining: bool
    folder: str
    kept: _containers.RepeatedScalarFieldContainer[str]
    data_roots: DataRoots
    mark: JournalMark
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, daemon: _Optional[str] = ..., node: _Optional[str] = ..., device_type: _Optional[str] = ..., device_index: _Optional[int] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., running: _Optional[_Iterable[_Union[RunningAttempt, _Mapping]]] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., pid: _Optional[int] = ..., epoch: _Optional[int] = ..., draining: _Optional[bool] = ..., folder: _Optional[str] = ..., kept: _Optional[_Iterable[str]] = ..., data_roots: _Optional[_Union[DataRoots, _Mapping]] = ..., mark: _Optional[_Union[JournalMark, _Mapping]] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...

class DataRoots(_message.Message):
    __slots__ = ("folders",)
    FOLDERS_FIELD_NUMBER: _ClassVar[int]
    folders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, folders: _Optional[_Iterable[str]] = ...) -> None: ...

class DaemonBeat(_message.Message):
    __slots__ = ("number", "others", "use")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    number: int
    others: _containers.RepeatedCompositeFieldContainer[Present]
    use: NodeUse
    def __init__(self, number: _Optional[int] = ..., others: _Optional[_Iterable[_Union[Present, _Mapping]]] = ..., use: _Optional[_Union[NodeUse, _Mapping]] = ...) -> None: ...

class Present(_message.Message):
    __slots__ = ("slot", "epoch")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    epoch: int
    def __init__(self, slot: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("id", "error", "master_port", "reason", "exit_code")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    error: str
    master_port: int
    reason: str
    exit_code: int
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., error: _Optional[str] = ..., master_port: _Optional[int] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("id", "exit_code", "reason", "cause", "last_step", "pid", "leaving", "seen_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SEEN_S_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    exit_code: int
    reason: str
    cause: str
    last_step: int
    pid: int
    leaving: bool
    seen_s: float
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ..., last_step: _Optional[int] = ..., pid: _Optional[int] = ..., leaving: _Optional[bool] = ..., seen_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("id", "step", "total_steps", "metrics", "checkpoint", "checkpoint_step", "actors", "waiting", "points", "warning")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    step: int
    total_steps: int
    metrics: _containers.ScalarMap[str, float]
    checkpoint: str
    checkpoint_step: int
    actors: _containers.RepeatedCompositeFieldContainer[ActorCounts]
    waiting: str
    points: _containers.RepeatedCompositeFieldContainer[ProgressPoint]
    warning: str
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., checkpoint: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., actors: _Optional[_Iterable[_Union[ActorCounts, _Mapping]]] = ..., waiting: _Optional[str] = ..., points: _Optional[_Iterable[_Union[ProgressPoint, _Mapping]]] = ..., warning: _Optional[str] = ...) -> None: ...

class ProgressPoint(_message.Message):
    __slots__ = ("step", "metrics", "age_s", "left_out")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    step: int
    metrics: _containers.ScalarMap[str, float]
    age_s: float
    left_out: int
    def __init__(self, step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., age_s: _Optional[float] = ..., left_out: _Optional[int] = ...) -> None: ...

class ActorCounts(_message.Message):
    __slots__ = ("kind", "no_input_s", "no_free_register_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NO_INPUT_S_FIELD_NUMBER: _ClassVar[int]
    NO_FREE_REGISTER_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    no_input_s: float
    no_free_register_s: float
    def __init__(self, kind: _Optional[str] = ..., no_input_s: _Optional[float] = ..., no_free_register_s: _Optional[float] = ...) -> None: ...

class LogData(_message.Message):
    __slots__ = ("request", "piece", "size", "is_closed")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    request: int
    piece: LogPiece
    size: int
    is_closed: bool
    def __init__(self, request: _Optional[int] = ..., piece: _Optional[_Union[LogPiece, _Mapping]] = ..., size: _Optional[int] = ..., is_closed: _Optional[bool] = ...) -> None: ...

class InferData(_message.Message):
    __slots__ = ("request", "outputs", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    outputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    error: str
    def __init__(self, request: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class FileData(_message.Message):
    __slots__ = ("request", "data", "is_last", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    data: bytes
    is_last: bool
    error: str
    def __init__(self, request: _Optional[int] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class Inspected(_message.Message):
    __slots__ = ("request", "text", "error", "trace")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request: int
    text: str
    error: str
    trace: TraceState
    def __init__(self, request: _Optional[int] = ..., text: _Optional[str] = ..., error: _Optional[str] = ..., trace: _Optional[_Union[TraceState, _Mapping]] = ...) -> None: ...

class ExecData(_message.Message):
    __slots__ = ("request", "stream", "data", "is_last", "exit_code", "note", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    stream: str
    data: bytes
    is_last: bool
    exit_code: int
    note: str
    error: str
    def __init__(self, request: _Optional[int] = ..., stream: _Optional[str] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., exit_code: _Optional[int] = ..., note: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class DaemonMessage(_message.Message):
    __slots__ = ("epoch", "slot", "seen_s", "hello", "beat", "prepared", "exited", "progress", "log", "infer", "file", "leaving", "inspected", "failing", "exec", "closed", "parts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SEEN_S_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    slot: int
    seen_s: float
    hello: Hello
    beat: DaemonBeat
    prepared: Prepared
    exited: Exited
    progress: Progress
    log: LogData
    infer: InferData
    file: FileData
    leaving: Empty
    inspected: Inspected
    failing: Exited
    exec: ExecData
    closed: bool
    parts: _containers.RepeatedCompositeFieldContainer[DaemonMessage]
    def __init__(self, epoch: _Optional[int] = ..., slot: _Optional[int] = ..., seen_s: _Optional[float] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[DaemonBeat, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., log: _Optional[_Union[LogData, _Mapping]] = ..., infer: _Optional[_Union[InferData, _Mapping]] = ..., file: _Optional[_Union[FileData, _Mapping]] = ..., leaving: _Optional[_Union[Empty, _Mapping]] = ..., inspected: _Optional[_Union[Inspected, _Mapping]] = ..., failing: _Optional[_Union[Exited, _Mapping]] = ..., exec: _Optional[_Union[ExecData, _Mapping]] = ..., closed: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[DaemonMessage, _Mapping]]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "heartbeat_s", "suspect_s", "act_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_S_FIELD_NUMBER: _ClassVar[int]
    ACT_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    heartbeat_s: float
    suspect_s: float
    act_s: float
    def __init__(self, epoch: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., suspect_s: _Optional[float] = ..., act_s: _Optional[float] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("heartbeat_s", "suspect_s", "act_s")
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_S_FIELD_NUMBER: _ClassVar[int]
    ACT_S_FIELD_NUMBER: _ClassVar[int]
    heartbeat_s: float
    suspect_s: float
    act_s: float
    def __init__(self, heartbeat_s: _Optional[float] = ..., suspect_s: _Optional[float] = ..., act_s: _Optional[float] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("id", "spec", "world_size", "job_key", "resume_from", "plan", "total_steps", "local_rank", "local_world_size", "mark")
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    JOB_KEY_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    spec: JobSpec
    world_size: int
    job_key: str
    resume_from: str
    plan: str
    total_steps: int
    local_rank: int
    local_world_size: int
    mark: JournalMark
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., world_size: _Optional[int] = ..., job_key: _Optional[str] = ..., resume_from: _Optional[str] = ..., plan: _Optional[str] = ..., total_steps: _Optional[int] = ..., local_rank: _Optional[int] = ..., local_world_size: _Optional[int] = ..., mark: _Optional[_Union[JournalMark, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("id", "master_addr", "master_port")
    ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    master_addr: str
    master_port: int
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("id", "grace_s", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: AttemptId
    grace_s: float
    why: str
    def __init__(self, id: _Optional[_Union[AttemptId, _Mapping]] = ..., grace_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class ReadLog(_message.Message):
    __slots__ = ("request", "id", "stream", "offset", "limit", "wait_s", "since")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: AttemptId
    stream: str
    offset: int
    limit: int
    wait_s: float
    since: float
    def __init__(self, request: _Optional[int] = ..., id: _Optional[_Union[AttemptId, _Mapping]] = ..., stream: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., wait_s: _Optional[float] = ..., since: _Optional[float] = ...) -> None: ...

class Inspect(_message.Message):
    __slots__ = ("request", "id", "what", "timeout_s", "trace")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: AttemptId
    what: str
    timeout_s: float
    trace: TraceOrder
    def __init__(self, request: _Optional[int] = ..., id: _Optional[_Union[AttemptId, _Mapping]] = ..., what: _Optional[str] = ..., timeout_s: _Optional[float] = ..., trace: _Optional[_Union[TraceOrder, _Mapping]] = ...) -> None: ...

class Infer(_message.Message):
    __slots__ = ("request", "id", "inputs")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: AttemptId
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, request: _Optional[int] = ..., id: _Optional[_Union[AttemptId, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class ReadFile(_message.Message):
    __slots__ = ("request", "job_id", "name", "life")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    request: int
    job_id: str
    name: str
    life: int
    def __init__(self, request: _Optional[int] = ..., job_id: _Optional[str] = ..., name: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class Exec(_message.Message):
    __slots__ = ("request", "id", "argv", "limit_s", "is_cancelled")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    IS_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    request: int
    id: AttemptId
    argv: _containers.RepeatedScalarFieldContainer[str]
    limit_s: float
    is_cancelled: bool
    def __init__(self, request: _Optional[int] = ..., id: _Optional[_Union[AttemptId, _Mapping]] = ..., argv: _Optional[_Iterable[str]] = ..., limit_s: _Optional[float] = ..., is_cancelled: _Optional[bool] = ...) -> None: ...

class SchedulerMessage(_message.Message):
    __slots__ = ("slot", "welcome", "fenced", "prepare", "start", "stop", "forget", "read_log", "infer", "read_file", "ack", "drain", "noted", "inspect", "retire", "exec", "pace", "closed", "parts")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    READ_FILE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    welcome: Welcome
    fenced: str
    prepare: Prepare
    start: Start
    stop: Stop
    forget: str
    read_log: ReadLog
    infer: Infer
    read_file: ReadFile
    ack: int
    drain: bool
    noted: AttemptId
    inspect: Inspect
    retire: str
    exec: Exec
    pace: Pace
    closed: str
    parts: _containers.RepeatedCompositeFieldContainer[SchedulerMessage]
    def __init__(self, slot: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., fenced: _Optional[str] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., forget: _Optional[str] = ..., read_log: _Optional[_Union[ReadLog, _Mapping]] = ..., infer: _Optional[_Union[Infer, _Mapping]] = ..., read_file: _Optional[_Union[ReadFile, _Mapping]] = ..., ack: _Optional[int] = ..., drain: _Optional[bool] = ..., noted: _Optional[_Union[AttemptId, _Mapping]] = ..., inspect: _Optional[_Union[Inspect, _Mapping]] = ..., retire: _Optional[str] = ..., exec: _Optional[_Union[Exec, _Mapping]] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ..., closed: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[SchedulerMessage, _Mapping]]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("prepare", "master_addr", "master_port", "job_file", "plan_file", "job_dir", "env")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    JOB_FILE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FILE_FIELD_NUMBER: _ClassVar[int]
    JOB_DIR_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    prepare: Prepare
    master_addr: str
    master_port: int
    job_file: str
    plan_file: str
    job_dir: str
    env: _containers.ScalarMap[str, str]
    def __init__(self, prepare: _Optional[_Union[Prepare, _Mapping]] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., job_file: _Optional[str] = ..., plan_file: _Optional[str] = ..., job_dir: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Counted(_message.Message):
    __slots__ = ("name", "labels", "value", "buckets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    value: float
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerCounts(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[Counted]
    def __init__(self, counts: _Optional[_Iterable[_Union[Counted, _Mapping]]] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("ready", "progress", "infer", "failed", "counts", "inspected")
    READY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    ready: Empty
    progress: Progress
    infer: InferData
    failed: Exited
    counts: WorkerCounts
    inspected: Inspected
    def __init__(self, ready: _Optional[_Union[Empty, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., infer: _Optional[_Union[InferData, _Mapping]] = ..., failed: _Optional[_Union[Exited, _Mapping]] = ..., counts: _Optional[_Union[WorkerCounts, _Mapping]] = ..., inspected: _Optional[_Union[Inspected, _Mapping]] = ...) -> None: ...

class WorkerCommand(_message.Message):
    __slots__ = ("begin", "infer", "stop", "inspect")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    INFER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    infer: Infer
    stop: bool
    inspect: Inspect
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., infer: _Optional[_Union[Infer, _Mapping]] = ..., stop: _Optional[bool] = ..., inspect: _Optional[_Union[Inspect, _Mapping]] = ...) -> None: ...
