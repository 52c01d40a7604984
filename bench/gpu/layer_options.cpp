#include "bench/gpu/layer_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace ringmark::bench {
namespace {

using comm::cuda::DeviceTransportChoice;
using kernels::cuda::Path;
using runtime::Fetch;

std::int64_t number(const char* text) { return std::strtoll(text, nullptr, 10); }

std::vector<std::int64_t> numbers(const char* text) {
  std::vector<std::int64_t> all;
  for (const char* at = text; at != nullptr; at = std::strchr(at, ',')) all.push_back(number(*at == ',' ? ++at : at));
  return all;
}

template <class Value>
Value one_of(std::string_view option, std::string_view text,
             std::initializer_list<std::pair<std::string_view, Value>> names) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    known.push_back(name);
  }
  fail_bad_input(fmt::format("{} is '{}'; there are: {}", option, text, fmt::join(known, ", ")));
}

Path path_named(std::string_view text) {
  return one_of<Path>("--kernels", text, {{"hopper", Path::kHopper}, {"mma", Path::kMma}, {"simt", Path::kSimt}});
}

DeviceTransportChoice transport_named(std::string_view text) {
  return one_of<DeviceTransportChoice>("--transport", text,
                                       {{"auto", DeviceTransportChoice::kAuto},
                                        {"cuda-ipc", DeviceTransportChoice::kCudaIpc},
                                        {"nccl", DeviceTransportChoice::kNccl}});
}

Fetch fetch_named(std::string_view text) {
  return one_of<Fetch>("--fetch", text,
                       {{"auto", Fetch::kAuto}, {"blocks", Fetch::kBlocks}, {"stream", Fetch::kStream}});
}

// True for an option without a value.
bool take_switch(std::string_view name, LayerOptions& options) {
  if (name == "--no-dense") {
    options.dense = false;
  } else if (name == "--alone") {
    options.alone = true;
  } else if (name == "--share-gpu") {
    options.share = true;
  } else {
    return false;
  }
  return true;
}

void take_value(std::string_view name, const char* value, LayerOptions& options) {
  if (name == "--tokens") {
    options.tokens = numbers(value);
  } else if (name == "--topk") {
    options.topk = number(value);
  } else if (name == "--agreement") {
    options.planted.agreement = std::strtod(value, nullptr);
  } else if (name == "--topics") {
    options.planted.topics = number(value);
  } else if (name == "--repeats") {
    options.repeats = static_cast<int>(number(value));
  } else if (name == "--selection") {
    options.selection_file = value;
  } else if (name == "--kernels") {
    options.path = path_named(value);
  } else if (name == "--transport") {
    options.transport = transport_named(value);
  } else if (name == "--fetch") {
    options.fetch = fetch_named(value);
  } else {
    fail_bad_input(
        fmt::format("unknown option {}; there are --tokens N,N --topk K --agreement X --topics T --repeats R "
                    "--selection FILE --kernels NAME --no-dense, and for several ranks --alone --share-gpu "
                    "--transport NAME --fetch NAME",
                    name));
  }
}

}  // namespace

LayerOptions read_layer_options(int argc, char** argv) {
  LayerOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (take_switch(name, options)) continue;
    if (i + 1 == argc) fail_bad_input(fmt::format("{} needs a value", name));
    take_value(name, argv[++i], options);
  }
  return options;
}

}  // namespace ringmark::bench
