// What a backward pass reads and writes as safetensors files, in token order whatever the layout: `do` [N, H, d] in, dq
// [N, H, d], dk and dv [N, Hkv, d] and, where the layer scores with retrieval queries of its own, dlandmark_q [N, H, d]
// out. Described in docs/formats.md.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/problem.h"
#include "kvstore/safetensors_file.h"
#include "partition/layout.h"
#include "runtime/backward.h"

namespace ringmark::runtime {

class GradientFile {
 public:
  // Throws Error(kBadInput): unreadable or malformed file, no tensor `do`, a shape that is not the layer's, a dtype
  // other than BF16, F16 and F32. Nothing but the header is read.
  GradientFile(const std::string& path, const AttentionProblem& problem);

  // The rank's rows [rows, H, d]. Throws Error(kBadInput) naming the token of a value that is NaN or infinite.
  std::vector<float> load(const partition::Layout& layout, RankId rank) const;

 private:
  kvstore::SafetensorsFile file_;
};

struct GradientOutput {
  std::string path;
  bool with_landmark_queries = false;
};

// Throws Error when the file could not be written as things stand: folder, permissions, space. Leaves nothing behind.
void check_gradient_output(const GradientOutput& file, const AttentionProblem& problem, const AttentionPolicy& policy);

// Collective: every rank writes its rows; the file appears whole or not at all.
void write_gradients(comm::Communicator& communicator, const GradientOutput& file, const AttentionProblem& problem,
                     const AttentionPolicy& policy, const partition::Layout& layout, const BackwardResult& result);

}  // namespace ringmark::runtime
