from oneflow.protos import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActorSpec(_message.Message):
    __slots__ = ("kind", "nodes", "level", "inputs", "outputs", "acts")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SEGMENT: _ClassVar[ActorSpec.Kind]
        INPUT: _ClassVar[ActorSpec.Kind]
        OUTPUT: _ClassVar[ActorSpec.Kind]
        UNPACK: _ClassVar[ActorSpec.Kind]
        PACK: _ClassVar[ActorSpec.Kind]
        ACCUMULATE: _ClassVar[ActorSpec.Kind]
        BOXING: _ClassVar[ActorSpec.Kind]
        FLAT_REDUCE: _ClassVar[ActorSpec.Kind]
        FLAT_REDUCE_SCATTER: _ClassVar[ActorSpec.Kind]
        FLAT_ALL_GATHER: _ClassVar[ActorSpec.Kind]
        BOX_SUM: _ClassVar[ActorSpec.Kind]
        BOX_SPREAD: _ClassVar[ActorSpec.Kind]
        ALL_REDUCE: _ClassVar[ActorSpec.Kind]
    SEGMENT: ActorSpec.Kind
    INPUT: ActorSpec.Kind
    OUTPUT: ActorSpec.Kind
    UNPACK: ActorSpec.Kind
    PACK: ActorSpec.Kind
    ACCUMULATE: ActorSpec.Kind
    BOXING: ActorSpec.Kind
    FLAT_REDUCE: ActorSpec.Kind
    FLAT_REDUCE_SCATTER: ActorSpec.Kind
    FLAT_ALL_GATHER: ActorSpec.Kind
    BOX_SUM: ActorSpec.Kind
    BOX_SPREAD: ActorSpec.Kind
    ALL_REDUCE: ActorSpec.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ACTS_FIELD_NUMBER: _ClassVar[int]
    kind: ActorSpec.Kind
    nodes: _containers.RepeatedScalarFieldContainer[int]
    level: int
    inputs: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    acts: int
    def __init__(self, kind: _Optional[_Union[ActorSpec.Kind, str]] = ..., nodes: _Optional[_Iterable[int]] = ..., level: _Optional[int] = ..., inputs: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[int]] = ..., acts: _Optional[int] = ...) -> None: ...

class RegisterSpec(_message.Message):
    __slots__ = ("values", "producer", "consumers", "num_slots", "items", "storage")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    producer: int
    consumers: _containers.RepeatedScalarFieldContainer[int]
    num_slots: int
    items: int
    storage: int
    def __init__(self, values: _Optional[_Iterable[int]] = ..., producer: _Optional[int] = ..., consumers: _Optional[_Iterable[int]] = ..., num_slots: _Optional[int] = ..., items: _Optional[int] = ..., storage: _Optional[int] = ...) -> None: ...

class Turns(_message.Message):
    __slots__ = ("actors",)
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    actors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actors: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("version", "graph", "actors", "registers", "world_size", "turns", "sizes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    version: int
    graph: _graph_pb2.Graph
    actors: _containers.RepeatedCompositeFieldContainer[ActorSpec]
    registers: _containers.RepeatedCompositeFieldContainer[RegisterSpec]
    world_size: int
    turns: _containers.RepeatedCompositeFieldContainer[Turns]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., actors: _Optional[_Iterable[_Union[ActorSpec, _Mapping]]] = ..., registers: _Optional[_Iterable[_Union[RegisterSpec, _Mapping]]] = ..., world_size: _Optional[int] = ..., turns: _Optional[_Iterable[_Union[Turns, _Mapping]]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...
