#!/usr/bin/env python3
"""rotate_layer.py IN OUT: the bf16 layer IN, rotated in fp64 as `--rope yarn --rope-factor 8 --rope-original 4096
--rope-layout interleaved --rope-dims 48` must, the gain in the scale of the metadata. Chunks are 64 with landmarks."""
import json
import math
import struct
import sys

THETA, FACTOR, LENGTH, DIMS = 10000.0, 8.0, 4096, 48


def frequencies():
    def pair(turns):
        return DIMS * math.log(LENGTH / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), DIMS - 1)
    for j in range(DIMS // 2):
        w = THETA ** (-2 * j / DIMS)
        ramp = min(max((j - low) / (high - low), 0), 1)
        yield w / FACTOR * ramp + w * (1 - ramp)


def to_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def to_bits(x):
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


with open(sys.argv[1], "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    head = file.read(length)
    data = bytearray(file.read())
header = json.loads(head)
turns = list(frequencies())
for name in ("q", "k", "landmark_q"):
    rows, heads, dims = header[name]["shape"]
    begin, end = header[name]["data_offsets"]
    x = list(struct.unpack(f"<{(end - begin) // 2}H", data[begin:end]))
    for slot in range(rows):
        position = slot - slot // 64
        for j, w in enumerate(turns):
            c, s = math.cos(position * w), math.sin(position * w)
            for h in range(heads):
                at = (slot * heads + h) * dims + 2 * j
                a, b = to_float(x[at]), to_float(x[at + 1])
                x[at], x[at + 1] = to_bits(a * c - b * s), to_bits(a * s + b * c)
    data[begin:end] = struct.pack(f"<{len(x)}H", *x)
gain = (0.1 * math.log(FACTOR) + 1) ** 2
header["__metadata__"]["scale"] = repr(float(header["__metadata__"]["scale"]) * gain)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
