from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttrTuple(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[AttrValue]
    def __init__(self, items: _Optional[_Iterable[_Union[AttrValue, _Mapping]]] = ...) -> None: ...

class AttrValue(_message.Message):
    __slots__ = ("bool", "int", "big", "float", "string", "dtype", "tuple")
    BOOL_FIELD_NUMBER: _ClassVar[int]
    INT_FIELD_NUMBER: _ClassVar[int]
    BIG_FIELD_NUMBER: _ClassVar[int]
    FLOAT_FIELD_NUMBER: _ClassVar[int]
    STRING_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TUPLE_FIELD_NUMBER: _ClassVar[int]
    bool: bool
    int: int
    big: int
    float: float
    string: str
    dtype: str
    tuple: AttrTuple
    def __init__(self, bool: _Optional[bool] = ..., int: _Optional[int] = ..., big: _Optional[int] = ..., float: _Optional[float] = ..., string: _Optional[str] = ..., dtype: _Optional[str] = ..., tuple: _Optional[_Union[AttrTuple, _Mapping]] = ...) -> None: ...

class Attrs(_message.Message):
    __slots__ = ("names", "values")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedCompositeFieldContainer[AttrValue]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[_Union[AttrValue, _Mapping]]] = ...) -> None: ...

class TensorTypeProto(_message.Message):
    __slots__ = ("dtype", "shape")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class PlacementProto(_message.Message):
    __slots__ = ("device_type", "hierarchy", "runs")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    HIERARCHY_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    device_type: str
    hierarchy: _containers.RepeatedScalarFieldContainer[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, device_type: _Optional[str] = ..., hierarchy: _Optional[_Iterable[int]] = ..., runs: _Optional[_Iterable[int]] = ...) -> None: ...

class NdSbpProto(_message.Message):
    __slots__ = ("axes",)
    AXES_FIELD_NUMBER: _ClassVar[int]
    axes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, axes: _Optional[_Iterable[int]] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("name", "num_pieces", "value_id_bound", "ops", "attrs", "types", "placements", "sbps", "locations", "modules", "node_op", "node_attrs", "node_placement", "node_num_inputs", "node_num_outputs", "node_stage", "node_is_piece", "node_location", "node_module", "node_phase", "node_grad_of", "inputs", "value_id", "value_type", "value_sbp")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_PIECES_FIELD_NUMBER: _ClassVar[int]
    VALUE_ID_BOUND_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    ATTRS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    SBPS_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    NODE_OP_FIELD_NUMBER: _ClassVar[int]
    NODE_ATTRS_FIELD_NUMBER: _ClassVar[int]
    NODE_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    NODE_NUM_INPUTS_FIELD_NUMBER: _ClassVar[int]
    NODE_NUM_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    NODE_STAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_IS_PIECE_FIELD_NUMBER: _ClassVar[int]
    NODE_LOCATION_FIELD_NUMBER: _ClassVar[int]
    NODE_MODULE_FIELD_NUMBER: _ClassVar[int]
    NODE_PHASE_FIELD_NUMBER: _ClassVar[int]
    NODE_GRAD_OF_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    VALUE_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_SBP_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_pieces: int
    value_id_bound: int
    ops: _containers.RepeatedScalarFieldContainer[str]
    attrs: _containers.RepeatedCompositeFieldContainer[Attrs]
    types: _containers.RepeatedCompositeFieldContainer[TensorTypeProto]
    placements: _containers.RepeatedCompositeFieldContainer[PlacementProto]
    sbps: _containers.RepeatedCompositeFieldContainer[NdSbpProto]
    locations: _containers.RepeatedScalarFieldContainer[str]
    modules: _containers.RepeatedScalarFieldContainer[str]
    node_op: _containers.RepeatedScalarFieldContainer[int]
    node_attrs: _containers.RepeatedScalarFieldContainer[int]
    node_placement: _containers.RepeatedScalarFieldContainer[int]
    node_num_inputs: _containers.RepeatedScalarFieldContainer[int]
    node_num_outputs: _containers.RepeatedScalarFieldContainer[int]
    node_stage: _containers.RepeatedScalarFieldContainer[int]
    node_is_piece: _containers.RepeatedScalarFieldContainer[bool]
    node_location: _containers.RepeatedScalarFieldContainer[int]
    node_module: _containers.RepeatedScalarFieldContainer[int]
    node_phase: _containers.RepeatedScalarFieldContainer[int]
    node_grad_of: _containers.RepeatedScalarFieldContainer[int]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    value_id: _containers.RepeatedScalarFieldContainer[int]
    value_type: _containers.RepeatedScalarFieldContainer[int]
    value_sbp: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., num_pieces: _Optional[int] = ..., value_id_bound: _Optional[int] = ..., ops: _Optional[_Iterable[str]] = ..., attrs: _Optional[_Iterable[_Union[Attrs, _Mapping]]] = ..., types: _Optional[_Iterable[_Union[TensorTypeProto, _Mapping]]] = ..., placements: _Optional[_Iterable[_Union[PlacementProto, _Mapping]]] = ..., sbps: _Optional[_Iterable[_Union[NdSbpProto, _Mapping]]] = ..., locations: _Optional[_Iterable[str]] = ..., modules: _Optional[_Iterable[str]] = ..., node_op: _Optional[_Iterable[int]] = ..., node_attrs: _Optional[_Iterable[int]] = ..., node_placement: _Optional[_Iterable[int]] = ..., node_num_inputs: _Optional[_Iterable[int]] = ..., node_num_outputs: _Optional[_Iterable[int]] = ..., node_stage: _Optional[_Iterable[int]] = ..., node_is_piece: _Optional[_Iterable[bool]] = ..., node_location: _Optional[_Iterable[int]] = ..., node_module: _Optional[_Iterable[int]] = ..., node_phase: _Optional[_Iterable[int]] = ..., node_grad_of: _Optional[_Iterable[int]] = ..., inputs: _Optional[_Iterable[int]] = ..., value_id: _Optional[_Iterable[int]] = ..., value_type: _Optional[_Iterable[int]] = ..., value_sbp: _Optional[_Iterable[int]] = ...) -> None: ...
