#include "cluster/prefill/controller_file.h"

#include <array>
#include <filesystem>
#include <limits>

#include "cluster/options/text_file.h"
#include "kvstore/safetensors_io.h"
#include "kvstore/strict_json.h"
#include "runtime/agreement.h"

namespace ringmark::cluster {
namespace {

using runtime::logo::ControllerSettings;
using runtime::logo::ThresholdController;

constexpr double kFarthest = 1e9;  // of a threshold, either way
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;
constexpr std::int64_t kMaxBytes = 4096;

ThresholdController parse(const std::string& path, const ControllerSettings& settings) {
  const kvstore::Descriptor file = kvstore::open_for_reading(path);
  const std::int64_t bytes = kvstore::regular_file_bytes(file, path);
  if (bytes > kMaxBytes) fail_bad_input(path + ": is no controller file: it has " + std::to_string(bytes) + " bytes");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  kvstore::read_range(file, 0, std::as_writable_bytes(std::span(text)), path);
  const nlohmann::json json = kvstore::parse_strict_json(path, text, 1);
  kvstore::JsonFields fields(path, "", json);
  const double threshold = fields.number("threshold", -kFarthest, kFarthest);
  const std::int64_t steps = fields.integer("steps", 0, kMaxSteps);
  fields.finish();
  return {settings, threshold, steps};
}

}  // namespace

ThresholdController read_controller(comm::Communicator& ranks, const std::string& path,
                                    const ControllerSettings& settings) {
  ThresholdController controller(settings);
  runtime::agree(ranks, "read the controller", [&] {
    if (ranks.rank() != 0) return;
    check_text_file(path);
    if (std::filesystem::exists(path)) controller = parse(path, settings);
  });
  // Gates are compared with one number on all ranks.
  const bool first = ranks.rank() == 0;
  std::array<double, 1> threshold = {first ? controller.threshold() : -std::numeric_limits<double>::infinity()};
  std::array<std::int64_t, 1> steps = {first ? controller.steps() : 0};
  ranks.all_reduce_max("share the threshold", threshold);
  ranks.all_reduce_max("share the threshold", steps);
  return {settings, threshold[0], steps[0]};
}

void write_controller(const std::string& path, const ThresholdController& controller) {
  nlohmann::ordered_json json;
  json["threshold"] = controller.threshold();
  json["steps"] = controller.steps();
  write_text_file(path, json.dump(2) + "\n");
}

}  // namespace ringmark::cluster
