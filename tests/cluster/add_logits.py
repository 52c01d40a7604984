#!/usr/bin/env python3
"""add_logits.py IN OUT [KEY=VALUE...] [-- SINK...]: a layer file (safetensors) with further metadata and, with sinks, the tensor
`sink_logits`."""
import json
import struct
import sys

source, target, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
split = rest.index("--") if "--" in rest else len(rest)
sinks = [float(text) for text in rest[split + 1:]]
with open(source, "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    data = file.read()
header.setdefault("__metadata__", {}).update(entry.split("=") for entry in rest[:split])
if sinks:
    begin = len(data)
    data += struct.pack(f"<{len(sinks)}f", *sinks)
    header["sink_logits"] = {"dtype": "F32", "shape": [len(sinks)], "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(target, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
