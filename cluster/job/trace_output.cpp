#include "cluster/job/trace_output.h"

#include "cluster/options/text_file.h"

namespace ringmark::cluster {

void write_trace(comm::Communicator& ranks, const runtime::Trace& trace, const std::string& path) {
  const auto of_ranks = ranks.gather_texts("gather the trace", runtime::trace_events(trace, ranks.rank()));
  if (ranks.rank() != 0) return;
  std::string events;
  for (const std::string& text : of_ranks) events += text;
  write_text_file(path, runtime::trace_file(events));
}

}  // namespace ringmark::cluster
