#!/usr/bin/env python3
"""The public kernels that users would run instead, measured beside ours on one GPU.

Prints one JSON line a measurement: median, smallest and largest of several repeats by CUDA events, and TFLOP/s of
useful work, which is 4 * head_dim operations for every (query, head, key) that a row attends to.

    sdpa   exact causal attention by PyTorch: cuDNN and FlashAttention-2; 1048576 tokens by one kv group, times kv heads
    nsa    chosen chunks, one program a (query, kv head), its query heads padded to 16 rows: topk_sparse_attention of
           github.com/XunhaoLai/native-sparse-attention-triton, imported from --peer-path
    flex   chosen chunks by FlexAttention, compiled: the union of 128 queries with a mask a query, and lists that all
           128 queries of a block share

The sparse peers attend to what --selection holds ([tokens, kv heads, K] int32, -1 for none, as .npy or raw bytes), or
to a selection made here: a query keeps its neighbour's choice with probability --agreement, otherwise it draws K new
chunks. Their rows are checked against fp32 attention over the same keys.
"""
import argparse
import functools
import json
import statistics
import sys
import time

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

CHUNK = 64
QUERY_BLOCK = 128
HEAD_DIM = 128
BEGIN = time.monotonic()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="sdpa,nsa,flex", help="comma-separated, in order of running")
    parser.add_argument("--tokens", type=int, default=131072, help="of the sparse peers")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--topk", type=int, default=16)
    parser.add_argument("--window", type=int, default=512, help="chunks inside it are not chosen")
    parser.add_argument("--agreement", type=float, default=0.98)
    parser.add_argument("--selection", help="int32 [tokens, kv heads, topk], .npy or raw")
    parser.add_argument("--peer-path", help="folder that holds the package native_sparse_attention")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds after which no measurement starts")
    return parser.parse_args()


def report(**fields):
    print(json.dumps(fields), flush=True)


