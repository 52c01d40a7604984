#include "cluster/prefill/pooled_report.h"

#include <array>

#include "kvstore/block_store.h"
#include "runtime/agreement.h"
#include "runtime/locality.h"

namespace ringmark::cluster {

runtime::PooledOptions pooled_options(LayerRun& run) {
  runtime::PooledOptions options;
  options.fetch_budget = run.fetch_budget();
  options.threads = run.threads();
  options.trace = &run.trace();
  return options;
}

comm::ChosenTransport transport_of_blocks(const LayerRun& run) {
  comm::ChosenTransport transport;
  runtime::agree(run.ranks(), "choose the transport", [&] {
    const auto chunks = static_cast<std::int64_t>(run.layout().chunks_of(run.rank()).size());
    transport = comm::choose_transport(run.ranks(), host_transport(run.options().transport),
                                       kvstore::BlockStore::bytes_of(run.problem(), chunks), run.options().spill());
  });
  return run.telemetry().observe(std::move(transport));
}

PrefillReport report_of(const LayerRun& run, const AttentionPolicy& policy, const comm::ChosenTransport& transport,
                        const runtime::PrefillResult& result) {
  comm::Communicator& ranks = run.ranks();
  const std::vector<TokenId> tokens = run.layout().tokens_of(run.rank());
  PrefillReport report;
  static_cast<RunReport&>(report) = report_of_run(
      run, {"load", "pool", "plan", "fetch", "window", "compress", "attend", "write"}, result.clock, result.out);
  report.policy_name = run.options().policy.name;
  report.policy = policy;
  report.transport = transport.transport ? std::string(transport.transport->name()) : "none";
  report.transport_reason = transport.transport ? transport.why : "none: the reference gathers the whole layer";
  report.merge = run.by_reference() ? "none" : "pooled keys of all ranks on every rank";
  std::array<std::int64_t, 3> sums = {static_cast<std::int64_t>(kernels::selection_digest(result.selection, tokens)),
                                      result.bytes_fetched, result.bytes_merged};
  ranks.all_reduce_sum("report", sums);
  report.selection_digest = static_cast<std::uint64_t>(sums[0]);
  report.bytes_fetched = sums[1];
  report.bytes_merged = sums[2];
  report.union_ratio = runtime::union_ratios(ranks, result.selection, tokens);
  return report;
}

}  // namespace ringmark::cluster
