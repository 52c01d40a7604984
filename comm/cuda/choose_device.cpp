#include "comm/cuda/choose_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "comm/cuda/agree.h"
#include "core/cuda/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr std::string_view kStage = "choose a GPU";

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return name.data();
}

Uuid uuid_of(const cudaDeviceProp& properties) {
  Uuid uuid;
  static_assert(sizeof(properties.uuid.bytes) == sizeof(uuid));
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

std::vector<VisibleGpus> gather_views(Communicator& communicator, const VisibleGpus& mine) {
  const auto hosts = communicator.gather_texts(kStage, mine.host);
  const auto troubles = communicator.gather_texts(kStage, mine.trouble);
  const auto gpus = communicator.gather_texts(
      kStage, {reinterpret_cast<const char*>(mine.gpus.data()), mine.gpus.size() * sizeof(Uuid)});
  std::vector<VisibleGpus> views;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    std::vector<Uuid> of_rank(gpus[r].size() / sizeof(Uuid));
    std::copy(gpus[r].begin(), gpus[r].end(), reinterpret_cast<char*>(of_rank.data()));
    views.push_back({hosts[r], std::move(of_rank), troubles[r]});
  }
  return views;
}

// Empty when it worked.
std::string make_current(int device) {
  const cudaError_t status = cudaSetDevice(device);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return fmt::format("cannot use GPU {}: {}", device, cudaGetErrorString(status));
}

}  // namespace

VisibleGpus look_around() {
  VisibleGpus sees{.host = host_name(), .gpus = {}, .trouble = {}};
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int device = 0; status == cudaSuccess && device < count; ++device) {
    cudaDeviceProp properties;
    status = cudaGetDeviceProperties(&properties, device);
    if (status == cudaSuccess) sees.gpus.push_back(uuid_of(properties));
  }
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    sees.gpus.clear();
    sees.trouble = cudaGetErrorString(status);
  }
  return sees;
}

ChosenDevice choose_device(Communicator& communicator, bool share) {
  const VisibleGpus mine = look_around();
  const GpuAssignment assignment = assign_gpus(gather_views(communicator, mine), share);
  if (!assignment.refusal.empty()) fail_environment(assignment.refusal);
  const auto rank = static_cast<std::size_t>(communicator.rank());
  ChosenDevice chosen{.device = assignment.devices[rank], .sharers = assignment.sharers[rank], .why = {}};
  agree(communicator, kStage, make_current(chosen.device));
  cudaDeviceProp properties;
  ringmark::cuda::check(cudaGetDeviceProperties(&properties, chosen.device), "ask for the properties of the GPU");
  chosen.why = fmt::format("GPU {} of {} visible on {}: {}, {}", chosen.device, mine.gpus.size(), mine.host,
                           properties.name, text_of(uuid_of(properties)));
  if (chosen.sharers > 1) chosen.why += fmt::format(", shared by {} ranks", chosen.sharers);
  return chosen;
}

std::vector<Uuid> gather_current_gpus(Communicator& communicator) {
  int device = 0;
  cudaDeviceProp properties;
  ringmark::cuda::check(cudaGetDevice(&device), "ask for the current GPU");
  ringmark::cuda::check(cudaGetDeviceProperties(&properties, device), "ask for the properties of the GPU");
  const Uuid mine = uuid_of(properties);
  std::vector<Uuid> gpus(static_cast<std::size_t>(communicator.size()));
  std::vector<Bytes> all;
  for (Uuid& gpu : gpus) all.push_back(std::as_writable_bytes(std::span(gpu)));
  communicator.all_gather(kStage, std::as_bytes(std::span(mine)), all);
  return gpus;
}

}  // namespace ringmark::comm::cuda
