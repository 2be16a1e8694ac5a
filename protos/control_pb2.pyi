from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("type", "text")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    type: str
    text: str
    def __init__(self, type: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("rank", "host", "pid", "incarnation", "place", "pages")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    pid: int
    incarnation: int
    place: str
    pages: bytes
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., incarnation: _Optional[int] = ..., place: _Optional[str] = ..., pages: _Optional[bytes] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("member", "world_size", "epoch", "protocol", "version", "timeout_s")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    member: Member
    world_size: int
    epoch: int
    protocol: int
    version: str
    timeout_s: float
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., world_size: _Optional[int] = ..., epoch: _Optional[int] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("error", "members")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("key", "timeout_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    key: str
    timeout_s: float
    def __init__(self, key: _Optional[str] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("error", "value")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    error: Error
    value: bytes
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., value: _Optional[bytes] = ...) -> None: ...

class BarrierRequest(_message.Message):
    __slots__ = ("name", "rank", "timeout_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    rank: int
    timeout_s: float
    def __init__(self, name: _Optional[str] = ..., rank: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class BarrierReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("rank", "place", "number", "text", "missing", "reached")
    class ReachedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    place: str
    number: int
    text: str
    missing: _containers.RepeatedScalarFieldContainer[int]
    reached: _containers.ScalarMap[str, int]
    def __init__(self, rank: _Optional[int] = ..., place: _Optional[str] = ..., number: _Optional[int] = ..., text: _Optional[str] = ..., missing: _Optional[_Iterable[int]] = ..., reached: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WaitReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class CompileHeader(_message.Message):
    __slots__ = ("rank", "sequence", "job_name", "digest", "graph_nbytes", "config", "timeout_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRAPH_NBYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    sequence: int
    job_name: str
    digest: bytes
    graph_nbytes: int
    config: bytes
    timeout_s: float
    def __init__(self, rank: _Optional[int] = ..., sequence: _Optional[int] = ..., job_name: _Optional[str] = ..., digest: _Optional[bytes] = ..., graph_nbytes: _Optional[int] = ..., config: _Optional[bytes] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class CompileUp(_message.Message):
    __slots__ = ("header", "graph_chunk", "node_digests", "node_text")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GRAPH_CHUNK_FIELD_NUMBER: _ClassVar[int]
    NODE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    NODE_TEXT_FIELD_NUMBER: _ClassVar[int]
    header: CompileHeader
    graph_chunk: bytes
    node_digests: bytes
    node_text: str
    def __init__(self, header: _Optional[_Union[CompileHeader, _Mapping]] = ..., graph_chunk: _Optional[bytes] = ..., node_digests: _Optional[bytes] = ..., node_text: _Optional[str] = ...) -> None: ...

class PlanHeader(_message.Message):
    __slots__ = ("nbytes",)
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    def __init__(self, nbytes: _Optional[int] = ...) -> None: ...

class CompileDown(_message.Message):
    __slots__ = ("error", "want_node_digests", "want_node_text", "plan", "plan_chunk")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WANT_NODE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    WANT_NODE_TEXT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PLAN_CHUNK_FIELD_NUMBER: _ClassVar[int]
    error: Error
    want_node_digests: bool
    want_node_text: int
    plan: PlanHeader
    plan_chunk: bytes
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., want_node_digests: _Optional[bool] = ..., want_node_text: _Optional[int] = ..., plan: _Optional[_Union[PlanHeader, _Mapping]] = ..., plan_chunk: _Optional[bytes] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("rank", "incarnation", "progress")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    progress: int
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., progress: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("rank", "host", "cause", "exit_code", "reason")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    cause: str
    exit_code: int
    reason: str
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("ack", "abort", "left", "closing")
    ACK_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    ack: int
    abort: Failure
    left: int
    closing: bool
    def __init__(self, ack: _Optional[int] = ..., abort: _Optional[_Union[Failure, _Mapping]] = ..., left: _Optional[int] = ..., closing: _Optional[bool] = ...) -> None: ...

class FailureReport(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class FailureReply(_message.Message):
    __slots__ = ("error", "first")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    error: Error
    first: Failure
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., first: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("rank", "incarnation")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...
