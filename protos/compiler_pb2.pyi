from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompileAsk(_message.Message):
    __slots__ = ("only_check", "job_file", "kind", "devices", "device_type", "steps", "hosts", "auto_parallel", "zero", "amp")
    ONLY_CHECK_FIELD_NUMBER: _ClassVar[int]
    JOB_FILE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AUTO_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ZERO_FIELD_NUMBER: _ClassVar[int]
    AMP_FIELD_NUMBER: _ClassVar[int]
    only_check: bool
    job_file: str
    kind: str
    devices: int
    device_type: str
    steps: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    auto_parallel: bool
    zero: int
    amp: str
    def __init__(self, only_check: _Optional[bool] = ..., job_file: _Optional[str] = ..., kind: _Optional[str] = ..., devices: _Optional[int] = ..., device_type: _Optional[str] = ..., steps: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., auto_parallel: _Optional[bool] = ..., zero: _Optional[int] = ..., amp: _Optional[str] = ...) -> None: ...

class CompileProgress(_message.Message):
    __slots__ = ("name", "done", "total")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    done: int
    total: int
    def __init__(self, name: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class CompileFailed(_message.Message):
    __slots__ = ("type", "reason", "exit_code", "message", "is_defect")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFECT_FIELD_NUMBER: _ClassVar[int]
    type: str
    reason: str
    exit_code: int
    message: str
    is_defect: bool
    def __init__(self, type: _Optional[str] = ..., reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., is_defect: _Optional[bool] = ...) -> None: ...

class CompileDone(_message.Message):
    __slots__ = ("most_steps", "seconds")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    most_steps: int
    seconds: _containers.ScalarMap[str, float]
    def __init__(self, most_steps: _Optional[int] = ..., seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CompileAnswer(_message.Message):
    __slots__ = ("ready", "progress", "plan", "failed", "done")
    READY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    progress: CompileProgress
    plan: bytes
    failed: CompileFailed
    done: CompileDone
    def __init__(self, ready: _Optional[bool] = ..., progress: _Optional[_Union[CompileProgress, _Mapping]] = ..., plan: _Optional[bytes] = ..., failed: _Optional[_Union[CompileFailed, _Mapping]] = ..., done: _Optional[_Union[CompileDone, _Mapping]] = ...) -> None: ...
