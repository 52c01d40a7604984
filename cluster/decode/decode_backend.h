// What decodes for this rank, on its CPU or on its GPU, behind an interface that a build without CUDA has too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cluster/decode/decode_options.h"
#include "cluster/telemetry/telemetry.h"
#include "comm/communicator.h"
#include "runtime/decode_engine.h"
#include "runtime/memory_plan.h"

namespace ringmark::cluster {

// What a report says of it.
struct DecodeBackendReport {
  std::string instruction_set;  // or family of kernels
  std::string device;           // GPU: name and UUID; empty on CPUs
  std::string transport;        // name
  std::string transport_reason;
  std::string exchange;
  runtime::ExchangeCosts costs;
};

class DecodeBackend {
 public:
  virtual ~DecodeBackend() = default;

  // Bytes of host or GPU memory that this rank may take.
  virtual std::int64_t memory_limit() const = 0;
  virtual runtime::MemoryPlan plan(const runtime::KeptShape& shape) const = 0;
  // Collective: chooses the transport and makes an empty layer.
  virtual void open(const runtime::KeptShape& shape) = 0;
  // After open().
  virtual runtime::DecodeEngine& engine() = 0;
  virtual DecodeBackendReport report() const = 0;
  // Collective.
  virtual void retire() = 0;
};

// Collective, both.
std::unique_ptr<DecodeBackend> make_host_decode(comm::Communicator& ranks, const DecodeOptions& options, int threads,
                                                Telemetry& telemetry);
// Chooses the GPU by the local rank; two ranks on one GPU, and a rank without one, are Error(kEnvironment).
std::unique_ptr<DecodeBackend> make_gpu_decode(comm::Communicator& ranks, const DecodeOptions& options,
                                               Telemetry& telemetry);

}  // namespace ringmark::cluster
