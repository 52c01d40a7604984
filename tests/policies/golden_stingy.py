#!/usr/bin/env python3
"""usage: golden_stingy.py RINGMARK   Compares `ringmark prefill --policy landmark --landmark-positions stingy`, on 1, 2, 3
and 5 ranks, with a cache written down as Landmark Attention's code (llama_mem.py) describes it: keys that are not rotated,
positions given out for every query, rotation, grouped softmax. Exit code 1 when a result differs: the line says where."""
import dataclasses
import os
import sys
import tempfile

import numpy as np

from policy_runs import expect_close, prefill
from safetensors_io import write_safetensors

NEAR_TIE = 1e-4  # where ranks are closer, rounding may choose either


@dataclasses.dataclass
class Case:
    name: str
    topk: int
    choice: str
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    chunk: int = 8
    lengths: tuple = (115, 1, 0, 60)
    interleaved: bool = False
    dims: int = 0  # rotated elements; 0: all
    theta: float = 10000.0
    ranks: tuple = (1, 2, 3, 5)
    merge: str = "auto"

    def options(self):
        options = ["--policy", "landmark", "--landmark-positions", "stingy", "--topk", str(self.topk), "--choice",
                   self.choice, "--rope", "rope", "--rope-theta", str(self.theta), "--topk-chunks", "--merge", self.merge]
        options += ["--rope-layout", "interleaved"] if self.interleaved else []
        return options + (["--rope-dims", str(self.dims)] if self.dims else [])


CASES = [
    Case("head", topk=2, choice="head"),
    Case("group", topk=3, choice="group", head_dim=80, interleaved=True, ranks=(1, 3), merge="scores"),
    Case("all", topk=2, choice="all", heads=6, kv_heads=1, dims=20, chunk=5, ranks=(2, 5), merge="landmarks"),
    Case("one-chunk", topk=1, choice="head", kv_heads=4, theta=100.0, ranks=(3,)),
    Case("all-fit", topk=40, choice="head", ranks=(2,)),
]


