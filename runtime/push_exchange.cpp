#include "runtime/push_exchange.h"

#include <cstddef>
#include <span>
#include <utility>

#include "kernels/merge_partials.h"

namespace ringmark::runtime {
namespace {

std::vector<std::byte> pack_bits(const std::vector<bool>& bits) {
  std::vector<std::byte> bytes((bits.size() + 7) / 8);
  for (std::size_t n = 0; n < bits.size(); ++n) {
    if (bits[n]) bytes[n / 8] |= std::byte{1} << (n % 8);
  }
  return bytes;
}

std::vector<bool> unpack_bits(std::span<const std::byte> bytes, std::size_t count) {
  std::vector<bool> bits(count);
  for (std::size_t n = 0; n < count; ++n) bits[n] = (bytes[n / 8] & (std::byte{1} << (n % 8))) != std::byte{0};
  return bits;
}

}  // namespace

ReceivedChoices exchange_choices(comm::Communicator& communicator, std::string_view stage, const Choices& mine,
                                 const std::vector<Demands>& on_me) {
  std::vector<std::vector<std::byte>> sent, received;
  for (const std::vector<bool>& bits : mine) sent.push_back(pack_bits(bits));
  for (const Demands& demands : on_me) received.emplace_back((demands.size() + 7) / 8);
  std::vector<comm::Bytes> receive(received.begin(), received.end());
  communicator.all_to_all(stage, std::vector<comm::ConstBytes>(sent.begin(), sent.end()), receive);
  // A rank demands nothing of itself, so that all bytes came from others.
  ReceivedChoices choices;
  for (std::size_t rank = 0; rank < on_me.size(); ++rank) {
    choices.pushed.push_back(unpack_bits(received[rank], on_me[rank].size()));
    choices.bytes += static_cast<std::int64_t>(received[rank].size());
  }
  return choices;
}

PartialExchange::PartialExchange(comm::Communicator& communicator, std::string stage, std::int64_t group,
                                 const std::vector<std::vector<PartialId>>& sends, const PartialRows& from,
                                 const std::vector<std::vector<PartialId>>& receives)
    : stage_(std::move(stage)), group_(group), receives_(receives) {
  const std::int64_t head_dim = from.out.dim(2);
  for (const auto& partials : sends) {
    std::vector<float>& floats = sent_.emplace_back();
    for (const PartialId& partial : partials) {
      const float* out = from.out.at(partial.row, partial.kv_head * group);
      const float* lse = from.lse.at(partial.row, partial.kv_head * group);
      floats.insert(floats.end(), out, out + group * head_dim);
      floats.insert(floats.end(), lse, lse + group);
    }
  }
  const auto partial_floats = static_cast<std::size_t>(group * (head_dim + 1));
  for (const auto& partials : receives) received_.emplace_back(partials.size() * partial_floats);
  std::vector<comm::ConstBytes> send;
  std::vector<comm::Bytes> receive;
  for (const auto& floats : sent_) send.push_back(std::as_bytes(std::span(floats)));
  for (auto& floats : received_) receive.push_back(std::as_writable_bytes(std::span(floats)));
  exchange_ = communicator.start_all_to_all(stage_, send, receive);
}

std::int64_t PartialExchange::merge_into(const PartialRows& into) {
  exchange_->wait({});
  const std::int64_t head_dim = into.out.dim(2);
  std::int64_t bytes = 0;
  for (std::size_t rank = 0; rank < receives_.size(); ++rank) {
    const float* next = received_[rank].data();
    for (const PartialId& partial : receives_[rank]) {
      const std::int64_t head = partial.kv_head * group_;
      kernels::merge_partials({into.out.at(partial.row, head), {1, group_, head_dim}},
                              {into.lse.at(partial.row, head), {1, group_}}, {next, {1, group_, head_dim}},
                              {next + group_ * head_dim, {1, group_}});
      next += group_ * (head_dim + 1);
    }
    bytes += static_cast<std::int64_t>(received_[rank].size() * sizeof(float));
  }
  return bytes;
}

}  // namespace ringmark::runtime
