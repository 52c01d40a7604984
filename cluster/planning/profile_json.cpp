// The file form of a machine profile (docs/formats.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cluster/options/option_layers.h"
#include "cluster/planning/machine_profile.h"
#include "core/error.h"

namespace ringmark::cluster {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kFormat = 1;
constexpr double kMaxSeconds = 1e6;  // of anything
constexpr double kMaxRate = 1e18;    // bytes a second
constexpr std::int64_t kMaxCount = 1 << 20;
constexpr std::int64_t kMaxMemory = std::int64_t{1} << 50;
constexpr std::size_t kMaxText = 500;

using Stage = std::pair<const char*, StageRate ComputeRates::*>;
constexpr Stage kStages[] = {
    {"store", &ComputeRates::store},   {"landmarks", &ComputeRates::landmarks}, {"window", &ComputeRates::window},
    {"pack", &ComputeRates::pack},     {"score", &ComputeRates::score},         {"plan", &ComputeRates::plan},
    {"attend", &ComputeRates::attend}, {"dense", &ComputeRates::dense},         {"rest", &ComputeRates::rest}};

// The fields of one object; every one is asked for, and none is left.
class Fields {
 public:
  Fields(const Json& object, std::string path, std::string prefix)
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail_bad_input(fmt::format("profile {}: {} is not an object", path_, name()));
  }

  bool has(const char* field) const { return object_.contains(field); }
  const Json& get(const char* field) {
    asked_.emplace_back(field);
    const auto found = object_.find(field);
    if (found == object_.end()) fail_bad_input(fmt::format("profile {}: {} is missing", path_, name(field)));
    return *found;
  }
  double number(const char* field, double low, double high) {
    const Json& value = get(field);
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number >= low && number <= high)) refuse(field, value, fmt::format("a number in [{}, {}]", low, high));
    return number;
  }
  double rate(const char* field) {
    const Json& value = get(field);
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number > 0.0 && number <= kMaxRate)) {
      refuse(field, value, fmt::format("a number above 0 and at most {}", kMaxRate));
    }
    return number;
  }
  std::int64_t count(const char* field, std::int64_t low, std::int64_t high) {
    const Json& value = get(field);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high)) &&
                      value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
    if (!fits) refuse(field, value, fmt::format("a whole number in [{}, {}]", low, high));
    return value.get<std::int64_t>();
  }
  std::string text(const char* field) {
    const Json& value = get(field);
    if (!value.is_string() || value.get<std::string>().empty() || value.get<std::string>().size() > kMaxText) {
      refuse(field, value, fmt::format("a text of 1 to {} bytes", kMaxText));
    }
    return value.get<std::string>();
  }
  Fields object(const char* field) { return {get(field), path_, name(field) + "."}; }
  [[noreturn]] void refuse(const char* field, const Json& value, const std::string& expected) const {
    fail_bad_input(
        fmt::format("profile {}: {} = {} is not {}", path_, name(field), value.dump().substr(0, 40), expected));
  }
  void expect_no_other() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
      fail_bad_input(fmt::format("profile {}: unknown field {}{}", path_, name(key), suggestion(key, asked_, prefix_)));
    }
  }

 private:
  std::string name(const std::string& field = "") const {
    if (field.empty()) return prefix_.empty() ? "the file" : prefix_.substr(0, prefix_.size() - 1);
    return prefix_ + field.substr(0, 40);
  }

  const Json& object_;
  std::string path_, prefix_;
  std::vector<std::string> asked_;
};

StageRate read_stage(Fields fields) {
  StageRate rate;
  rate.fixed = fields.number("fixed", 0.0, kMaxSeconds);
  rate.row = fields.number("row", 0.0, kMaxSeconds);
  rate.unit = fields.number("unit", 0.0, kMaxSeconds);
  fields.expect_no_other();
  return rate;
}

LinkRate read_link(Fields fields) {
  LinkRate rate;
  rate.latency = fields.number("latency", 0.0, kMaxSeconds);
  rate.request = fields.number("request", 0.0, kMaxSeconds);
  rate.streamed = fields.rate("streamed");
  rate.scattered = fields.rate("scattered");
  rate.node = fields.number("node", 0.0, kMaxRate);
  rate.source = fields.text("source");
  fields.expect_no_other();
  return rate;
}

// nlohmann-json keeps the last of several fields of one name; a profile has each once.
Json parse_strictly(const std::string& text, const std::string& path) {
  std::vector<std::set<std::string>> open;
  const auto once = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      fail_bad_input(fmt::format("profile {}: {} is given twice", path, value.get<std::string>().substr(0, 40)));
    }
    return true;
  };
  try {
    return Json::parse(text, once);
  } catch (const Json::exception& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    fail_bad_input(fmt::format("profile {} is no JSON: {}", path, why.substr(0, 160)));
  }
}

}  // namespace

MachineProfile parse_profile(const std::string& text, const std::string& path) {
  const Json json = parse_strictly(text, path);
  Fields fields(json, path, "");
  MachineProfile profile;
  fields.count("ringmark_profile", kFormat, kFormat);
  profile.name = fields.text("name");
  profile.backend = fields.text("backend");
  if (profile.backend != "cpu" && profile.backend != "cuda") fields.refuse("backend", profile.backend, "cpu or cuda");
  profile.compute.attends_unions = profile.backend == "cuda";
  profile.measured = fields.text("measured");
  profile.ranks_per_node = static_cast<int>(fields.count("ranks_per_node", 1, kMaxCount));
  profile.threads = static_cast<int>(fields.count("threads", 1, kMaxCount));
  profile.cores_per_node = static_cast<int>(fields.count("cores_per_node", 0, kMaxCount));
  profile.memory_bytes = fields.count("memory_bytes", 1, kMaxMemory);
  profile.agreement = fields.number("agreement", 0.0, 1.0);
  Fields compute = fields.object("compute");
  for (const auto& [name, stage] : kStages) profile.compute.*stage = read_stage(compute.object(name));
  compute.expect_no_other();
  Fields links = fields.object("links");
  for (const LinkClass link : kLinkClasses) {
    const std::string name(name_of(link));
    if (links.has(name.c_str())) profile.link(link) = read_link(links.object(name.c_str()));
  }
  links.expect_no_other();
  fields.expect_no_other();
  return profile;
}

std::string profile_text(const MachineProfile& profile) {
  Json json = {{"ringmark_profile", kFormat},
               {"name", profile.name},
               {"backend", profile.backend},
               {"measured", profile.measured},
               {"ranks_per_node", profile.ranks_per_node},
               {"threads", profile.threads},
               {"cores_per_node", profile.cores_per_node},
               {"memory_bytes", profile.memory_bytes},
               {"agreement", profile.agreement}};
  for (const auto& [name, stage] : kStages) {
    const StageRate& rate = profile.compute.*stage;
    json["compute"][name] = {{"fixed", rate.fixed}, {"row", rate.row}, {"unit", rate.unit}};
  }
  json["links"] = Json::object();
  for (const LinkClass link : kLinkClasses) {
    const LinkRate& rate = profile.link(link);
    if (!rate.known()) continue;
    json["links"][std::string(name_of(link))] = {{"latency", rate.latency},   {"request", rate.request},
                                                 {"streamed", rate.streamed}, {"scattered", rate.scattered},
                                                 {"node", rate.node},         {"source", rate.source}};
  }
  return json.dump(2) + "\n";
}

}  // namespace ringmark::cluster
