#!/usr/bin/env python3
"""golden_backward.py RINGMARK TEST_DATA: `ringmark backward` against a program of its own: numpy in float64, whole
matrices, one operation after the other and back again, nothing of the compact formulas of docs/numerics.md. Chunks are
those that `ringmark prefill --topk-chunks` chose."""
import os
import subprocess
import sys
import tempfile

import numpy as np

from safetensors_io import read_safetensors, write_safetensors


def softmax(logits, axis=-1):
    """And its logsumexp; a row of -inf has weights of 0."""
    top = np.max(logits, axis=axis, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=axis, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(np.isfinite(top), top, 0.0)
    return weights / np.where(total > 0, total, 1.0), lse.squeeze(axis)


class Layer:
    """The tensors in float64 and the places of the sequence."""

    def __init__(self, tensors, setting):
        self.q, self.k, self.v = (tensors[name].astype(np.float64) for name in "qkv")
        hils = setting["policy"] == "hils" and setting["scorer"] == "hils"
        self.own_scores = "landmark_q" in tensors and hils
        self.s = tensors["landmark_q"].astype(np.float64) if self.own_scores else self.q.copy()
        self.__dict__.update(setting)
        n = self.q.shape[0]
        self.starts = setting.get("cu_seqlens") or [0, n]
        size, self.chunks, self.near = self.chunk_size, [], np.zeros((n, n), bool)
        key = np.ones(n, bool)
        for begin, end in zip(self.starts, self.starts[1:]):
            for first in range(begin, end, size):
                last = min(first + size, end)
                if self.landmark_slots and last - first == size:
                    key[last - 1] = False
                self.chunks.append((first, last, begin))
            for i in range(begin, end):
                if self.policy == "dense":
                    left = begin
                else:
                    oldest = i - begin if self.window == 0 else max(0, i - begin - self.window + 1)
                    left = begin + oldest // size * size
                self.near[i, left : i + 1] = True
                self.near[i, begin : min(begin + self.sinks, left)] = True
        self.near &= key[None, :]
        self.key = key

    def keys(self, chunk):
        first, last, begin = self.chunks[chunk]
        return [j for j in range(max(first, begin + self.sinks), last) if self.key[j]]


def head(layer, chosen, out_gradient, h):
    """Output of one query head, and the gradients of q, s (scoring and landmark queries), k, v."""
    g = h // (layer.q.shape[1] // layer.k.shape[1])
    a, q, s, k, v = layer.scale, layer.q[:, h], layer.s[:, h], layer.k[:, g], layer.v[:, g]
    logits = a * q @ k.T
    weights, lse = softmax(np.where(layer.near, logits, -np.inf))
    parts, outs, mix = [(None, weights)], [weights @ v], [lse]
    taken = [] if chosen is None else sorted(set(chosen[:, g].ravel()) - {-1})
    for c in taken:
        keys = layer.keys(c)
        inner = softmax(logits[:, keys])[0]
        z = a * k[keys] @ s[layer.chunks[c][1] - 1] if layer.scorer == "hils" else np.zeros(len(keys))
        p = softmax(z)[0]
        landmark, entropy = p @ k[keys], -np.sum(p * np.log(p))
        score = a * s @ landmark + entropy
        parts.append(((keys, p, landmark), inner))
        outs.append(inner @ v[keys])
        mix.append(np.where((chosen[:, g] == c).any(axis=1), score, -np.inf))
    outs = np.stack(outs)
    w = softmax(np.stack(mix), axis=0)[0]
    out = np.einsum("cn,cnd->nd", w, outs)
    if out_gradient is None:
        return out
    do = out_gradient[:, h]
    dw = np.einsum("nd,cnd->cn", do, outs)
    dmix = w * (dw - (w * dw).sum(axis=0))
    dlogits, dq, ds, dk, dv = (np.zeros_like(values) for values in (logits, q, q, k, v))
    for n, (of_chunk, inner) in enumerate(parts):
        keys = slice(None) if of_chunk is None else of_chunk[0]
        dpart = w[n][:, None] * do
        dv[keys] += inner.T @ dpart
        dinner = dpart @ v[keys].T
        dlogits[:, keys] += inner * (dinner - (inner * dinner).sum(axis=1, keepdims=True))
        if of_chunk is None:
            dlogits += dmix[0][:, None] * inner
            continue
        keys, p, landmark = of_chunk
        slot = layer.chunks[taken[n - 1]][1] - 1
        ds += a * dmix[n][:, None] * landmark
        dlandmark = a * dmix[n] @ s
        dk[keys] += np.outer(p, dlandmark)
        if layer.scorer == "hils":
            dp = k[keys] @ dlandmark - dmix[n].sum() * (np.log(p) + 1.0)
            dz = p * (dp - p @ dp)
            dk[keys] += a * np.outer(dz, s[slot])
            ds[slot] += a * dz @ k[keys]
    dq += a * dlogits @ k
    dk += a * dlogits.T @ q
    return out, dq, ds, dk, dv


def gradients(layer, chosen, out_gradient):
    result = {name: np.zeros_like(values) for name, values in
              (("dq", layer.q), ("dlandmark_q", layer.q), ("dk", layer.k), ("dv", layer.v))}
    group = layer.q.shape[1] // layer.k.shape[1]
    for h in range(layer.q.shape[1]):
        _, dq, ds, dk, dv = head(layer, chosen, out_gradient, h)
        result["dq"][:, h] = dq
        result["dlandmark_q"][:, h] = ds
        result["dk"][:, h // group] += dk
        result["dv"][:, h // group] += dv
    if not layer.own_scores:
        result["dq"] += result.pop("dlandmark_q")
    return result


def check_slopes(layer, chosen, out_gradient, mine):
    """This program itself, by central differences of its own forward."""
    def loss():
        if not layer.own_scores:
            layer.s = layer.q
        return sum(np.sum(out_gradient[:, h] * head(layer, chosen, None, h)) for h in range(layer.q.shape[1]))

    random = np.random.default_rng(7)
    tensors = {"dq": layer.q, "dk": layer.k, "dv": layer.v}
    if layer.own_scores:
        tensors["dlandmark_q"] = layer.s
    for name, tensor in tensors.items():
        for at in random.integers(0, tensor.size, 4):
            place = np.unravel_index(at, tensor.shape)
            before, ends = tensor[place], []
            for step in (1e-4, -1e-4):
                tensor[place] = before + step
                ends.append(loss())
            tensor[place] = before
            slope = (ends[0] - ends[1]) / 2e-4
            assert abs(slope - mine[name][place]) <= 1e-6 * np.abs(mine[name]).max(), (name, place, slope)


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr[-2000:])


def worst(got, want):
    assert set(got) == set(want), (sorted(got), sorted(want))
    return max(np.abs(got[name] - want[name]).max() / np.abs(want[name]).max() for name in want)


def check(ringmark, name, tensors, setting, slopes):
    metadata = {key: int(setting[key]) for key in ("chunk_size", "window", "topk", "sinks", "landmark_slots")}
    tensors = dict(tensors)
    if "cu_seqlens" in setting:
        tensors["cu_seqlens"] = np.array(setting["cu_seqlens"], np.int64)
    metadata["scale"] = repr(setting["scale"])
    write_safetensors("layer.safetensors", tensors, metadata)
    do = np.random.default_rng(len(name)).standard_normal(tensors["q"].shape).astype(np.float32)
    write_safetensors("do.safetensors", {"do": do})
    chosen, policy = None, ["--policy", "dense"]
    if setting["policy"] == "hils":
        policy = ["--policy", setting["scorer"]]
        run([ringmark, "prefill", "--input", "layer.safetensors", "--output", "forward.safetensors", "--quiet",
             "--topk-chunks"] + policy)
        chosen = read_safetensors("forward.safetensors")[0]["topk_chunks"]
        assert (chosen >= 0).any(), name
    layer = Layer(tensors, setting)
    mine = gradients(layer, chosen, do.astype(np.float64))
    if slopes:
        check_slopes(layer, chosen, do.astype(np.float64), mine)
    for ranks in (1, 3):
        launch = [] if ranks == 1 else ["mpirun", "--oversubscribe", "-n", str(ranks)]
        run(launch + [ringmark, "backward", "--input", "layer.safetensors", "--gradient", "do.safetensors", "--output",
                      "gradients.safetensors", "--quiet"] + policy)
        got = read_safetensors("gradients.safetensors")[0]
        error = worst(got, mine)
        assert error <= 1e-4, (name, ranks, error)
        print(f"golden_backward: {name} on {ranks} rank(s): {error:.1e} of the largest component")
    # The comparison itself: a thousandth off is seen.
    got = {key: values * (1.001 if key == "dk" else 1.0) for key, values in got.items()}
    assert worst(got, mine) > 5e-4, name


def random_tensors(seed, n, heads, kv_heads, d, with_scores):
    random = np.random.default_rng(seed)
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    if with_scores:
        shapes["landmark_q"] = heads
    return {name: random.standard_normal((n, count, d)).astype(np.float32) for name, count in shapes.items()}


def main():
    ringmark, data = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    tensors, metadata = read_safetensors(os.path.join(data, "layer.safetensors"))
    real = {name: np.array(tensors[name][:700], np.float32) for name in ("q", "k", "v", "landmark_q")}
    of_file = {key: int(metadata[key]) for key in ("chunk_size", "window", "topk")}
    of_file |= {"sinks": 0, "scale": float(metadata["scale"]), "landmark_slots": True, "policy": "hils",
                "scorer": "hils"}
    small = {"chunk_size": 8, "window": 12, "topk": 3, "sinks": 0, "scale": 0.25, "landmark_slots": False,
             "policy": "hils", "scorer": "hils"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check(ringmark, "real layer", real, of_file, slopes=False)
        check(ringmark, "real layer, dense", real, {**of_file, "policy": "dense"}, slopes=False)
        check(ringmark, "packed, slots, sinks", random_tensors(1, 157, 4, 2, 16, True),
              {**small, "landmark_slots": True, "sinks": 3, "cu_seqlens": [0, 5, 5, 90, 157]}, slopes=True)
        check(ringmark, "no retrieval queries", random_tensors(2, 131, 6, 2, 16, False), {**small, "window": 0},
              slopes=True)
        check(ringmark, "mean", random_tensors(3, 120, 2, 2, 20, True), {**small, "scorer": "mean"}, slopes=True)
        check(ringmark, "dense", random_tensors(4, 77, 4, 1, 16, False),
              {**small, "policy": "dense", "landmark_slots": True, "cu_seqlens": [0, 30, 77]}, slopes=True)


main()
