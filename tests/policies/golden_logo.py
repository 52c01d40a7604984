#!/usr/bin/env python3
"""usage: golden_logo.py RINGMARK [CASE...]   Compares `ringmark prefill --policy logo` on 1, 2, 3 and 5 ranks with LoGo
(arXiv 2608.29539) over whole matrices in fp64, as docs/policies.md describes it. A case may be a pattern; without one all
run. Exit code 1 when a result differs."""
import dataclasses
import os
import sys

import numpy as np

from attention import Result, absorb_sink_logits, attend, keys, places
from golden_layers import NEEDLE, OTHER_TWIN, TWIN, Layer, Shape, compare_twins
from policy_runs import compare_documents, prefill, run_cases
from safetensors_io import from_bf16, to_bf16

EPSILON = 1e-6


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    window: int
    threshold: float
    gate: str = "gate"  # the tensor, or hidden states
    weights: tuple = ()  # tensors of the branches
    options: tuple = ()
    logits: dict = dataclasses.field(default_factory=dict)
    ranks: tuple = (1, 2, 3, 5)


GQA = Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=41)
HALF = Shape(heads=6, kv_heads=2, head_dim=80, chunk=10, landmark_slots=True, dtype="fp16", seed=44)
CASES = [
    Case("plain-gqa", GQA, window=20, threshold=0.5),
    Case("plain-ring", GQA, window=20, threshold=0.5, options=("--merge", "ring"), ranks=(3, 5)),
    Case("plain-pass-q", GQA, window=20, threshold=0.7, options=("--merge", "pass-q"), ranks=(2, 5)),
    Case("plain-hidden", Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, seed=42), window=1,
         threshold=0.4, gate="hidden", weights=("logo.local_norm", "logo.global_norm"), ranks=(2, 5)),
    Case("plain-mqa-bf16", Shape(heads=4, kv_heads=1, head_dim=64, chunk=12, landmark_slots=True, dtype="bf16", seed=43),
         window=33, threshold=0.25, weights=("logo.global_scale", "logo.global_offset"), ranks=(1, 3)),
    Case("plain-nobody", HALF, window=9, threshold=1.0, ranks=(5,)),
    Case("plain-everybody", HALF, window=9, threshold=-2.0, ranks=(3,)),
    Case("plain-reference", GQA, window=20, threshold=0.5, options=("--backend", "reference"), ranks=(2,)),
    Case("logits-alibi", GQA, window=20, threshold=0.5, options=("--alibi", "--logit-cap", "2"),
         logits={"alibi": True, "logit_cap": 2.0}, ranks=(1, 3)),
    Case("logits-zero", HALF, window=9, threshold=0.5, options=("--softmax-zero",), logits={"sink_logits": np.zeros(6)},
         ranks=(2,)),
]


def add_branch_tensors(case, layer):
    """Into the file; returns the gates [N] and the weights in fp64."""
    random = np.random.default_rng(case.shape.seed + 1000)
    tokens, d = int(layer.starts[-1]), case.shape.head_dim
    if case.gate == "gate":
        tensors = {"gate": random.uniform(0.01, 0.98, tokens)}
        tensors["gate"][layer.starts[NEEDLE] + layer.needle_row] = 0.99
    else:
        tensors = {"hidden": random.standard_normal((tokens, 24)), "gate_weight": random.standard_normal(24),
                   "gate_bias": np.array([0.25])}
    # The twins differ in one key, not in their gates.
    tensors[case.gate][layer.rows(OTHER_TWIN)] = tensors[case.gate][layer.rows(TWIN)]
    for name in case.weights:
        tensors[name] = random.standard_normal((d,) if name.endswith("norm") else (case.shape.heads, d))
    stored = (lambda values: from_bf16(to_bf16(values))) if case.shape.dtype == "bf16" else lambda values: values.astype(np.float32)
    tensors = {name: stored(values) for name, values in tensors.items()}
    layer.tensors.update(tensors)
    wide = {name: values.astype(np.float64) for name, values in tensors.items()}
    if case.gate == "gate":
        return wide["gate"], {name: wide[name] for name in case.weights}
    gates = 1.0 / (1.0 + np.exp(-(wide["hidden"] @ wide["gate_weight"] + wide["gate_bias"])))
    # A gate so close to the threshold that rounding may select either way would make the comparison moot.
    assert np.min(np.abs(gates - case.threshold)) > 1e-6
    return gates, {name: wide[name] for name in case.weights}


def normalise(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON) * weight


def logo(document, gates, threshold, window, weights):
    i, j = places(document)
    causal = keys(document) & (j <= i)
    selected = gates > threshold
    asking = dataclasses.replace(document, q=document.q * weights.get("logo.global_scale", 1.0)
                                 + weights.get("logo.global_offset", 0.0))
    outs, lses = [], []
    for h in range(document.heads):
        local, lse = attend(document, h, causal & (j > i - window))
        everything, whole_lse = attend(asking, h, causal)
        local = normalise(local, weights.get("logo.local_norm", 1.0))
        mixed = (1 - gates)[:, None] * local + gates[:, None] * normalise(everything, weights.get("logo.global_norm", 1.0))
        outs.append(np.where(selected[:, None], mixed, local))
        lses.append(np.where(selected, whole_lse, lse))
    visible = causal & ((j > i - window) | selected[:, None])
    return Result(np.stack(outs, 1), np.stack(lses, 1), np.broadcast_to(visible, (document.heads, *visible.shape)))


def check(case, ringmark, folder):
    layer = Layer(case.shape)
    documents = [layer.document(at, **case.logits) for at in range(len(case.shape.lengths))]
    gates, weights = add_branch_tensors(case, layer)
    path = os.path.join(folder, case.name + ".safetensors")
    layer.write(path, False)
    expected = []
    for at, document in enumerate(documents):
        expected.append(logo(document, gates[layer.rows(at)], case.threshold, case.window, weights))
        absorb_sink_logits(document, expected[-1])
    options = ["--policy", "logo", "--window", str(case.window), "--threshold", str(case.threshold), *case.options]
    tolerance = 1e-6 if "--merge" in case.options else 0.0  # rings and visits add in the order of arrival
    worst = 0.0
    for ranks in case.ranks:
        found = prefill(ringmark, ranks, path, options, path + ".result")
        worst = max(worst, compare_documents(layer, found, expected))
        compare_twins(layer, found["o"], expected[TWIN].visible[..., layer.changed].T, tolerance)
    return f"{worst:.1e}"


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
