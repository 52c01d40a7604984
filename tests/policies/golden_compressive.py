#!/usr/bin/env python3
"""usage: golden_compressive.py RINGMARK   Compares `ringmark prefill --policy compressive` on 1, 2, 3 and 5 ranks with
mean-pooled compressive memory (arXiv 1911.05507) over whole matrices in fp64, as docs/policies.md describes it. Exit
code 1 when a result differs."""
import dataclasses
import os
import sys

import numpy as np

from attention import Result, keys, log_sum_exp, places, softmax
from golden_layers import OTHER_TWIN, TWIN, Layer, Shape
from policy_runs import compare_documents, prefill, run_cases


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    segment: int
    memory: int
    slots: int
    rate: int
    backend: str = "cpu"
    ranks: tuple = (1, 2, 3, 5)


CASES = [
    Case("gqa", Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=31), 12, 8, 6, 4),
    Case("mha", Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, seed=32), 8, 0, 100, 8,
         ranks=(2, 5)),
    Case("mqa-bf16", Shape(heads=4, kv_heads=1, head_dim=64, chunk=12, landmark_slots=True, dtype="bf16", seed=33),
         6, 9, 20, 3, ranks=(1, 3)),
    Case("single", Shape(heads=6, kv_heads=2, head_dim=80, chunk=10, landmark_slots=True, dtype="fp16", seed=34), 7, 5,
         30, 1, ranks=(5,)),
    Case("reference", Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=35), 12, 8, 6, 4,
         backend="reference", ranks=(2,)),
]


def compressive(document, case):
    """A key is visible exactly or as part of a group."""
    n, heads, _ = document.q.shape
    rate, kept = case.rate, keys(document)
    i, j = places(document)
    memory = np.maximum(0, i // case.segment * case.segment - case.memory)
    exact = kept & (j >= memory) & (j <= i)
    groups = np.arange(n // rate)
    share = np.zeros((len(groups), n))  # of a key in its group
    for g in groups:
        members = [at for at in range(g * rate, (g + 1) * rate) if kept[at]]
        share[g, members] = 1.0 / max(len(members), 1)
    pooled = ((groups + 1) * rate <= memory) & (groups >= memory // rate - case.slots) & share.any(1)
    o, lse = np.zeros(document.q.shape), np.zeros((n, heads))
    for h in range(heads):
        g = document.kv_head(h)
        k = np.concatenate([share @ document.k[:, g], document.k[:, g]])
        v = np.concatenate([share @ document.v[:, g], document.v[:, g]])
        z = np.where(np.concatenate([pooled, exact], 1), document.scale * document.q[:, h] @ k.T, -np.inf)
        lse[:, h] = log_sum_exp(z)
        o[:, h] = softmax(z, lse[:, h]) @ v
    visible = exact | ((pooled.astype(float) @ share) > 0)
    return Result(o, lse, np.broadcast_to(visible, (heads, n, n)))


def check(case, ringmark, folder):
    layer = Layer(case.shape)
    path = os.path.join(folder, case.name + ".safetensors")
    layer.write(path, False)
    options = ["--policy", "compressive", "--segment", str(case.segment), "--memory", str(case.memory),
               "--compressed-slots", str(case.slots), "--compression-rate", str(case.rate), "--backend", case.backend]
    expected = [compressive(layer.document(at), case) for at in range(len(case.shape.lengths))]
    worst = 0.0
    for ranks in case.ranks:
        found = prefill(ringmark, ranks, path, options, path + ".result")
        worst = max(worst, compare_documents(layer, found, expected))
        # Two documents that differ in one key: the rows that see it change, the others keep their bits.
        one, other = (found["o"][layer.rows(at)] for at in (TWIN, OTHER_TWIN))
        sees = expected[TWIN].visible[0, :, layer.changed]  # every head alike
        changed = (one != other).any(axis=(1, 2))
        assert sees.any() and not sees[:layer.changed].any()
        if not np.array_equal(changed, sees):
            rows = [np.flatnonzero(of).tolist() for of in (changed, sees)]
            raise AssertionError(f"key {layer.changed} of its document changes rows {rows[0]}, but {rows[1]} see it")
    return f"{worst:.1e}"


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
