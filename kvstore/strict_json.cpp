#include "kvstore/strict_json.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "kvstore/safetensors_json.h"

namespace ringmark::kvstore {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxShown = 60;

bool is_integer_in(const json& value, std::int64_t low, std::int64_t high) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return std::cmp_greater_equal(number, low) && std::cmp_less_equal(number, high);
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
}

std::string range_text(std::int64_t low, std::int64_t high) {
  return fmt::format("a whole number in [{}, {}]", low, high);
}

}  // namespace

json parse_strict_json(const std::string& path, std::string_view text, int max_depth) {
  // The library skips a byte order mark and takes a NUL for the end of the text; neither is JSON.
  if (text.empty() || text.front() != '{') fail_bad_input(fmt::format("{}: does not begin with '{{'", path));
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_bad_input(fmt::format("{}: is not JSON: NUL at byte {}", path, nul));
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth >= max_depth &&
        (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start)) {
      fail_bad_input(fmt::format("{}: is nested deeper than {} levels", path, max_depth));
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail_bad_input(fmt::format("{}: has the field {} twice", path, shown(parsed)));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::detail::exception& error) {
    fail_bad_input(fmt::format("{}: is not JSON: {}", path, printable(error.what(), 160)));
  }
}

std::string shown(const json& value) {
  if (value.is_string()) return fmt::format("'{}'", printable(value.get_ref<const std::string&>(), kMaxShown));
  return value.is_structured() ? value.type_name() : printable(value.dump(), kMaxShown);
}

JsonFields::JsonFields(const std::string& path, std::string where, const json& object)
    : path_(path), where_(std::move(where)), object_(object) {
  if (!object_.is_object()) fail("", object_, "an object");
}

const json& JsonFields::take(const char* name) {
  const auto found = object_.find(name);
  if (found == object_.end()) fail_bad_input(fmt::format("{}: {}{} is missing", path_, where_, name));
  taken_.insert(name);
  return *found;
}

std::int64_t JsonFields::integer(const char* name, std::int64_t low, std::int64_t high) {
  const json& value = take(name);
  if (!is_integer_in(value, low, high)) fail(name, value, range_text(low, high));
  return value.get<std::int64_t>();
}

double JsonFields::number(const char* name, double low, double high) {
  const json& value = take(name);
  if (!value.is_number() || value.get<double>() < low || value.get<double>() > high) {
    fail(name, value, fmt::format("a number in [{}, {}]", low, high));
  }
  return value.get<double>();
}

bool JsonFields::flag(const char* name) {
  const json& value = take(name);
  if (!value.is_boolean()) fail(name, value, "true or false");
  return value.get<bool>();
}

std::string JsonFields::text(const char* name) {
  const json& value = take(name);
  if (!value.is_string()) fail(name, value, "a string");
  return value.get<std::string>();
}

const json& JsonFields::array(const char* name) {
  const json& value = take(name);
  if (!value.is_array()) fail(name, value, "a list");
  return value;
}

std::vector<std::int64_t> JsonFields::integers(const char* name, std::int64_t low, std::int64_t high) {
  return integers_of(name, array(name), low, high);
}

std::vector<std::vector<std::int64_t>> JsonFields::integer_lists(const char* name, std::int64_t low,
                                                                 std::int64_t high) {
  std::vector<std::vector<std::int64_t>> lists;
  for (const json& value : array(name)) {
    const std::string field = fmt::format("{}[{}]", name, lists.size());
    if (!value.is_array()) fail(field, value, "a list");
    lists.push_back(integers_of(field, value, low, high));
  }
  return lists;
}

std::vector<std::int64_t> JsonFields::integers_of(const std::string& name, const json& list, std::int64_t low,
                                                  std::int64_t high) const {
  std::vector<std::int64_t> numbers;
  for (const json& value : list) {
    if (!is_integer_in(value, low, high)) {
      fail(fmt::format("{}[{}]", name, numbers.size()), value, range_text(low, high));
    }
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

void JsonFields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (!taken_.contains(name)) {
      fail_bad_input(fmt::format("{}: {}{} is not a field of this version", path_, where_, printable(name, kMaxShown)));
    }
  }
}

void JsonFields::fail(const std::string& field, const json& value, const std::string& limit) const {
  fail_bad_input(fmt::format("{}: {}{} = {} is not {}", path_, where_, field, shown(value), limit));
}

}  // namespace ringmark::kvstore
