#!/usr/bin/env python3
"""add_positions.py IN OUT SHIFT [TOKEN ID]: a layer file (safetensors) with the tensor `positions`: those of HiLS with
chunks of 64, all shifted; that of one token may be set."""
import json
import struct
import sys

source, target, shift = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(source, "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    data = file.read()
rows = header["q"]["shape"][0]
ids = [slot - slot // 64 + shift for slot in range(rows)]
if len(sys.argv) > 4:
    ids[int(sys.argv[4])] = int(sys.argv[5])
header["positions"] = {"dtype": "I64", "shape": [rows], "data_offsets": [len(data), len(data) + 8 * rows]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(target, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data + struct.pack(f"<{rows}q", *ids))
