#!/usr/bin/env python3
"""cut_layer.py IN OUT FIRST END [no-position]: a layer file of the tokens [FIRST, END) of another one (safetensors), with
their positions, so that it is a steps file too."""
import json
import struct
import sys


def main():
    source, target, first, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with open(source, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        cut, data = {}, []
        at = 0
        for name, tensor in header.items():
            if name == "__metadata__":
                cut[name] = tensor
                continue
            begin, stop = tensor["data_offsets"]
            row = (stop - begin) // tensor["shape"][0]
            file.seek(8 + length + begin + first * row)
            data.append(file.read((end - first) * row))
            cut[name] = {"dtype": tensor["dtype"], "shape": [end - first] + tensor["shape"][1:],
                         "data_offsets": [at, at + len(data[-1])]}
            at += len(data[-1])
    if sys.argv[5:] != ["no-position"]:
        data.append(struct.pack(f"<{end - first}q", *range(first, end)))
        cut["position"] = {"dtype": "I64", "shape": [end - first], "data_offsets": [at, at + len(data[-1])]}
    text = json.dumps(cut).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


main()
