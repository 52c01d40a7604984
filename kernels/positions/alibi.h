// ALiBi (arXiv 2108.12409): instead of a rotation, the score of a key gets a bias that grows with its distance,
//     s_ij = a q_i . k_j - m_h (i - j),
// with a slope m_h for every query head. AttentionProblem::alibi asks the attention kernels for it.
#pragma once

#include <cstdint>
#include <vector>

namespace ringmark::kernels {

// m_h of every head, h = 1..n: 2^(-8h/n) for n a power of two. Otherwise the slopes of the next lower power of two,
// then every second slope, from the first, of twice that power.
std::vector<float> alibi_slopes(std::int64_t heads);

// The bias of a key `distance` = i - j positions back. The distance is taken as a whole number: positions themselves
// would lose their units in fp32 above 2^24, and in bf16 above 256.
inline float alibi_bias(float slope, std::int64_t distance) { return -slope * static_cast<float>(distance); }

}  // namespace ringmark::kernels
