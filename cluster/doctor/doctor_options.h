// What `ringmark doctor` was asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/options/option_layers.h"
#include "cluster/options/transport_name.h"
#include "kernels/backend.h"

namespace ringmark::cluster {

struct DoctorOptions {
  kernels::Backend backend = kernels::Backend::kCpu;
  TransportName transport = TransportName::kAuto;
  bool gpus = false;  // every rank needs a GPU: with the cuda backend, or asked for
  bool share_gpu = false;
  bool probe_bandwidth = false;
  std::int64_t threads = 0;  // a rank; 0: as many as the process is bound to
  double deadline_seconds = 30;
  bool settings = false;  // print the table and nothing else
  std::string json;       // empty: none
};

// `arguments` stand behind the word doctor. Throws Error(kBadInput) in one line.
DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments, const Environment& environment);

boost::program_options::options_description doctor_descriptions();
std::string doctor_help();

}  // namespace ringmark::cluster