def measure(run, repeats, warmup=2):
    """Milliseconds of each repeat, sorted."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)


def report_times(peer, times, operations, **fields):
    median = statistics.median(times)
    report(peer=peer, median_ms=round(median, 4), min_ms=round(times[0], 4), max_ms=round(times[-1], 4),
           repeats=len(times), useful_tflops=round(operations / median / 1e9, 1), **fields)


def attempt(args, name, part):
    """Runs one measurement; a failure costs that one only."""
    if time.monotonic() - BEGIN > args.limit:
        report(peer=name, skipped="time limit")
        return
    begin = time.monotonic()
    try:
        part()
    except Exception as error:
        report(peer=name, failed=f"{type(error).__name__}: {str(error)[:600]}")
    torch.cuda.empty_cache()
    print(f"# {name}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)


def random_rows(tokens, heads):
    """[tokens, heads, d], as a layer stores them."""
    return torch.randn(tokens, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)


def as_batch(rows):
    """The same memory as [1, heads, tokens, d]."""
    return rows.transpose(0, 1).unsqueeze(0)


# Exact causal attention


def run_sdpa(backend, tokens, heads, kv_heads, repeats, warmup, scaled_by=1):
    q, k, v = (as_batch(random_rows(tokens, count)) for count in (heads, kv_heads, kv_heads))

    def run():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

    operations = 2 * tokens * (tokens + 1) * HEAD_DIM * heads
    times = measure(run, repeats, warmup)
    report_times(f"sdpa {backend.name}", times, operations, tokens=tokens, heads=heads, kv_heads=kv_heads,
                 layer_ms=round(statistics.median(times) * scaled_by, 3))


def sdpa(args):
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    heads, kv_heads = args.heads, args.kv_heads
    attempt(args, "sdpa cudnn 32K", lambda: run_sdpa(cudnn, 32768, heads, kv_heads, 20, 3))
    attempt(args, "sdpa cudnn 128K", lambda: run_sdpa(cudnn, 131072, heads, kv_heads, 7, 2))
    attempt(args, "sdpa flash 128K", lambda: run_sdpa(flash, 131072, heads, kv_heads, 5, 1))
    attempt(args, "sdpa cudnn 1M, one kv group",
            lambda: run_sdpa(cudnn, 1048576, heads // kv_heads, 1, 3, 1, scaled_by=kv_heads))


# Chosen chunks


def load_selection(args):
    if args.selection.endswith(".npy"):
        selection = np.load(args.selection)
    else:
        selection = np.fromfile(args.selection, dtype=np.int32).reshape(-1, args.kv_heads, args.topk)
    return torch.from_numpy(selection).cuda()


def make_selection(args):
    torch.manual_seed(1)
    turns = torch.rand(args.tokens, device="cuda") >= args.agreement
    turns[0] = True
    starts = turns.nonzero().squeeze(1)
    run_of = turns.cumsum(0) - 1
    chunks = torch.arange(args.tokens // CHUNK, device="cuda")
    eligible = torch.div(starts - args.window + 1, CHUNK, rounding_mode="floor").clamp(min=0)
    heads = []
    for _ in range(args.kv_heads):
        scores = torch.rand(len(starts), len(chunks), device="cuda")
        scores.masked_fill_(chunks >= eligible[:, None], -1.0)
        best = scores.topk(args.topk, dim=1)
        ids = best.indices.masked_fill(best.values < 0, len(chunks)).sort(dim=1).values
        heads.append(ids.masked_fill(ids == len(chunks), -1).int()[run_of])
    return torch.stack(heads, dim=1).contiguous()


class SparseCase:
    """q, k, v and the chunks that every query and kv head attends to."""

    def __init__(self, args):
        self.selection = load_selection(args) if args.selection else make_selection(args)
        self.selection = self.selection[: len(self.selection) // (8 * CHUNK) * 8 * CHUNK]  # 8 chunks a byte of a mask
        self.tokens, self.kv_heads, self.topk = self.selection.shape
        self.heads = args.heads
        self.group = self.heads // self.kv_heads
        self.q, self.k, self.v = (random_rows(self.tokens, n) for n in (self.heads, self.kv_heads, self.kv_heads))
        self.labels = dict(tokens=self.tokens, heads=self.heads, kv_heads=self.kv_heads, topk=self.topk,
                           selection=args.selection or f"made, agreement {args.agreement}")

    def operations(self, selection):
        """Of the keys in [tokens, kv heads, K]."""
        return 4 * HEAD_DIM * CHUNK * self.group * int((selection >= 0).sum())

    def largest_error(self, out, selection):
        """Of sampled rows of out [tokens, heads, d]."""
        worst = 0.0
        for row in torch.linspace(self.tokens // 3, self.tokens - 1, 7).long().tolist():
            for kv_head in range(self.kv_heads):
                chosen = selection[row, kv_head]
                chosen = chosen[chosen >= 0].long()
                keys = (chosen[:, None] * CHUNK + torch.arange(CHUNK, device="cuda")).flatten()
                heads = slice(kv_head * self.group, (kv_head + 1) * self.group)
                scores = self.q[row, heads].float() @ self.k[keys, kv_head].float().T / HEAD_DIM**0.5
                want = scores.softmax(dim=1) @ self.v[keys, kv_head].float()
                worst = max(worst, (out[row, heads].float() - want).abs().max().item())
        return worst


def run_nsa(case, group):
    """One query a program. `group`: query heads of a kv head; 16 is the shape these kernels are made for."""
    from native_sparse_attention.ops.triton.topk_sparse_attention import _topk_sparse_attention_fwd as forward

    kv_heads = case.kv_heads * case.group // group or 1
    heads = kv_heads * group
    q = case.q if group == case.group else random_rows(case.tokens, heads)
    k, v = case.k[:, :kv_heads], case.v[:, :kv_heads]
    selection = case.selection[:, :kv_heads]
    lists = selection.transpose(0, 1).contiguous()
    bounds = torch.tensor([0, case.tokens], dtype=torch.int32, device="cuda")

    def run():
        return forward(q, k, v, lists, CHUNK, bounds, bounds, case.tokens, case.tokens, HEAD_DIM**-0.5)[0]

    error = case.largest_error(run(), case.selection) if group == case.group else None
    times = measure(run, 5, 1)
    operations = 4 * HEAD_DIM * CHUNK * group * int((selection >= 0).sum())
    labels = dict(case.labels, heads=heads, kv_heads=kv_heads)
    report_times("nsa triton (XunhaoLai), one query a program, heads padded to 16 rows", times, operations,
                 largest_error=error, **labels)


def nsa(args, case):
    if args.peer_path is None:
        report(peer="nsa", skipped="no --peer-path")
        return
    sys.path.insert(0, args.peer_path)
    attempt(args, "nsa", lambda: run_nsa(case(), args.heads // args.kv_heads))
    attempt(args, "nsa, 16 heads a group", lambda: run_nsa(case(), 16))


def block_mask(num_blocks, indices, full, mask_mod, tokens):
    """num_blocks [heads, query blocks], indices [heads, query blocks, any]; `full` blocks need no mask."""
    num_blocks, indices = num_blocks[None].int().contiguous(), indices[None].int().contiguous()
    fields = dict(BLOCK_SIZE=(QUERY_BLOCK, CHUNK), mask_mod=mask_mod, seq_lengths=(tokens, tokens),
                  compute_q_blocks=False)
    if full:
        return BlockMask.from_kv_blocks(torch.zeros_like(num_blocks), indices, num_blocks, indices, **fields)
    return BlockMask.from_kv_blocks(num_blocks, indices, **fields)


def run_flex(case, peer, mask, selection, **fields):
    attend = torch.compile(flex_attention, dynamic=False)
    q, k, v = (as_batch(rows) for rows in (case.q, case.k, case.v))
    options = {"BLOCK_M": QUERY_BLOCK, "BLOCK_N": CHUNK, "num_warps": 8, "num_stages": 3}

    def run():
        return attend(q, k, v, block_mask=mask, enable_gqa=True, kernel_options=options)

    begin = time.monotonic()
    out = run()
    torch.cuda.synchronize()
    compile_s = time.monotonic() - begin
    error = case.largest_error(out[0].transpose(0, 1), selection)
    report_times(peer, measure(run, 7, 1), case.operations(selection), largest_error=error,
                 compile_s=round(compile_s, 1), **fields, **case.labels)


def flex_shared_lists(case):
    """The queries of a block all attend to what its first query chose."""
    first = case.selection[::QUERY_BLOCK]
    indices = first.permute(1, 0, 2).clamp(min=0)
    num_blocks = (first >= 0).sum(dim=2).T
    mask = block_mask(num_blocks.repeat_interleave(case.group, 0), indices.repeat_interleave(case.group, 0), True, None,
                      case.tokens)
    selection = first.repeat_interleave(QUERY_BLOCK, 0)
    run_flex(case, "flex, lists of 128 queries", mask, selection)


def flex_query_mask(case):
    """The union of a block's chunks, and one bit a (query, chunk) that says whether the query chose it."""
    chunk_count = case.tokens // CHUNK
    weights = (1 << torch.arange(8, device="cuda")).to(torch.uint8)
    tables, counts, indices = [], [], []
    for kv_head in range(case.kv_heads):
        chosen = torch.zeros(case.tokens, chunk_count + 1, dtype=torch.bool, device="cuda")
        ids = case.selection[:, kv_head].long()
        chosen.scatter_(1, ids.masked_fill(ids < 0, chunk_count), True)
        chosen = chosen[:, :chunk_count]
        tables.append((chosen.reshape(case.tokens, -1, 8).to(torch.uint8) * weights).sum(2, dtype=torch.uint8))
        union = chosen.reshape(-1, QUERY_BLOCK, chunk_count).any(1)
        counts.append(union.sum(1))
        indices.append(union.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices.int())
    table, group = torch.stack(tables), case.group

    def chose(batch, head, query, key):
        chunk = key // CHUNK
        return ((table[head // group, query, chunk // 8].to(torch.int32) >> (chunk % 8)) & 1) == 1

    counts, indices = torch.stack(counts), torch.stack(indices)
    mask = block_mask(counts.repeat_interleave(group, 0), indices.repeat_interleave(group, 0), False, chose,
                      case.tokens)
    blocks = case.selection.reshape(-1, QUERY_BLOCK, case.kv_heads, case.topk)
    chosen_most = (blocks >= 0).sum(3).amax(1).sum()
    run_flex(case, "flex, union of 128 queries, a mask a query", mask, case.selection,
             union_over_topk=round(int(counts.sum()) / int(chosen_most), 3))


def flex(args, case):
    attempt(args, "flex, lists of 128 queries", lambda: flex_shared_lists(case()))
    attempt(args, "flex, union of 128 queries", lambda: flex_query_mask(case()))


def main():
    args = parse_arguments()
    report(torch=torch.__version__, cudnn=torch.backends.cudnn.version(), gpu=torch.cuda.get_device_name())
    case = functools.cache(lambda: SparseCase(args))
    parts = {"sdpa": lambda: sdpa(args), "nsa": lambda: nsa(args, case), "flex": lambda: flex(args, case)}
    for part in args.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
