"""A stand-in for cuda-python's runtime API: what inflight calls of it, on memory of this machine.

Addresses are real, and a copy beyond an allocation is refused, as a GPU would.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from itertools import count


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidResourceHandle = 400


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStream_t:
    """A stream; unlike an address, it is an object that converts to a number."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __int__(self) -> int:
        return self._handle


_handles = count(1)
_streams: set[int] = set()
_allocated: dict[int, ctypes.Array[ctypes.c_char]] = {}
_OK = cudaError_t.cudaSuccess


def cudaMalloc(size: int) -> tuple[cudaError_t, int | None]:
    if size <= 0:
        return cudaError_t.cudaErrorInvalidValue, None
    memory = ctypes.create_string_buffer(size)
    address = ctypes.addressof(memory)
    _allocated[address] = memory
    return _OK, address


def cudaStreamCreate() -> tuple[cudaError_t, cudaStream_t]:
    stream = cudaStream_t(next(_handles))
    _streams.add(int(stream))
    return _OK, stream


def cudaStreamSynchronize(stream: cudaStream_t) -> tuple[cudaError_t]:
    return (_OK if is_stream(int(stream)) else cudaError_t.cudaErrorInvalidResourceHandle,)


def cudaMemcpyAsync(to: int, source: int, size: int, kind: cudaMemcpyKind, stream: cudaStream_t) -> tuple[cudaError_t]:
    device = to if cudaMemcpyKind(kind) == cudaMemcpyKind.cudaMemcpyHostToDevice else source
    if not isinstance(stream, cudaStream_t) or not is_stream(int(stream)):
        return (cudaError_t.cudaErrorInvalidResourceHandle,)
    if not holds(device, size):
        return (cudaError_t.cudaErrorInvalidValue,)
    ctypes.memmove(to, source, size)
    return (_OK,)


def cudaGetErrorString(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return _OK, error.name.encode()


def is_stream(handle: int) -> bool:
    """Not of the real API: for the stand-in for TensorRT."""
    return handle in _streams


def holds(address: int, size: int) -> bool:
    """Not of the real API: whether so many bytes are allocated there."""
    return address in _allocated and size <= len(_allocated[address])
