#!/usr/bin/env python3
"""usage: golden_landmark_query.py RINGMARK   Landmark queries that are no rows of the sequence (`--landmark-query chunk`
and `shared`) and retrieval queries that are made of hidden states (`--calibrate`) on 1, 2, 3 and 5 ranks against
attention.py, with and without landmark slots; landmark queries equal to those of the slots where they are the same,
rotated too. Exit code 1 when a result differs."""
import dataclasses
import os
import sys

import numpy as np

from attention import Policy, compute
from golden import NEAR_TIE
from golden_layers import Layer, Shape
from policy_runs import compare_documents, expect_close, prefill, run_cases
from safetensors_io import write_safetensors

POLICY = Policy("hils", topk=2, window=20, choice="group")
OPTIONS = ["--policy", "hils", "--topk", "2", "--window", "20", "--topk-chunks"]
SLOTS = Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=31)
NO_SLOTS = Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, retrieval_queries=False, seed=32)


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    kind: str  # chunk and shared: the landmark queries; equal: these against each other; calibrate: retrieval queries
    ranks: tuple = (1, 2, 3, 5)


CASES = [Case(f"{kind}{'' if shape.landmark_slots else '-plain'}", shape, kind, ranks) for shape in (SLOTS, NO_SLOTS)
         for kind, ranks in (("chunk", (1, 2, 3, 5)), ("shared", (1, 2, 3, 5)), ("equal", (1, 2, 3)),
                             ("calibrate", (1, 2, 3, 5)))]


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


def compare_runs(case, ringmark, queries, expected, *options):
    """Without the rows whose choice rounding may change."""
    clear = [np.repeat(result.margin > NEAR_TIE, case.shape.heads // len(result.margin), axis=0).T for result in expected]
    worst = 0.0
    for ranks in case.ranks:
        worst = max(worst, compare_documents(queries.layer, queries.run(ringmark, ranks, *options), expected, clear))
    return f"{worst:.1e}"


def check_against_formulas(case, ringmark, queries):
    expected = [queries.expected(at, case.kind) for at in range(len(case.shape.lengths))]
    return compare_runs(case, ringmark, queries, expected, "--landmark-query", case.kind)


def check_calibration(case, ringmark, queries):
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
    documents = [layer.document(at) for at in range(len(shape.lengths))]
    for at, document in enumerate(documents):
        document.landmark_q = retrieval[layer.rows(at)]
    return compare_runs(case, ringmark, queries, [compute(document, POLICY) for document in documents], "--calibrate")


def expect_same(one, other, what):
    for name in one:
        if not np.array_equal(one[name], other[name], equal_nan=True):
            raise AssertionError(f"{what}: {name} differs")


def check_equal_queries(case, ringmark, queries):
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
    worst = expect_close(fast["lse"], reference["lse"].astype(float), everywhere, 0, "lse of the reference", 1e-4)
    return f"{worst:.1e}"


CHECKS = {"chunk": check_against_formulas, "shared": check_against_formulas, "equal": check_equal_queries,
          "calibrate": check_calibration}


def check(case, ringmark, folder):
    queries = Queries(case.shape, os.path.join(folder, f"{case.name}.safetensors"))
    return CHECKS[case.kind](case, ringmark, queries)


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
