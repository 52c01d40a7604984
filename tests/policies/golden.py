#!/usr/bin/env python3
"""usage: golden.py RINGMARK [CASE...]   Compares `ringmark prefill` under every policy, on 1, 2, 3 and 5 ranks, with
attention.py. A case may be a pattern (`hils*`); without one all run. Exit code 1 when a result differs: the line says
where."""
import dataclasses
import os
import sys

import numpy as np

from attention import FIXED, Policy, compute
from golden_layers import NEEDLE, NEEDLE_VALUE, OTHER_TWIN, TWIN, Layer, Shape, compare_twins
from policy_runs import expect_close, prefill, run_cases

ALL_RANKS = (1, 2, 3, 5)
NEAR_TIE = 1e-4  # where ranks are closer, rounding may choose either

GQA = Shape(heads=4, kv_heads=2, head_dim=32, chunk=16, landmark_slots=True, seed=11)
MHA = Shape(heads=3, kv_heads=3, head_dim=20, chunk=8, landmark_slots=False, retrieval_queries=False, seed=12)
MQA = Shape(heads=4, kv_heads=1, head_dim=64, chunk=12, landmark_slots=True, dtype="bf16", seed=13)
HALF = Shape(heads=6, kv_heads=2, head_dim=80, chunk=10, landmark_slots=True, dtype="fp16", seed=14)


@dataclasses.dataclass
class Case:
    name: str
    shape: Shape
    policy: Policy
    logit_cap: float = 0.0
    alibi: bool = False
    sink_logits: str = ""  # "zero": --softmax-zero, "file": the tensor
    ranks: tuple = ALL_RANKS
    default_choice: bool = False  # leave out --choice

    def options(self):
        policy = self.policy
        given = [("topk", policy.topk), ("window", policy.window), ("sinks", policy.sinks), ("segment", policy.segment),
                 ("memory", policy.memory), ("logit-cap", self.logit_cap)]
        options = ["--policy", policy.name]
        for name, value in given:
            if value:
                options += [f"--{name}", str(value)]
        if policy.name not in FIXED:
            options += ["--topk-chunks"] + ([] if self.default_choice else ["--choice", policy.choice])
        if policy.cache_positions:
            options += ["--rope", "rope", "--sink-positions", "cache"]
        return options + ["--alibi"] * self.alibi + ["--softmax-zero"] * (self.sink_logits == "zero")

    def logits_of(self, layer):
        sink_logits = {"": None, "zero": np.zeros(self.shape.heads), "file": layer.sink_logits.astype(np.float64)}
        return {"logit_cap": self.logit_cap, "alibi": self.alibi, "sink_logits": sink_logits[self.sink_logits]}


def choosing(name, **settings):
    """The policy with its own choice, and what else it needs to find more than it may take."""
    return Policy(name, **{"topk": 2, "choice": "head", **settings})


