#!/usr/bin/env python3
"""The formulas of attention.py against each other and against examples that can be worked by hand."""
import dataclasses
import unittest

import numpy as np

from attention import (Document, Policy, alibi_slopes, choose, compute, fixed_keys, keys, log_sum_exp, logits,
                       ordinary_tokens, rotate, score)


def random_document(tokens=60, heads=4, kv_heads=2, dims=8, chunk=7, seed=3, **settings):
    random = np.random.default_rng(seed)
    draw = lambda count: random.standard_normal((tokens, count, dims))
    return Document(draw(heads), draw(kv_heads), draw(kv_heads), draw(heads), chunk, 0.4, **settings)


def document_of(keys_and_values, query=1.0, **settings):
    """One head of one dimension: z_ij = query * key_j."""
    column = lambda values: np.array(values, float)[:, None, None]
    k, v = zip(*keys_and_values)
    q = column([query] * len(k))
    return Document(q, column(k), column(v), q, settings.pop("chunk", 2), 1.0, **settings)


class ByHand(unittest.TestCase):
    def test_equal_logits_average_the_values(self):
        result = compute(document_of([(0, 2), (0, 4), (0, 9)]), Policy("dense"))
        np.testing.assert_allclose(result.o.ravel(), [2, 3, 5])
        np.testing.assert_allclose(result.lse.ravel(), np.log([1, 2, 3]))

    def test_a_sink_logit_takes_its_share(self):
        document = document_of([(0, 2), (0, 4)], sink_logits=np.zeros(1))
        result = compute(document, Policy("dense"))
        np.testing.assert_allclose(result.o.ravel(), [1, 2])
        np.testing.assert_allclose(result.lse.ravel(), np.log([2, 3]))

    def test_cap_and_slope(self):
        z = logits(document_of([(0, 0), (100, 0)], logit_cap=3.0, alibi=True), 0)
        np.testing.assert_allclose(z[1], [0 - 2.0**-8, 3.0], atol=1e-12)
        np.testing.assert_allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])

    def test_a_row_without_keys(self):
        document = document_of([(0, 1), (0, 5), (0, 9)], landmark_slots=True)
        result = compute(document, Policy("window", window=1))
        np.testing.assert_array_equal(result.o.ravel(), [1, 0, 9])
        np.testing.assert_array_equal(result.lse.ravel(), [0, -np.inf, 0])

    def test_segments(self):
        seen = fixed_keys(document_of([(0, 0)] * 8), Policy("xl", segment=3, memory=2))[0:8]
        self.assertEqual([np.flatnonzero(row)[0] for row in seen], [0, 0, 0, 1, 1, 1, 4, 4])

    def test_the_best_chunk_and_the_own_one(self):
        # Chunks hold the values 1 | 2 | 3 | 4; the keys of the second are best; everything chosen is weighed alike.
        document = document_of([(0, 1), (0, 1), (1e-9, 2), (1e-9, 2), (0, 3), (0, 3), (0, 4)])
        for name in ("moba", "quest"):
            result = compute(document, Policy(name, topk=1))
            np.testing.assert_allclose(result.o[[1, 3, 5, 6], 0, 0], [1, 1.5, 2.5, (2 * 2 + 4) / 3])
            np.testing.assert_array_equal(result.chosen[0, 6], [False, True, False])

    def test_heads_compare_shares_and_not_scores(self):
        # Head 0 scores high everywhere; head 1 scores low, but gives chunk 1 nearly all of its mass.
        document = random_document(tokens=1, heads=2, kv_heads=1)
        scores = np.log([[[50.0, 49.0, 1.0]], [[0.01, 0.9, 0.09]]])
        chosen, _ = choose(document, Policy("hils", topk=1, choice="group"), scores, np.full((2, 1), -np.inf))
        np.testing.assert_array_equal(chosen[0, 0], [False, True, False])


