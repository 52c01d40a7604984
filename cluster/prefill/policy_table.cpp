#include "cluster/prefill/policy_table.h"

#include <algorithm>
#include <array>

namespace ringmark::cluster {
namespace {

constexpr std::array kPolicies = {
    PolicyRow{"hils", "HiLS-Attention, arXiv 2607.02980", "s = a q~.k'_c + b'_c; w = softmax(s of the top K, lse_0)",
              "--topk --window --chunk --sinks --choice --merge --landmark-query --calibrate",
              "choice; softmax inside window and chunks", "golden.py"},
    PolicyRow{"mean", "HiLS-Attention, arXiv 2607.02980", "as hils with k'_c = mean of k and b'_c = ln of their number",
              "--topk --window --chunk --sinks --choice --merge", "choice; softmax inside window and chunks",
              "golden.py"},
    PolicyRow{"oracle", "HiLS-Attention, arXiv 2607.02980", "as hils with s = ln sum_j exp(z_ij) over keys j of c",
              "--topk --window --chunk --sinks --choice --merge", "the softmax over all keys taken", "golden.py"},
    PolicyRow{"landmark", "Landmark Attention, arXiv 2305.16300",
              "s = a q.k of the landmark; w = softmax(top K s, own keys)",
              "--topk --chunk --choice --merge --landmark-positions",
              "the grouped softmax; with K at all chunks, of training", "golden.py golden_stingy.py"},
    PolicyRow{"moba", "MoBA, arXiv 2502.13189", "top K of q.mean(k); softmax over their keys and own chunk",
              "--topk --chunk --choice --merge", "the softmax over all keys taken", "golden.py"},
    PolicyRow{"quest", "Quest, arXiv 2406.10774", "top K of a sum_d max(q_d min k_d, q_d max k_d); as moba",
              "--topk --chunk --choice --merge", "the softmax over all keys taken", "golden.py"},
    PolicyRow{"window", "Longformer, arXiv 2004.05150", "softmax over keys [max(0, o-W+1), o]",
              "--window --chunk --alibi", "everything", "golden.py"},
    PolicyRow{"sinks", "StreamingLLM, arXiv 2309.17453", "softmax over keys [0, sinks) and [max(0, o-W+1), o]",
              "--window --sinks --chunk --sink-positions --alibi", "everything", "golden.py"},
    PolicyRow{"xl", "Transformer-XL, arXiv 1901.02860", "softmax over keys [max(0, floor(o/L) L - M), o]",
              "--segment --memory --chunk --alibi", "everything", "golden.py"},
    PolicyRow{"dense", "FlashAttention, arXiv 2205.14135", "softmax over keys [0, o]",
              "--merge --ulysses-ranks --chunk --alibi", "everything", "golden.py"},
    PolicyRow{"nsa", "NSA, arXiv 2502.11089", "g0 o_cmp + g1 o_slc + g2 o_win", "--topk --window --chunk --gates",
              "each branch; the gates are given", "golden_nsa.py"},
    PolicyRow{"compressive", "Compressive Transformer, arXiv 1911.05507",
              "softmax over keys [m0, o] and means of c older keys each",
              "--segment --memory --compressed-slots --compression-rate --chunk",
              "keys from m0 on; older ones are means", "golden_compressive.py"},
    PolicyRow{"dilated", "LongNet, arXiv 2307.02486", "pairs (w, r), by lse: keys of floor(o/w), u mod r = h mod r",
              "--dilation --chunk --alibi", "each pair; merged by its mass", "golden_dilated.py"},
    PolicyRow{"logo", "LoGo, arXiv 2608.29539", "norm(win); where g > b: (1-g) norm(win) + g norm(dense)",
              "--window --threshold --target-ratio --threshold-step --mask-steps --controller --merge --chunk --alibi",
              "both branches; the gate is given", "golden_logo.py"},
};

}  // namespace

std::span<const PolicyRow> policy_table() { return kPolicies; }

const PolicyRow* find_policy(std::string_view name) {
  const auto found =
      std::find_if(kPolicies.begin(), kPolicies.end(), [&](const PolicyRow& r) { return r.name == name; });
  return found == kPolicies.end() ? nullptr : &*found;
}

}  // namespace ringmark::cluster
