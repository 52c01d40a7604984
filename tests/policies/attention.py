"""Attention of one document under the policies of docs/policies.md, in fp64 and over whole matrices, from the formulas of
the papers. Symbols: i a query, j a key (their places in the document), h a query head, g its kv head, c a chunk."""
import dataclasses

import numpy as np


@dataclasses.dataclass
class Document:
    q: np.ndarray  # [n, H, d]
    k: np.ndarray  # [n, Hkv, d]
    v: np.ndarray  # [n, Hkv, d]
    landmark_q: np.ndarray  # [n, H, d]: q where the model has no retrieval queries
    chunk: int
    scale: float
    landmark_slots: bool = False
    logit_cap: float = 0.0
    alibi: bool = False
    sink_logits: np.ndarray = None  # [H]
    chunk_landmark_q: np.ndarray = None  # [full chunks, H, d]: landmark queries that are no rows

    @property
    def tokens(self):
        return self.q.shape[0]

    @property
    def heads(self):
        return self.q.shape[1]

    def kv_head(self, h):
        return h * self.k.shape[1] // self.heads


@dataclasses.dataclass
class Policy:
    name: str
    window: int = 0
    topk: int = 0
    sinks: int = 0
    segment: int = 0
    memory: int = 0
    choice: str = "head"  # group, head or all
    cache_positions: bool = False  # of sinks


@dataclasses.dataclass
class Result:
    o: np.ndarray  # [n, H, d]
    lse: np.ndarray  # [n, H]
    visible: np.ndarray  # [H, n, n]: row i has a key j in one of its softmaxes
    chosen: np.ndarray = None  # [choosers, n, chunks]
    margin: np.ndarray = None  # [choosers, n]: between the rank of the last chosen chunk and the next; inf without one


def log_sum_exp(x, axis=-1):
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.squeeze(top + np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)), axis)


def softmax(x, lse):
    """Zeros where there is nothing to weigh."""
    return np.exp(x - np.where(np.isfinite(lse), lse, 0.0)[..., None])


def alibi_slopes(heads):
    if heads & (heads - 1) == 0:
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    below = 1 << (heads.bit_length() - 1)
    return np.concatenate([alibi_slopes(below), alibi_slopes(2 * below)[0::2][: heads - below]])


def places(document):
    i = np.arange(document.tokens)
    return i[:, None], i[None, :]


def keys(document):
    """Landmark slots are never keys."""
    j = np.arange(document.tokens)
    return ~((j % document.chunk == document.chunk - 1) & document.landmark_slots)


def logits(document, h):
    z = document.scale * document.q[:, h] @ document.k[:, document.kv_head(h)].T
    if document.logit_cap > 0:
        z = document.logit_cap * np.tanh(z / document.logit_cap)
    if document.alibi:
        i, j = places(document)
        z = z - alibi_slopes(document.heads)[h] * (i - j)
    return z


def attend(document, h, visible):
    """(o [n, d], lse [n]) of one softmax over the visible keys."""
    z = np.where(visible, logits(document, h), -np.inf)
    lse = log_sum_exp(z)
    return softmax(z, lse) @ document.v[:, document.kv_head(h)], lse


def fixed_keys(document, policy):
    """[n, n]: what a row sees under a policy that chooses nothing."""
    i, j = places(document)
    if policy.name == "dense":
        first = 0 * i
    elif policy.name == "xl":
        first = i // policy.segment * policy.segment - policy.memory
    else:
        first = i - policy.window + 1
    return keys(document) & (j <= i) & ((j >= first) | (j < policy.sinks))


# --- policies that choose -------------------------------------------------------------------------------------------


