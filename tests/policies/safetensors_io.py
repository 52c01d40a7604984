"""Layers and results as numpy arrays. bf16, which numpy lacks, comes as fp32 and is written from it, rounded to nearest."""
import json
import struct

import numpy as np

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U32": "<u4", "U8": "u1"}
NAMES = {np.dtype(text).name: name for name, text in TYPES.items()}


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """Bits of finite values, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def read_safetensors(path):
    """(tensors by name, metadata) of a file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        bf16 = entry["dtype"] == "BF16"
        values = np.frombuffer(data[begin:end], "<u2" if bf16 else TYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = from_bf16(values) if bf16 else values
    return tensors, metadata


def write_safetensors(path, tensors, metadata=None, bf16=()):
    """Writes arrays in their own types, and those named in `bf16` as BF16. Values of the metadata become text."""
    header, data, at = {}, [], 0
    if metadata:
        header["__metadata__"] = {key: str(value) for key, value in metadata.items()}
    for name, values in tensors.items():
        values = np.asarray(values)
        dtype = "BF16" if name in bf16 else NAMES[values.dtype.name]
        raw = (to_bf16(values) if name in bf16 else values.astype(TYPES[dtype])).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