class Limits(unittest.TestCase):
    """With everything chosen or in the window, exact policies are dense attention."""

    def setUp(self):
        self.document = random_document(logit_cap=2.0, sink_logits=np.arange(4.0))
        self.dense = compute(self.document, Policy("dense"))

    def expect_dense(self, policy):
        result = compute(self.document, policy)
        np.testing.assert_allclose(result.o, self.dense.o, atol=1e-12)
        np.testing.assert_allclose(result.lse, self.dense.lse, atol=1e-12)

    def test_all_chunks_chosen(self):
        for choice in ("group", "head", "all"):
            self.expect_dense(Policy("moba", topk=64, choice=choice))
            self.expect_dense(Policy("quest", topk=64, choice=choice))
            self.expect_dense(Policy("oracle", topk=64, choice=choice, window=10))

    def test_all_in_the_window(self):
        for policy in (Policy("window", window=60), Policy("sinks", window=40, sinks=20), Policy("hils", window=60, topk=3),
                       Policy("xl", segment=10, memory=60), Policy("xl", segment=60)):
            self.expect_dense(policy)

    def test_sinks_and_eligible_chunks_part_the_prefix(self):
        self.expect_dense(Policy("oracle", topk=64, window=9, sinks=17))


class Bounds(unittest.TestCase):
    def test_hils_and_quest_bracket_the_mass(self):
        document = random_document()
        document = dataclasses.replace(document, landmark_q=document.q)
        for c, tokens in enumerate(ordinary_tokens(document, Policy("hils"))):
            for h in range(4):
                mass = log_sum_exp(logits(document, h)[:, tokens])
                self.assertTrue((score(document, Policy("hils"), h, c, tokens) <= mass + 1e-12).all())
                upper = score(document, Policy("quest"), h, c, tokens) + np.log(len(tokens))
                self.assertTrue((mass <= upper + 1e-12).all())
                # The tangent touches at the landmark query itself.
                at = (c + 1) * document.chunk - 1
                self.assertAlmostEqual(score(document, Policy("hils"), h, c, tokens)[at], mass[at])


class Landmarks(unittest.TestCase):
    def test_grouped_softmax_of_training(self):
        """Token by token: one softmax over older landmarks and the current block, shared out inside older blocks."""
        document = random_document(landmark_slots=True)
        result = compute(document, Policy("landmark", topk=64))
        ordinary, size = keys(document), document.chunk
        for h in range(document.heads):
            z = logits(document, h)
            for i in range(document.tokens):
                block = i // size
                landmarks = [size * b + size - 1 for b in range(block)]
                current = [j for j in range(block * size, i + 1) if ordinary[j]]
                group = np.exp(z[i, landmarks + current]) / np.exp(z[i, landmarks + current]).sum()
                weights = np.zeros(document.tokens)
                weights[current] = group[block:]
                for b in range(block):
                    inside = np.exp(z[i, b * size : b * size + size - 1])
                    weights[b * size : b * size + size - 1] = group[b] * inside / inside.sum()
                np.testing.assert_allclose(result.o[i, h], weights @ document.v[:, document.kv_head(h)], atol=1e-12)
                self.assertAlmostEqual(result.lse[i, h], np.log(np.exp(z[i, landmarks + current]).sum()))


class CachePositions(unittest.TestCase):
    def test_a_query_at_the_end_of_the_cache_sees_the_sinks(self):
        """Places in the cache are those of the text, but that sinks meet a query at min(o, sinks + W - 1)."""
        window, sinks = 9, 4
        document = random_document()
        result = compute(document, Policy("sinks", window=window, sinks=sinks, cache_positions=True))
        at = np.arange(document.tokens)
        q, k = (rotate(x.transpose(1, 0, 2), at).transpose(1, 0, 2) for x in (document.q, document.k))
        moved = rotate(document.q.transpose(1, 0, 2), np.minimum(at, sinks + window - 1)).transpose(1, 0, 2)
        visible = fixed_keys(document, Policy("sinks", window=window, sinks=sinks))
        for h in range(document.heads):
            text, cache = (0.4 * x[:, h] @ k[:, document.kv_head(h)].T for x in (q, moved))
            below = at[None, :] < np.maximum(0, at - window + 1)[:, None]
            z = np.where(visible, np.where(below, cache, text), -np.inf)
            np.testing.assert_allclose(result.lse[:, h], log_sum_exp(z), atol=1e-12)


if __name__ == "__main__":
    unittest.main()
