#include "comm/request_wire.h"

#include <cstring>

#include "comm/region_table.h"

namespace ringmark::comm {

std::vector<std::byte> encode_request(std::uint64_t sequence, std::span<const ReadRun> runs, std::size_t slices) {
  const RequestHead head{.sequence = sequence,
                         .runs = static_cast<std::uint32_t>(runs.size()),
                         .slices = static_cast<std::uint32_t>(slices)};
  std::vector<std::byte> message(sizeof(head) + runs.size() * sizeof(RequestedRun));
  std::memcpy(message.data(), &head, sizeof(head));
  std::byte* out = message.data() + sizeof(head);
  for (const ReadRun& run : runs) {
    const RequestedRun requested{
        .offset = run.offset, .length = static_cast<std::int64_t>(run.destination.size()), .region = run.region};
    std::memcpy(out, &requested, sizeof(requested));
    out += sizeof(requested);
  }
  return message;
}

std::optional<RequestHead> decode_head(ConstBytes message) {
  RequestHead head;
  if (message.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, message.data(), sizeof(head));
  return head;
}

std::optional<std::vector<Slice<ConstBytes>>> decode_request(ConstBytes message, std::span<const ConstBytes> regions) {
  const auto head = decode_head(message);
  if (!head || message.size() - sizeof(RequestHead) != head->runs * sizeof(RequestedRun)) return std::nullopt;
  std::vector<ConstBytes> runs(head->runs);
  std::uint64_t room = std::uint64_t{head->slices} * kReplyRule.longest;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    RequestedRun requested;
    std::memcpy(&requested, message.data() + sizeof(RequestHead) + i * sizeof(requested), sizeof(requested));
    if (requested.region < 0 || requested.region >= static_cast<std::int64_t>(regions.size())) return std::nullopt;
    const ConstBytes region = regions[static_cast<std::size_t>(requested.region)];
    if (!lies_inside(requested.offset, requested.length, static_cast<std::int64_t>(region.size()))) return std::nullopt;
    const auto length = static_cast<std::uint64_t>(requested.length);
    if (length > room) return std::nullopt;
    room -= length;
    runs[i] = region.subspan(static_cast<std::size_t>(requested.offset), length);
  }
  auto slices = cut_into_slices<ConstBytes>(runs, kReplyRule);
  if (slices.size() != head->slices) return std::nullopt;
  return slices;
}

}  // namespace ringmark::comm
