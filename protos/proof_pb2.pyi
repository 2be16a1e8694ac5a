from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ProofStep(_message.Message):
    __slots__ = ("key", "nonce", "near", "far", "masked")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    NEAR_FIELD_NUMBER: _ClassVar[int]
    FAR_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    nonce: bytes
    near: str
    far: str
    masked: bytes
    def __init__(self, key: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., near: _Optional[str] = ..., far: _Optional[str] = ..., masked: _Optional[bytes] = ...) -> None: ...

class DoorStep(_message.Message):
    __slots__ = ("nonce", "session", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    session: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., session: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...
