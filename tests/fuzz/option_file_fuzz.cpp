// The input is the file that --config names. Options of each kind: values, switches, and the two that a file has not.
#include <sys/mman.h>
#include <unistd.h>

#include <boost/program_options/value_semantic.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cluster/options/option_layers.h"
#include "tests/fuzz/refusal.h"

using ringmark::cluster::OptionValues;
using ringmark::fuzz::must_hold;

namespace {

namespace po = boost::program_options;

po::options_description known_options() {
  po::options_description known;
  for (const char* name : {"config", "input", "planted", "topk", "kv-dtype", "scale"}) {
    known.add_options()(name, po::value<std::string>());
  }
  for (const char* name : {"help", "quiet"}) known.add_options()(name, po::bool_switch());
  return known;
}

void check_accepted(const po::options_description& known, const OptionValues& values, const std::string& path) {
  for (const auto& [name, value] : values) {
    must_hold(known.find_nothrow(name, false) != nullptr, "an option is a known one");
    must_hold(value.origin.starts_with(name == "config" ? "--config" : path + ":"), "a value says where it stands");
    must_hold(name != "help", "help is no key of a file");
    if (name == "quiet") must_hold(value.text == "true" || value.text == "false", "a switch is on or off");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const po::options_description kKnown = known_options();
  const int file = memfd_create("config", MFD_CLOEXEC);
  must_hold(file >= 0 && write(file, data, size) == static_cast<ssize_t>(size), "there is memory for the file");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  ringmark::fuzz::accepts([&] {
    check_accepted(kKnown, ringmark::cluster::read_option_layers(kKnown, {"--config", path}, {}), path);
  });
  close(file);
  return 0;
}
