// The result of a prefill that was not of all tokens: a file like that of a prefill (runtime/layer_output.h) with the
// computed rows only, and the tensor token [rows] I64 that says which tokens they are. Described in docs/formats.md.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "core/problem.h"
#include "partition/layout.h"
#include "runtime/layer_output.h"
#include "runtime/prefill.h"

namespace ringmark::runtime {

// rows: of all ranks. Throws Error when the file could not be written as things stand. Leaves nothing behind.
void check_rest_output(const OutputFile& file, const AttentionProblem& problem, const AttentionPolicy& policy,
                       std::int64_t rows);

// Collective: every rank writes its rows, those of the layout; the file appears whole or not at all.
void write_rest_output(comm::Communicator& communicator, const OutputFile& file, const AttentionProblem& problem,
                       const AttentionPolicy& policy, const partition::Layout& layout, const PrefillResult& result);

}  // namespace ringmark::runtime