def rotated(x, position, case):
    """One row [heads, d] at a position."""
    dims = case.dims or case.head_dim
    angle = position * case.theta ** (-np.arange(0, dims, 2) / dims)
    pairs = (slice(0, dims, 2), slice(1, dims, 2)) if case.interleaved else (slice(0, dims // 2), slice(dims // 2, dims))
    a, b = x[..., pairs[0]], x[..., pairs[1]]
    turned = x.copy()
    turned[..., pairs[0]] = a * np.cos(angle) - b * np.sin(angle)
    turned[..., pairs[1]] = a * np.sin(angle) + b * np.cos(angle)
    return turned


def log_sum_exp(x):
    top = np.max(x)
    return top + np.log(np.sum(np.exp(x - top)))


class Cache:
    """What one query sees: its blocks, budget k, B slots a block."""

    def __init__(self, case, query):
        self.case, self.query, self.size = case, query, case.chunk
        self.blocks = query // case.chunk
        self.all_fit = self.blocks <= case.topk
        self.prefix = self.blocks * self.size - (case.topk + 1) * self.size

    def landmark_position(self, c):
        segment = 0 if c < self.blocks - self.case.topk else c - (self.blocks - self.case.topk) + 1
        start = c * self.size if self.all_fit else self.prefix + segment * self.size
        return start + self.size - 1

    def start_of(self, c, slot):
        if self.all_fit:
            return c * self.size
        return self.prefix + slot * self.size + (self.size if c >= self.blocks - self.case.topk else 0)

    def logits(self, q, k, slots, positions):
        """[H, slots] of a document's keys put at these positions."""
        rows = np.stack([rotated(k[j], at, self.case) for j, at in zip(slots, positions)])
        return np.einsum("hd,jhd->hj", self.turned_query(q), self.spread(rows)) * np.float32(self.case.head_dim**-0.5)

    def turned_query(self, q):
        return rotated(q[self.query], self.query, self.case)

    def spread(self, rows):
        """Rows of kv heads, one for each query head."""
        return np.repeat(rows, self.case.heads // self.case.kv_heads, axis=1)

    def choose(self, scores):
        """Chosen blocks by chooser, and the gap to the next: softmax over landmarks, then the largest of the heads."""
        choosers = {"head": self.case.heads, "group": self.case.kv_heads, "all": 1}[self.case.choice]
        ranks = scores - np.array([[log_sum_exp(row)] for row in scores])
        ranks = ranks.reshape(choosers, -1, self.blocks).max(1)
        chosen, margins = [], []
        for rank in ranks:
            order = np.lexsort((np.arange(self.blocks), -rank))
            chosen.append(np.sort(order[: self.case.topk]))
            margins.append(np.inf if self.all_fit else rank[order[self.case.topk - 1]] - rank[order[self.case.topk]])
        return chosen, margins

    def attend(self, q, k, v):
        """(o [H, d], lse [H], chosen by chooser, margin by chooser)."""
        own = [j for j in range(self.blocks * self.size, self.query + 1) if j % self.size != self.size - 1]
        parts = [self.logits(q, k, own, own)] if own else [np.zeros((self.case.heads, 0))]
        scores = np.zeros((self.case.heads, 0))
        chosen, margins = [[]], [np.inf]
        if self.blocks:
            landmarks = [(c + 1) * self.size - 1 for c in range(self.blocks)]
            scores = self.logits(q, k, landmarks, [self.landmark_position(c) for c in range(self.blocks)])
            chosen, margins = self.choose(scores)
        o, lse = np.zeros((self.case.heads, self.case.head_dim)), np.full(self.case.heads, -np.inf)
        for h in range(self.case.heads):
            of_head = chosen[h * len(chosen) // self.case.heads]
            group_0 = np.concatenate([scores[h, of_head] if len(of_head) else [], parts[0][h]])
            if not len(group_0):
                continue
            lse[h] = log_sum_exp(group_0)
            g = h * self.case.kv_heads // self.case.heads
            for weight, j in zip(np.exp(parts[0][h] - lse[h]), own):
                o[h] += weight * v[j, g]
            last = -1
            for slot, c in enumerate(of_head):
                tokens = np.arange(self.size - 1) + c * self.size
                positions = self.start_of(c, slot) + np.arange(self.size - 1)
                assert positions[0] > last and positions[-1] < self.blocks * self.size  # the rule, once more
                last = positions[-1]
                logits = self.logits(q, k, tokens, positions)[h]
                inside = np.exp(logits - log_sum_exp(logits))
                o[h] += np.exp(scores[h, c] - lse[h]) * inside @ v[tokens, g]
        return o, lse, chosen, margins


def expected_of(case, q, k, v):
    """Of one document: o, lse, chosen [n, choosers, K] with -1, clear [n, H]."""
    choosers = {"head": case.heads, "group": case.kv_heads, "all": 1}[case.choice]
    o, lse = np.zeros(q.shape), np.zeros(q.shape[:2])
    chosen = np.full((len(q), choosers, case.topk), -1)
    clear = np.ones((len(q), choosers), bool)
    for i in range(len(q)):
        o[i], lse[i], lists, margins = Cache(case, i).attend(q, k, v)
        for chooser, (blocks, margin) in enumerate(zip(lists, margins)):
            chosen[i, chooser, : len(blocks)] = blocks
            clear[i, chooser] = margin > NEAR_TIE
    return o, lse, chosen, clear


def check(ringmark, case, folder):
    starts = np.concatenate([[0], np.cumsum(case.lengths)])
    first_chunks = np.concatenate([[0], np.cumsum([-(-length // case.chunk) for length in case.lengths])])
    random = np.random.default_rng(7)
    draw = lambda heads: random.standard_normal((starts[-1], heads, case.head_dim)).astype(np.float32)
    tensors = {"q": draw(case.heads), "k": draw(case.kv_heads), "v": draw(case.kv_heads)}
    path = os.path.join(folder, f"{case.name}.safetensors")
    metadata = {"chunk_size": case.chunk, "landmark_slots": 1}
    write_safetensors(path, {**tensors, "cu_seqlens": starts.astype(np.int64)}, metadata)
    documents = [slice(begin, end) for begin, end in zip(starts, starts[1:])]
    expected = [expected_of(case, *(tensors[name][rows].astype(np.float64) for name in "qkv")) for rows in documents]
    worst, first = 0.0, None
    for ranks in case.ranks:
        found = prefill(ringmark, ranks, path, case.options(), path + ".result")
        for rows, first_chunk, (o, lse, chosen, clear) in zip(documents, first_chunks, expected):
            global_ids = np.where(chosen >= 0, chosen + first_chunk, -1)
            apart = np.argwhere((found["topk_chunks"][rows] != global_ids).any(2) & clear)
            if len(apart):
                i, chooser = apart[0]
                raise AssertionError(f"token {rows.start + i}, chooser {chooser} chose "
                                     f"{found['topk_chunks'][rows.start + i, chooser]}, expected {global_ids[i, chooser]}")
            by_head = np.repeat(clear, case.heads // clear.shape[1], axis=1)
            assert by_head.size == 0 or by_head.mean() > 0.95, "too many near ties"
            worst = max(worst, expect_close(found["o"][rows], o, by_head, rows.start, "o"),
                        expect_close(found["lse"][rows], lse, by_head, rows.start, "lse"))
        if first is not None and not all(np.array_equal(found[name], first[name]) for name in ("o", "lse")):
            raise AssertionError(f"{ranks} ranks give other bits")
        first = found
    return worst


def check_own_positions_are_refused(ringmark, folder):
    case, path = Case("refused", topk=2, choice="head", lengths=(20,)), os.path.join(folder, "positions.safetensors")
    rows = np.zeros((20, 2, case.head_dim), np.float32)
    tensors = {"q": rows, "k": rows, "v": rows, "positions": np.arange(20)}
    write_safetensors(path, tensors, {"chunk_size": case.chunk, "landmark_slots": 1})
    try:
        prefill(ringmark, 1, path, case.options(), path + ".result")
    except AssertionError as error:
        if "exit 2" in str(error) and "does not go with the tensor positions" in str(error):
            return
        raise
    raise AssertionError("positions of the input are accepted")


def main(ringmark):
    ringmark = os.path.abspath(ringmark)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        check_own_positions_are_refused(ringmark, folder)
        for case in CASES:
            try:
                print(f"{case.name}: largest difference {check(ringmark, case, folder):.2g}")
            except AssertionError as error:
                failures += 1
                print(f"{case.name}: {error}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
