#!/usr/bin/env python3
"""usage: golden_dilated.py RINGMARK [CASE...]   Compares `ringmark prefill --policy dilated` on 1, 2, 3 and 5 ranks with
LongNet's dilated attention (arXiv 2307.02486) over whole matrices in fp64, as docs/policies.md describes it. A case may be
a pattern; without one all run. Exit code 1 when a result differs."""
import dataclasses
import os
import sys

import numpy as np

from attention import Result, absorb_sink_logits, attend, keys, log_sum_exp, places
from golden_layers import TWIN, Layer, Shape, compare_twins
from policy_runs import compare_documents, prefill, run_cases


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    pairs: tuple  # (segment, rate)
    options: tuple = ()
    logits: dict = dataclasses.field(default_factory=dict)
    ranks: tuple = (1, 2, 3, 5)


GQA = Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=31)
HALF = Shape(heads=6, kv_heads=2, head_dim=80, chunk=10, landmark_slots=True, dtype="fp16", seed=34)
CASES = [
    Case("plain-gqa", GQA, ((24, 1), (96, 3))),
    Case("plain-mha", Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, seed=32), ((20, 2),),
         ranks=(2, 5)),
    Case("plain-mqa-bf16", Shape(heads=4, kv_heads=1, head_dim=64, chunk=12, landmark_slots=True, dtype="bf16", seed=33),
         ((7, 1), (50, 5), (1024, 8)), ranks=(1, 3)),
    Case("plain-half", HALF, ((33, 4), (1024, 1)), ranks=(5,)),
    Case("plain-reference", GQA, ((24, 1), (96, 3)), options=("--backend", "reference"), ranks=(2,)),
    Case("logits-alibi", GQA, ((24, 1), (96, 3)), options=("--alibi", "--logit-cap", "2"),
         logits={"alibi": True, "logit_cap": 2.0}, ranks=(1, 3)),
    Case("logits-zero", HALF, ((33, 4),), options=("--softmax-zero",), logits={"sink_logits": np.zeros(6)}, ranks=(2,)),
]


def dilated(document, pairs):
    i, j = places(document)
    outs, lses, seen = [], [], []
    for h in range(document.heads):
        o, lse, visible = [], [], np.zeros((document.tokens, document.tokens), bool)
        for segment, rate in pairs:
            takes_part = lambda place: place % segment % rate == h % rate
            pair = keys(document) & (j <= i) & (i // segment == j // segment) & takes_part(i) & takes_part(j)
            part = attend(document, h, pair)
            o.append(part[0])
            lse.append(part[1])
            visible |= pair
        # The paper weighs the pairs by their softmax denominators.
        all_lse = log_sum_exp(np.array(lse), axis=0)
        weight = np.exp(np.array(lse) - np.where(np.isfinite(all_lse), all_lse, 0.0))
        outs.append(np.sum(weight[..., None] * np.array(o), axis=0))
        lses.append(all_lse)
        seen.append(visible)
    return Result(np.stack(outs, 1), np.stack(lses, 1), np.array(seen))


def check(case, ringmark, folder):
    layer = Layer(case.shape)
    path = os.path.join(folder, case.name + ".safetensors")
    layer.write(path, False)
    expected = []
    for at in range(len(case.shape.lengths)):
        document = layer.document(at, **case.logits)
        expected.append(dilated(document, case.pairs))
        absorb_sink_logits(document, expected[-1])
    options = ["--policy", "dilated", "--dilation", ",".join(f"{w}:{r}" for w, r in case.pairs), *case.options]
    worst = 0.0
    for ranks in case.ranks:
        found = prefill(ringmark, ranks, path, options, path + ".result")
        worst = max(worst, compare_documents(layer, found, expected))
        compare_twins(layer, found["o"], expected[TWIN].visible[..., layer.changed].T)
    return f"{worst:.1e}"


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