CASES = [
    Case("dense", GQA, Policy("dense")),
    Case("dense-logits", HALF, Policy("dense"), logit_cap=1.5, alibi=True, sink_logits="file", ranks=(2, 5)),
    Case("window", GQA, Policy("window", window=13)),
    Case("window-one", MHA, Policy("window", window=1), ranks=(3,)),
    Case("window-logits", HALF, Policy("window", window=33), logit_cap=1.5, alibi=True, sink_logits="zero", ranks=(3,)),
    Case("sinks", MQA, Policy("sinks", window=21, sinks=5)),
    Case("sinks-cache", MHA, Policy("sinks", window=16, sinks=4, cache_positions=True), ranks=(1, 5)),
    Case("sinks-logits", GQA, Policy("sinks", window=8, sinks=18), logit_cap=2.0, alibi=True, sink_logits="file",
         ranks=(2,)),
    Case("xl", GQA, Policy("xl", segment=24, memory=20)),
    Case("xl-logits", HALF, Policy("xl", segment=10, memory=3), logit_cap=1.5, alibi=True, sink_logits="zero", ranks=(5,)),
    Case("hils", GQA, choosing("hils", choice="group", window=20), default_choice=True),
    Case("hils-head", HALF, choosing("hils", window=9, sinks=3), ranks=(3,)),
    Case("hils-all", MQA, choosing("hils", choice="all", window=12), sink_logits="zero", ranks=(2,)),
    Case("hils-logits", GQA, choosing("hils", choice="group", window=20), logit_cap=2.0, sink_logits="file", ranks=(5,)),
    Case("mean", MQA, choosing("mean", choice="group", window=20, sinks=2), default_choice=True),
    Case("mean-all", GQA, choosing("mean", choice="all", window=7), ranks=(3,)),
    Case("oracle", MHA, choosing("oracle", choice="group", window=10), default_choice=True),
    Case("oracle-head", HALF, choosing("oracle", window=10, sinks=12), logit_cap=2.0, ranks=(2,)),
    Case("landmark-trained", GQA, choosing("landmark", topk=64), default_choice=True),
    Case("landmark", MQA, choosing("landmark"), default_choice=True, ranks=(2, 5)),
    Case("landmark-group", HALF, choosing("landmark", choice="group"), sink_logits="zero", ranks=(3,)),
    Case("landmark-all", GQA, choosing("landmark", choice="all"), ranks=(1,)),
    Case("moba", GQA, choosing("moba"), default_choice=True),
    Case("moba-group", HALF, choosing("moba", choice="group"), logit_cap=2.0, sink_logits="file", ranks=(5,)),
    Case("quest", MQA, choosing("quest"), default_choice=True),
    Case("quest-group", HALF, choosing("quest", choice="group"), sink_logits="zero", ranks=(3,)),
    Case("quest-all", MHA, choosing("quest", choice="all"), ranks=(2,)),
]


def chosen_of(topk_chunks, chunks, choosers):
    """[n, choosers, K] ids, -1 unused, as [choosers, n, chunks]."""
    if topk_chunks.shape[1] != choosers:
        raise AssertionError(f"topk_chunks has {topk_chunks.shape[1]} choosers, expected {choosers}")
    used = topk_chunks >= 0
    order = np.where(used, topk_chunks, np.iinfo(np.int32).max).astype(np.int64)
    if not ((np.diff(order) > 0) | ~used[..., 1:]).all():
        raise AssertionError("topk_chunks is not ascending with unused slots at the end")
    if (used & ((topk_chunks < chunks.start) | (topk_chunks >= chunks.stop))).any():
        raise AssertionError(f"chunks outside [{chunks.start}, {chunks.stop}), those of the document, are chosen")
    chosen = np.zeros((*topk_chunks.shape[:2], len(chunks) + 1), bool)
    np.put_along_axis(chosen, np.where(used, topk_chunks - chunks.start, len(chunks)), True, axis=2)
    return chosen[..., :-1].transpose(1, 0, 2)


def expect_same_choice(found, expected, clear, first_token):
    full = expected.shape[2]  # the partial last chunk of a document is never eligible
    apart = np.argwhere((found[..., :full] != expected).any(2) & clear | found[..., full:].any(2))
    if len(apart):
        chooser, token = apart[0]
        names = [np.flatnonzero(chunks[chooser, token]).tolist() for chunks in (found, expected)]
        raise AssertionError(f"topk_chunks of token {first_token + token}, chooser {chooser} are {names[0]} of its "
                             f"document, expected {names[1]}")


