"""Random layers with what the checks look for: several documents in one file, among them a planted needle, two documents
that differ in one key, one of a single token and an empty one."""
import dataclasses

import numpy as np

from attention import Document
from safetensors_io import from_bf16, to_bf16, write_safetensors


@dataclasses.dataclass
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    chunk: int
    landmark_slots: bool
    dtype: str = "fp32"  # or fp16, bf16
    retrieval_queries: bool = True
    lengths: tuple = (101, 100, 75, 75, 1, 0)  # of the documents
    seed: int = 1


NEEDLE, TWIN, OTHER_TWIN = 1, 2, 3  # documents
NEEDLE_VALUE = 7.0


class Layer:
    def __init__(self, shape):
        self.shape = shape
        self.starts = np.concatenate([[0], np.cumsum(shape.lengths)])
        random = np.random.default_rng(shape.seed)
        tokens = int(self.starts[-1])
        draw = lambda heads: random.standard_normal((tokens, heads, shape.head_dim)).astype(np.float32)
        self.tensors = {"q": draw(shape.heads), "k": draw(shape.kv_heads), "v": draw(shape.kv_heads)}
        if shape.retrieval_queries:
            self.tensors["landmark_q"] = draw(shape.heads)
        self.sink_logits = random.standard_normal(shape.heads).astype(np.float32)
        self.plant_needle()
        # A token in the middle, which is no landmark slot under any shape.
        self.changed = shape.lengths[TWIN] // 2 // shape.chunk * shape.chunk + 1
        self.copy_document(random)
        self.round()

    def rows(self, document):
        return slice(self.starts[document], self.starts[document + 1])

    def plant_needle(self):
        """A key of length 20 in the direction of the query of the last row but one, in the second chunk. The chunk's
        landmark slot and landmark query point there too."""
        shape, start = self.shape, self.starts[NEEDLE]
        self.needle, self.needle_row = shape.chunk + 2, shape.lengths[NEEDLE] - 2
        slot = start + 2 * shape.chunk - 1
        queries = self.tensors["q"]
        landmark_queries = self.tensors.get("landmark_q", queries)
        for h in range(shape.heads):
            g = h * shape.kv_heads // shape.heads
            query = queries[start + self.needle_row, g * shape.heads // shape.kv_heads].copy()
            queries[start + self.needle_row, h] = landmark_queries[start + self.needle_row, h] = query
            landmark_queries[slot, h] = query
            key = 20 * query / np.linalg.norm(query)
            self.tensors["k"][start + self.needle, g] = key
            if shape.landmark_slots:
                self.tensors["k"][slot, g] = key
        self.tensors["v"][start + self.needle] = NEEDLE_VALUE

    def copy_document(self, random):
        for name, values in self.tensors.items():
            values[self.rows(OTHER_TWIN)] = values[self.rows(TWIN)]
            if name in ("k", "v"):
                at = self.starts[OTHER_TWIN] + self.changed
                values[at] = 2 * random.standard_normal(values[at].shape)

    def round(self):
        to = {"fp32": lambda x: x, "fp16": lambda x: x.astype(np.float16), "bf16": lambda x: from_bf16(to_bf16(x))}
        self.tensors = {name: to[self.shape.dtype](values) for name, values in self.tensors.items()}

    def write(self, path, with_sink_logits):
        tensors = {**self.tensors, "cu_seqlens": self.starts.astype(np.int64)}
        if with_sink_logits:
            tensors["sink_logits"] = self.sink_logits
        metadata = {"chunk_size": self.shape.chunk, "landmark_slots": int(self.shape.landmark_slots)}
        write_safetensors(path, tensors, metadata, bf16=tuple(self.tensors) if self.shape.dtype == "bf16" else ())

    def document(self, at, **logits):
        part = {name: values[self.rows(at)].astype(np.float64) for name, values in self.tensors.items()}
        part.setdefault("landmark_q", part["q"])
        scale = float(np.float32(self.shape.head_dim**-0.5))
        return Document(**part, chunk=self.shape.chunk, scale=scale, landmark_slots=self.shape.landmark_slots, **logits)


def compare_twins(layer, found, sees, tolerance=0.0):
    """Of two documents that differ in one key, rows that do not see it (sees [n, H]) have the same o [N, H, d] up to the
    tolerance, and some that do have not. Returns how far all are apart, [n, H]."""
    one, other = (found[layer.rows(at)] for at in (TWIN, OTHER_TWIN))
    apart = np.abs(one - other).max(2)
    leaks = ~(apart <= tolerance) & ~sees  # NaN is no agreement
    if leaks.any():
        token, head = np.argwhere(leaks)[0]
        raise AssertionError(f"token {token} of the twins, head {head}, changed by {apart[token, head]:.3g} with key "
                             f"{layer.changed}, which it does not see")
    if not ((apart > tolerance) & sees).any():
        raise AssertionError(f"no row changes with key {layer.changed} of its document")
    return apart
