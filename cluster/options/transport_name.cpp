#include "cluster/options/transport_name.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "cluster/options/option_values.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

constexpr std::array kTransports = {TransportName::kAuto, TransportName::kRma,     TransportName::kRequest,
                                    TransportName::kUcx,  TransportName::kCudaIpc, TransportName::kNccl};
constexpr auto kTransportText = [](TransportName choice) -> std::string_view {
  switch (choice) {
    case TransportName::kAuto: return "auto";
    case TransportName::kRma: return "rma";
    case TransportName::kRequest: return "request";
    case TransportName::kUcx: return "ucx";
    case TransportName::kCudaIpc: return "cuda-ipc";
    case TransportName::kNccl: return "nccl";
  }
  return "?";
};

}  // namespace

TransportName read_transport(const OptionValues& values, kernels::Backend backend) {
  const auto name =
      read_choice<TransportName>(values, "transport", kTransports, kTransportText).value_or(TransportName::kAuto);
  const bool gpu = backend == kernels::Backend::kCuda;
  const bool of_gpus = name == TransportName::kCudaIpc || name == TransportName::kNccl;
  if (name != TransportName::kAuto && of_gpus != gpu) {
    const OptionValue* const given = find_value(values, "transport");
    fail_bad_input(fmt::format("{} = {} does not move the memory of --backend {}; limit: {}", given->origin,
                               given->text, name_of(backend),
                               gpu ? "auto, cuda-ipc or nccl" : "auto, rma, request or ucx"));
  }
  return name;
}

comm::TransportChoice host_transport(TransportName name) {
  switch (name) {
    case TransportName::kRma: return comm::TransportChoice::kRma;
    case TransportName::kRequest: return comm::TransportChoice::kRequest;
    case TransportName::kUcx: return comm::TransportChoice::kUcx;
    default: return comm::TransportChoice::kAuto;
  }
}

}  // namespace ringmark::cluster
