#include "cluster/doctor/versions.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <mpi.h>
#ifdef RINGMARK_HAS_UCX
#include <ucp/api/ucp.h>
#endif

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace ringmark::cluster {
namespace {

// FNV-1a, 64 bits.
std::string hash_of_binary() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> buffer(1 << 20);
  std::uint64_t hash = 0xcbf29ce484222325;
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    for (std::streamsize i = 0; i < file.gcount(); ++i) {
      hash = (hash ^ static_cast<unsigned char>(buffer[static_cast<std::size_t>(i)])) * 0x100000001b3;
    }
  }
  return fmt::format("{:016x}", hash);
}

// "Open MPI v4.1.4, package: ..., ident: ...": up to the first comma.
std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find_first_of(",\n"));
}

// The one that a job would load; empty where there is none.
std::string nccl_version() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  auto* get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  const bool known = get != nullptr && get(&version) == 0;
  dlclose(library);
  return known ? fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100) : "";
}

}  // namespace

std::map<std::string, std::string> find_versions(const std::string& driver) {
  std::map<std::string, std::string> versions{
      {"ringmark", RINGMARK_VERSION}, {"binary", hash_of_binary()}, {"MPI", mpi_version()}};
  const auto add = [&](const char* product, const std::string& version) {
    if (!version.empty()) versions.emplace(product, version);
  };
  if (const char* pmix = std::getenv("PMIX_VERSION")) add("PMIx", pmix);
#ifdef RINGMARK_HAS_UCX
  add("UCX", ucp_get_version_string());
#endif
  add("NCCL", nccl_version());
  add("driver", driver);
  return versions;
}

}  // namespace ringmark::cluster
