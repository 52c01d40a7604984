#!/usr/bin/env python3
"""usage: golden_landmark_query.py RINGMARK   Landmark queries that are no rows of the sequence (`--landmark-query chunk`
and `shared`) and retrieval queries that are made of hidden states (`--calibrate`) on 1, 2, 3 and 5 ranks against
attention.py, with and without landmark slots; landmark queries equal to those of the slots where they are the same,
rotated too. Exit code 1 when a result differs."""
import os
import sys
import tempfile

import numpy as np

from attention import Policy, compute
from golden import NEAR_TIE
from golden_layers import Layer, Shape
from policy_runs import expect_close, prefill
from safetensors_io import write_safetensors

POLICY = Policy("hils", topk=2, window=20, choice="group")
OPTIONS = ["--policy", "hils", "--topk", "2", "--window", "20", "--topk-chunks"]
SHAPES = [Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=31),
          Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, retrieval_queries=False, seed=32)]


class Queries:
    """A layer file with landmark queries beside the sequence: [documents][full chunks, H, d] and [H, d]."""

    def __init__(self, shape, path):
        self.shape, self.layer, self.path = shape, Layer(shape), path
        random = np.random.default_rng(shape.seed + 100)
        full = [length // shape.chunk for length in shape.lengths]
        draw = lambda *extents: random.standard_normal((*extents, shape.heads, shape.head_dim)).astype(np.float32)
        self.of_chunks = [draw(count) for count in full]
        self.shared = draw()
        self.write({"chunk_landmark_q": np.concatenate(self.of_chunks), "shared_landmark_q": self.shared})

    def write(self, queries):
        tensors = {**self.layer.tensors, **queries, "cu_seqlens": self.layer.starts.astype(np.int64)}
        metadata = {"chunk_size": self.shape.chunk, "landmark_slots": int(self.shape.landmark_slots)}
        write_safetensors(self.path, tensors, metadata)

    def expected(self, at, kind):
        document = self.layer.document(at)
        chunks = self.of_chunks[at]
        document.chunk_landmark_q = chunks if kind == "chunk" else np.broadcast_to(self.shared, chunks.shape)
        return compute(document, POLICY)

    def run(self, ringmark, ranks, *options):
        return prefill(ringmark, ranks, self.path, OPTIONS + list(options), self.path + ".result")


def check_against_formulas(ringmark, queries, kind):
    worst = 0.0
    expected = [queries.expected(at, kind) for at in range(len(queries.shape.lengths))]
    for ranks in (1, 2, 3, 5):
        found = queries.run(ringmark, ranks, "--landmark-query", kind)
        for at, result in enumerate(expected):
            heads = queries.shape.heads // len(result.margin)
            clear = np.repeat(result.margin > NEAR_TIE, heads, axis=0).T
            rows, start = queries.layer.rows(at), int(queries.layer.starts[at])
            for name in ("o", "lse"):
                worst = max(worst, expect_close(found[name][rows], getattr(result, name), clear, start, name))
    print(f"{kind:<7} slots {queries.shape.landmark_slots!s:<6} largest difference {worst:.1e}", flush=True)


def check_calibration(ringmark, queries):
    """q~ = norm . x / rms x, x = W_q h + W_up W_down h, of the file's own hidden states and weights."""
    shape, layer = queries.shape, queries.layer
    random, model, low = np.random.default_rng(shape.seed + 200), 48, 5
    width = shape.heads * shape.head_dim
    draw = lambda *extents: random.standard_normal(extents).astype(np.float32)
    hidden, of_q, up, down, norm = draw(int(layer.starts[-1]), model), draw(width, model), draw(width, low), \
        draw(low, model), draw(shape.head_dim)
    tensors = {name: values for name, values in layer.tensors.items() if name != "landmark_q"}
    metadata = {"chunk_size": shape.chunk, "landmark_slots": int(shape.landmark_slots)}
    weights = {"calibration.q": of_q, "calibration.up": up, "calibration.down": down, "calibration.norm": norm}
    write_safetensors(queries.path, {**tensors, "hidden": hidden, **weights, "cu_seqlens": layer.starts.astype(np.int64)},
                      metadata)
    wide = hidden.astype(float)
    x = (wide @ of_q.T.astype(float) + (wide @ down.T) @ up.T).reshape(len(hidden), shape.heads, shape.head_dim)
    retrieval = norm * x / np.sqrt((x * x).mean(axis=2, keepdims=True) + 1e-6)
    worst = 0.0
    for ranks in (1, 2, 3, 5):
        found = queries.run(ringmark, ranks, "--calibrate")
        for at in range(len(shape.lengths)):
            document, rows = layer.document(at), layer.rows(at)
            document.landmark_q = retrieval[rows]
            result = compute(document, POLICY)
            clear = np.repeat(result.margin > NEAR_TIE, shape.heads // len(result.margin), axis=0).T
            for name in ("o", "lse"):
                start = int(layer.starts[at])
                worst = max(worst, expect_close(found[name][rows], getattr(result, name), clear, start, name))
    print(f"calibrate slots {shape.landmark_slots!s:<6} largest difference {worst:.1e}", flush=True)


def expect_same(one, other, what):
    for name in one:
        if not np.array_equal(one[name], other[name], equal_nan=True):
            raise AssertionError(f"{what}: {name} differs")


def check_equal_queries(ringmark, queries):
    """Those of the slots, given beside the sequence, and one for all, given for every chunk."""
    shape, layer = queries.shape, queries.layer
    rows = layer.tensors.get("landmark_q", layer.tensors["q"])
    ends = [start + (chunk + 1) * shape.chunk - 1
            for start, length in zip(layer.starts, shape.lengths) for chunk in range(length // shape.chunk)]
    rope = ("--rope", "rope")
    for rotation in ((), rope):
        queries.write({"chunk_landmark_q": rows[ends], "shared_landmark_q": queries.shared})
        expect_same(queries.run(ringmark, 2, "--landmark-query", "chunk", *rotation),
                    queries.run(ringmark, 1, *rotation), f"chunk and slot {' '.join(rotation)}")
        every = np.repeat(queries.shared[None], len(ends), 0)
        queries.write({"chunk_landmark_q": every, "shared_landmark_q": queries.shared})
        shared = queries.run(ringmark, 3, "--landmark-query", "shared", *rotation)
        expect_same(queries.run(ringmark, 2, "--landmark-query", "chunk", *rotation), shared,
                    f"shared and chunk {' '.join(rotation)}")
        if np.array_equal(shared["o"], queries.run(ringmark, 1, *rotation)["o"]):
            raise AssertionError("the landmark query changes nothing")
    reference = queries.run(ringmark, 2, "--landmark-query", "shared", "--backend", "reference")
    fast = queries.run(ringmark, 2, "--landmark-query", "shared")
    everywhere = np.ones(fast["lse"].shape, bool)
    expect_close(fast["lse"], reference["lse"].astype(float), everywhere, 0, "lse of the reference", 1e-4)


def main(ringmark):
    ringmark, failures = os.path.abspath(ringmark), 0
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            queries = Queries(shape, os.path.join(folder, f"{shape.seed}.safetensors"))
            try:
                for kind in ("chunk", "shared"):
                    check_against_formulas(ringmark, queries, kind)
                check_equal_queries(ringmark, queries)
                check_calibration(ringmark, queries)
            except AssertionError as difference:
                failures += 1
                print(f"seed {shape.seed}: FAIL: {difference}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
