#include "comm/cuda/device_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "comm/cuda/agree.h"
#include "core/cuda/buffer.h"
#include "core/error.h"

namespace ringmark::comm::cuda {
namespace {

constexpr std::string_view kStage = "probe a transport";
constexpr std::int64_t kSmall = 64;
constexpr std::int64_t kLarge = 64 * 1024;
constexpr std::int64_t kBytes = kSmall + kLarge;

std::byte pattern(int rank, std::int64_t position) {
  return static_cast<std::byte>(position * 131 + position / 251 + rank * 29 + 7);
}

void copy_now(void* to, const void* from, std::int64_t bytes) {
  ringmark::cuda::check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault),
                        "copy the content of a probe");
}

void fill(Bytes region, int rank) {
  std::vector<std::byte> content(region.size());
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = pattern(rank, static_cast<std::int64_t>(i));
  copy_now(region.data(), content.data(), kBytes);
}

// Returns the first wrong byte, if any.
std::string check_content(std::span<const std::byte> memory) {
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const auto position = static_cast<std::int64_t>(i);
    const int rank = static_cast<int>(position / kBytes);
    if (memory[i] == pattern(rank, position % kBytes)) continue;
    return fmt::format("wrong content at byte {} read from rank {}", position % kBytes, rank);
  }
  return {};
}

std::string read_from_all(Communicator& communicator, DeviceTransport& transport) {
  const std::int64_t total = communicator.size() * kBytes;
  const ringmark::cuda::Buffer<std::byte> device(total);
  std::vector<RemoteRead> reads;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    std::byte* to = device.data() + peer * kBytes;
    reads.push_back({peer, 0, 0, Bytes(to, kSmall)});
    reads.push_back({peer, 0, kSmall, Bytes(to + kSmall, kLarge)});
  }
  transport.get(reads)->wait();
  std::vector<std::byte> memory(static_cast<std::size_t>(total));
  copy_now(memory.data(), device.data(), total);
  return check_content(memory);
}

}  // namespace

ProbeResult probe_device_transport(Communicator& communicator, DeviceTransport& transport) {
  fill(transport.expose(kBytes), communicator.rank());
  transport.publish();
  const auto begin = std::chrono::steady_clock::now();
  std::string trouble;
  try {
    trouble = read_from_all(communicator, transport);
  } catch (const Error& error) {
    trouble = error.what();
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const auto troubles = communicator.gather_texts(kStage, trouble);
  const auto failed = std::ranges::find_if(troubles, [](const std::string& text) { return !text.empty(); });
  if (failed != troubles.end()) return {false, fmt::format("rank {}: {}", failed - troubles.begin(), *failed)};
  transport.retire();
  return {true, fmt::format("64 B and 64 KiB from every rank in {:.2f} ms", took.count())};
}

}  // namespace ringmark::comm::cuda
