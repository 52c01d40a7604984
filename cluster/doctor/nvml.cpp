#include "cluster/doctor/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace ringmark::cluster {
namespace {

// From NVIDIA's documentation of NVML: stable since its version 2 of the functions.
using Device = struct OpaqueDevice*;
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;
};
constexpr int kSuccess = 0;
constexpr unsigned kMostLinks = 18;

class Library {
 public:
  Library() : handle_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      trouble = "no libnvidia-ml.so.1: no NVIDIA driver on this host, or none inside this container";
      return;
    }
    const bool complete = find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
                          find(count, "nvmlDeviceGetCount_v2") && find(device, "nvmlDeviceGetHandleByIndex_v2") &&
                          find(uuid, "nvmlDeviceGetUUID") && find(name, "nvmlDeviceGetName") &&
                          find(memory, "nvmlDeviceGetMemoryInfo") && find(driver, "nvmlSystemGetDriverVersion");
    find(link, "nvmlDeviceGetNvLinkState");
    find(error_text, "nvmlErrorString");
    if (!complete) {
      trouble = "libnvidia-ml.so.1 lacks functions of NVML";
      return;
    }
    const int code = init();
    started_ = code == kSuccess;
    if (!started_) trouble = fmt::format("NVML: {}", text_of(code));
  }
  ~Library() {
    if (started_) shutdown();
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::string text_of(int code) const {
    return error_text == nullptr ? fmt::format("error {}", code) : error_text(code);
  }

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*link)(Device, unsigned, unsigned*) = nullptr;  // null: an old one
  const char* (*error_text)(int) = nullptr;
  std::string trouble;  // empty: it works

 private:
  template <class Function>
  bool find(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(dlsym(handle_, symbol));
    return function != nullptr;
  }

  void* handle_ = nullptr;
  bool started_ = false;
};

int active_links(const Library& nvml, Device device) {
  int active = 0;
  for (unsigned link = 0; nvml.link != nullptr && link < kMostLinks; ++link) {
    unsigned on = 0;
    active += nvml.link(device, link, &on) == kSuccess && on != 0 ? 1 : 0;
  }
  return active;
}

// The first code that is no success.
int describe(const Library& nvml, unsigned index, ManagedGpu& gpu) {
  Device device = nullptr;
  std::array<char, 96> uuid{};
  std::array<char, 96> name{};
  Memory memory;
  if (const int code = nvml.device(index, &device); code != kSuccess) return code;
  if (const int code = nvml.uuid(device, uuid.data(), uuid.size()); code != kSuccess) return code;
  if (nvml.name(device, name.data(), name.size()) == kSuccess) gpu.name = name.data();
  if (nvml.memory(device, &memory) == kSuccess) gpu.memory = static_cast<std::int64_t>(memory.total);
  gpu.uuid = uuid.data();
  gpu.nvlinks = active_links(nvml, device);
  return kSuccess;
}

}  // namespace

ManagedGpus managed_gpus() {
  const Library nvml;
  ManagedGpus found;
  found.trouble = nvml.trouble;
  if (!found.trouble.empty()) return found;
  std::array<char, 96> driver{};
  if (nvml.driver(driver.data(), driver.size()) == kSuccess) found.driver = driver.data();
  unsigned count = 0;
  int code = nvml.count(&count);
  for (unsigned index = 0; code == kSuccess && index < count; ++index) {
    code = describe(nvml, index, found.gpus.emplace_back());
  }
  if (code != kSuccess) {
    found.gpus.clear();
    found.trouble = fmt::format("NVML: {}", nvml.text_of(code));
  }
  return found;
}

}  // namespace ringmark::cluster