def first_window_chunk(document, policy):
    """[n]: the chunk in which the window of a row begins; those before it may be chosen."""
    i = np.arange(document.tokens)
    if policy.window == 0:
        return i // document.chunk
    return np.maximum(0, (i - policy.window + 1) // document.chunk)


def window_keys(document, policy):
    i, j = places(document)
    first = first_window_chunk(document, policy)[:, None] * document.chunk
    return keys(document) & (j <= i) & ((j >= first) | (j < policy.sinks))


def ordinary_tokens(document, policy):
    """T_c of every full chunk, as places."""
    j = np.arange(document.tokens)
    ordinary = keys(document) & (j >= policy.sinks)
    full = document.tokens // document.chunk
    return [j[(j // document.chunk == c) & ordinary] for c in range(full)]


def score(document, policy, h, c, tokens):
    """[n]: the score of chunk c for every query of head h."""
    a, q, k = document.scale, document.q[:, h], document.k[:, document.kv_head(h)]
    landmark = (c + 1) * document.chunk - 1
    members = k[tokens]
    if policy.name == "hils":
        own = document.chunk_landmark_q
        z = a * members @ (document.landmark_q[landmark, h] if own is None else own[c, h].astype(float))
        p = softmax(z, log_sum_exp(z)).ravel()
        entropy = -np.sum(p[p > 0] * np.log(p[p > 0]))
        return a * document.landmark_q[:, h] @ (p @ members) + entropy
    if policy.name in ("mean", "moba"):
        return a * q @ members.mean(axis=0) + np.log(len(tokens))
    if policy.name == "oracle":
        return log_sum_exp(logits(document, h)[:, tokens])
    if policy.name == "landmark":
        return a * q @ k[landmark]
    assert policy.name == "quest", policy.name
    return a * np.maximum(q * members.min(axis=0), q * members.max(axis=0)).sum(axis=1)


def choosers_of(document, policy):
    """The query heads of every chooser."""
    heads = np.arange(document.heads)
    if policy.choice == "all":
        return [heads]
    if policy.choice == "head":
        return list(heads[:, None])
    return list(heads.reshape(document.k.shape[1], -1))


def choose(document, policy, scores, window_lse):
    """Chosen chunks and margins from scores [H, n, chunks], -inf where a chunk is not eligible."""
    mass = log_sum_exp(scores)
    # In Landmark Attention the landmarks compete with each other before heads are compared.
    norm = mass if policy.name == "landmark" else np.logaddexp(mass, window_lse)
    ranks = scores - np.where(np.isfinite(norm), norm, 0.0)[..., None]
    chosen, margins = [], []
    for heads in choosers_of(document, policy):
        rank = ranks[heads].max(axis=0)
        order = np.argsort(-rank, axis=1, kind="stable")
        best = np.take_along_axis(rank, order, axis=1)
        taken = np.zeros(rank.shape, bool)
        np.put_along_axis(taken, order[:, : policy.topk], True, axis=1)
        chosen.append(taken & np.isfinite(rank))
        margin = np.full(document.tokens, np.inf)
        if policy.topk < rank.shape[1]:
            last, following = best[:, policy.topk - 1], best[:, policy.topk]
            contested = np.isfinite(following)
            margin[contested] = last[contested] - following[contested]
        margins.append(margin)
    return np.array(chosen), np.array(margins)


def mix(document, h, window, scores, chosen, members):
    """Hierarchical: a chunk weighs its score, the window its mass, and each has a softmax of its own."""
    o_window, lse_window = attend(document, h, window)
    outputs = [o_window]
    for tokens in members:
        inside = np.zeros(document.tokens, bool)
        inside[tokens] = True
        outputs.append(attend(document, h, np.broadcast_to(inside, window.shape))[0])
    entries = np.concatenate([lse_window[:, None], np.where(chosen, scores, -np.inf)], axis=1)
    lse = log_sum_exp(entries)
    return np.einsum("ic,cid->id", softmax(entries, lse), np.array(outputs)), lse


def attend_chosen(document, policy):
    members = ordinary_tokens(document, policy)
    window = window_keys(document, policy)
    shape = (document.heads, document.tokens, len(members))
    scores = np.full(shape, -np.inf)
    window_lse = np.array([attend(document, h, window)[1] for h in range(document.heads)])
    for c, tokens in enumerate(members):
        eligible = (c < first_window_chunk(document, policy)) & (len(tokens) > 0)
        for h in range(document.heads) if eligible.any() else ():
            scores[h, eligible, c] = score(document, policy, h, c, tokens)[eligible]
    chosen, margin = choose(document, policy, scores, window_lse)
    o, lse, visible = [], [], []
    chooser = {h: at for at, heads in enumerate(choosers_of(document, policy)) for h in heads}
    for h in range(document.heads):
        taken = chosen[chooser[h]]
        seen = window.copy()
        for c, tokens in enumerate(members):
            seen[:, tokens] |= taken[:, c, None]
        if policy.name in ("moba", "quest"):
            row = attend(document, h, seen)
        else:
            row = mix(document, h, window, scores[h], taken, members)
        o.append(row[0])
        lse.append(row[1])
        visible.append(seen)
    return Result(np.stack(o, 1), np.stack(lse, 1), np.array(visible), chosen, margin)


# --- all ------------------------------------------------------------------------------------------------------------


def rotate(rows, positions, theta=10000.0):
    """RoPE on pairs (j, j + d/2)."""
    half = rows.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * theta ** (-np.arange(half) / half)
    x, y = rows[..., :half], rows[..., half:]
    return np.concatenate([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], axis=-1)


def attend_cache(document, policy, h, visible):
    """StreamingLLM as its cache works: every row rotates what it sees by the places in the cache."""
    g = document.kv_head(h)
    o, lse = np.zeros((document.tokens, document.q.shape[2])), np.full(document.tokens, -np.inf)
    for i in range(document.tokens):
        cache = np.flatnonzero(visible[i])
        at = np.arange(len(cache))
        row = Document(rotate(document.q[i : i + 1, h], at[-1:])[:, None], rotate(document.k[cache, g], at)[:, None],
                       document.v[cache, g][:, None], None, document.chunk, document.scale)
        everything = np.ones((1, len(cache)), bool)
        (o[i],), (lse[i],) = attend(row, 0, everything)
    return o, lse


def attend_fixed(document, policy):
    visible = fixed_keys(document, policy)
    how = attend_cache if policy.cache_positions else lambda doc, _, h, seen: attend(doc, h, seen)
    rows = [how(document, policy, h, visible) for h in range(document.heads)]
    return Result(np.stack([o for o, _ in rows], 1), np.stack([lse for _, lse in rows], 1),
                  np.broadcast_to(visible, (document.heads, *visible.shape)))


def absorb_sink_logits(document, result):
    """One more logit a row, whose value is 0."""
    if document.sink_logits is None:
        return
    lse = np.logaddexp(result.lse, document.sink_logits)
    result.o *= np.exp(result.lse - lse)[..., None]
    result.lse = lse


FIXED = ("dense", "window", "sinks", "xl")


def compute(document, policy):
    result = attend_fixed(document, policy) if policy.name in FIXED else attend_chosen(document, policy)
    absorb_sink_logits(document, result)
    return result
