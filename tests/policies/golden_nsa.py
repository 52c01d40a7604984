#!/usr/bin/env python3
"""usage: golden_nsa.py RINGMARK   Compares `ringmark prefill --policy nsa` on 1, 2, 3 and 5 ranks with NSA (arXiv
2502.11089) over whole matrices in fp64, as docs/policies.md describes it. Exit code 1 when a result differs."""
import dataclasses
import os
import sys

import numpy as np

from attention import attend, keys, log_sum_exp, places, softmax
from golden_layers import NEEDLE, OTHER_TWIN, TWIN, Layer, Shape, compare_twins
from policy_runs import expect_close, prefill, run_cases
from safetensors_io import from_bf16, to_bf16

FORCED = 3  # chunks that every row takes
NEAR_TIE = 1e-5  # where importances are closer, rounding may choose either


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    window: int
    topk: int
    gates: str = "tensor"  # or constants
    backend: str = "cpu"
    ranks: tuple = (1, 2, 3, 5)


CASES = [
    Case("gqa", Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=21), window=20, topk=4),
    Case("mha", Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, seed=22), window=1, topk=5,
         gates="0.25,1,0.5", ranks=(2, 5)),
    Case("mqa-bf16", Shape(heads=4, kv_heads=1, head_dim=64, chunk=12, landmark_slots=True, dtype="bf16", seed=23),
         window=33, topk=3, ranks=(1, 3)),
    Case("half", Shape(heads=6, kv_heads=2, head_dim=80, chunk=10, landmark_slots=True, dtype="fp16", seed=24),
         window=9, topk=30, ranks=(5,)),
    Case("reference", Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=False, seed=25), window=20,
         topk=4, backend="reference", ranks=(2,)),
]


def pooled(document):
    """Means of the keys and of the values of every full chunk: [chunks, Hkv, d] each."""
    size = document.chunk
    full = document.tokens // size
    kept = keys(document)
    means = [[values[c * size:(c + 1) * size][kept[c * size:(c + 1) * size]].mean(0) for c in range(full)]
             for values in (document.k, document.v)]
    return [np.array(mean).reshape(full, *document.k.shape[1:]) for mean in means]


def choose(importance, document, topk):
    """(chosen [n, chunks], margin [n]) of one kv head: forced chunks first, then the most important complete ones."""
    n, full = importance.shape
    chunks = -(-n // document.chunk)
    chosen, margin = np.zeros((n, chunks), bool), np.full(n, np.inf)
    for i in range(n):
        own = i // document.chunk
        forced = {0, own, max(own - 1, 0)}
        complete = [c for c in range(full) if (c + 1) * document.chunk - 1 <= i and c not in forced]
        order = sorted(complete, key=lambda c: (-importance[i, c], c))
        room = topk - len(forced)
        chosen[i, list(forced) + order[:room]] = True
        if 0 < room < len(order):
            margin[i] = importance[i, order[room - 1]] - importance[i, order[room]]
    return chosen, margin


def nsa(document, gates, window, topk):
    """(o [n, H, d], lse [n, H], chosen [n, Hkv, chunks], margin [n, Hkv])."""
    n, heads, _ = document.q.shape
    kv_heads = document.k.shape[1]
    group = heads // kv_heads
    mean_k, mean_v = pooled(document)
    i, j = places(document)
    complete = (np.arange(len(mean_k))[None, :] + 1) * document.chunk - 1 <= i
    o, lse = np.zeros(document.q.shape), np.zeros((n, heads))
    choices, margins = [], []
    for g in range(kv_heads):
        importance, members = np.zeros(complete.shape), range(g * group, (g + 1) * group)
        for h in members:
            z = np.where(complete, document.scale * document.q[:, h] @ mean_k[:, g].T, -np.inf)
            p = softmax(z, log_sum_exp(z))
            importance += p
            o[:, h] += gates[:, h, :1] * (p @ mean_v[:, g])
        chosen, margin = choose(importance, document, topk)
        taken = np.take_along_axis(chosen, np.broadcast_to(j // document.chunk, (n, n)), 1)
        for h in members:
            selected, lse[:, h] = attend(document, h, keys(document) & (j <= i) & taken)
            local, _ = attend(document, h, keys(document) & (j <= i) & (j > i - window))
            o[:, h] += gates[:, h, 1:2] * selected + gates[:, h, 2:] * local
        choices.append(chosen)
        margins.append(margin)
    return o, lse, np.stack(choices, 1), np.stack(margins, 1)


def expect_choice(found, chosen, clear, first_chunk, first_token):
    """found [n, Hkv, K] ids, ascending, -1 behind them."""
    for i, g in np.argwhere(clear):
        wanted = [first_chunk + c for c in np.flatnonzero(chosen[i, g])]
        wanted += [-1] * (found.shape[2] - len(wanted))
        if found[i, g].tolist() != wanted:
            raise AssertionError(f"topk_chunks of token {first_token + i}, kv head {g} are {found[i, g].tolist()}, "
                                 f"expected {wanted}")


def check(case, ringmark, folder):
    layer = Layer(case.shape)
    path = os.path.join(folder, case.name + ".safetensors")
    tokens = int(layer.starts[-1])
    options = ["--policy", "nsa", "--window", str(case.window), "--topk", str(case.topk), "--topk-chunks", "--backend",
               case.backend]
    if case.gates == "tensor":
        gates = np.random.default_rng(case.shape.seed).random((tokens, case.shape.heads, 3)).astype(np.float32)
        gates[layer.rows(OTHER_TWIN)] = gates[layer.rows(TWIN)]
        gates = from_bf16(to_bf16(gates)) if case.shape.dtype == "bf16" else gates
    else:
        constants = np.array(case.gates.split(","), np.float32)
        gates = np.broadcast_to(constants, (tokens, case.shape.heads, 3))
        options += ["--gates", case.gates]
    documents = [layer.document(at) for at in range(len(case.shape.lengths))]
    if case.gates == "tensor":
        layer.tensors["gates"] = gates
    layer.write(path, False)
    expected = [nsa(document, gates[layer.rows(at)].astype(np.float64), case.window, case.topk)
                for at, document in enumerate(documents)]
    first_chunk = np.cumsum([0] + [-(-length // case.shape.chunk) for length in case.shape.lengths])
    # No row before the key in which the twins differ changes; of those behind it, which do is a matter of their choice.
    behind_change = np.arange(case.shape.lengths[TWIN])[:, None] >= layer.changed
    group, worst, ties = case.shape.heads // case.shape.kv_heads, 0.0, 0
    for ranks in case.ranks:
        found = prefill(ringmark, ranks, path, options, path + ".result")
        for at, (o, lse, chosen, margin) in enumerate(expected):
            rows, start, clear = layer.rows(at), int(layer.starts[at]), margin > NEAR_TIE
            expect_choice(found["topk_chunks"][rows], chosen, clear, first_chunk[at], start)
            heads = np.repeat(clear, group, axis=1)
            ties += int(np.sum(~heads))
            for name, wanted in (("o", o), ("lse", lse)):
                worst = max(worst, expect_close(found[name][rows], wanted, heads, start, name))
        compare_twins(layer, found["o"], behind_change)
        needle = first_chunk[NEEDLE] + layer.needle // case.shape.chunk
        taken = found["topk_chunks"][layer.starts[NEEDLE] + layer.needle_row]
        if case.topk > FORCED and not (taken == needle).any(axis=1).all():
            raise AssertionError(f"the needle in chunk {needle} is not found")
    assert ties < 0.05 * tokens * case.shape.heads * len(case.ranks), "too many near ties"
    return f"{worst:.1e}  near ties {ties}"


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