class Check:
    """One case: what is expected, and the results of all its runs against that."""

    def __init__(self, case, folder):
        self.case, self.layer = case, Layer(case.shape)
        self.path = os.path.join(folder, f"{case.name}.safetensors")
        self.layer.write(self.path, case.sink_logits == "file")
        logits = case.logits_of(self.layer)
        count = len(case.shape.lengths)
        self.expected = [compute(self.layer.document(at, **logits), case.policy) for at in range(count)]
        chunks = np.cumsum([0] + [-(-length // case.shape.chunk) for length in case.shape.lengths])
        self.chunks = [range(chunks[at], chunks[at + 1]) for at in range(count)]
        self.clear = [self.clear_rows(result) for result in self.expected]
        rows = np.concatenate([clear.ravel() for clear in self.clear])
        assert rows.mean() > 0.95, f"{case.name}: too many near ties, {np.sum(~rows)} of {len(rows)} rows"
        self.near_ties, self.worst = int(np.sum(~rows)), {"o": 0.0, "lse": 0.0}

    def clear_rows(self, result):
        """[n, H]: rows whose choice no rounding can change."""
        if result.margin is None:
            return np.ones(result.lse.shape, bool)
        heads = result.lse.shape[1] // len(result.margin)
        return np.repeat(result.margin > NEAR_TIE, heads, axis=0).T

    def run(self, ringmark, ranks):
        found = prefill(ringmark, ranks, self.path, self.case.options(), self.path + ".result")
        for at, expected in enumerate(self.expected):
            rows, start = self.layer.rows(at), int(self.layer.starts[at])
            if expected.chosen is not None:
                chosen = chosen_of(found["topk_chunks"][rows], self.chunks[at], len(expected.chosen))
                expect_same_choice(chosen, expected.chosen, expected.margin > NEAR_TIE, start)
            for name in ("o", "lse"):
                worst = expect_close(found[name][rows], getattr(expected, name), self.clear[at], start, name)
                self.worst[name] = max(self.worst[name], worst)
        self.find_needle(found)
        self.compare_twins(found)

    def find_needle(self, found):
        """A key that only a policy that chooses can reach must be found by it, and outweigh the rest of the row."""
        name = self.case.policy.name
        if name in FIXED or self.case.logit_cap > 0:
            return
        token = self.layer.starts[NEEDLE] + self.layer.needle_row
        chunk = self.chunks[NEEDLE].start + self.layer.needle // self.case.shape.chunk
        if not (found["topk_chunks"][token] == chunk).any(axis=1).all():
            raise AssertionError(f"needle in chunk {chunk}: token {token} chose {found['topk_chunks'][token].tolist()}")
        # A mean of keys says too little of one of them to weigh it rightly.
        off = np.max(np.abs(found["o"][token] - NEEDLE_VALUE))
        if name != "mean" and off > 0.05:
            raise AssertionError(f"needle: o of token {token} is {off:.3g} off its value")

    def compare_twins(self, found):
        """Rows that do not see the key in which two documents differ, among them all rows before it, are the same."""
        one, other = self.expected[TWIN], self.expected[OTHER_TWIN]
        changed = self.layer.changed
        clear = (self.clear[TWIN] & self.clear[OTHER_TWIN]).T
        blind = clear & (one.visible == other.visible).all(2) & ~one.visible[..., changed]
        assert blind[:, :changed].sum() > 0.95 * blind[:, :changed].size
        tolerance = 1e-6 if self.case.policy.name == "dense" else 0.0  # a ring adds in the order of arrival
        apart = compare_twins(self.layer, found["o"], ~blind.T, tolerance).T
        seen = clear & one.visible[..., changed] & other.visible[..., changed]
        if not (apart[seen] > 1e-3).any():
            raise AssertionError(f"no row changed with key {changed} of its document, which {seen.sum()} rows see")


def check(case, ringmark, folder):
    results = Check(case, folder)
    for ranks in case.ranks:
        try:
            results.run(ringmark, ranks)
        except AssertionError as difference:
            raise AssertionError(f"on {ranks} ranks: {difference}") from None
    worst = "  ".join(f"{name} {value:.1e}" for name, value in results.worst.items())
    return f"{worst}  near ties {results.near_ties}"


if __name__ == "__main__":
    sys.exit(run_cases(CASES, check, sys.argv[1], sys.argv[2:]))
