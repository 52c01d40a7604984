// Where long stages say how far they are. Rank 0 shows it; the others may pass a sink that does nothing.
#pragma once

#include <cstdint>
#include <string_view>

namespace ringmark::runtime {

class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  virtual void begin(std::string_view stage, std::int64_t total) = 0;
  virtual void advance(std::int64_t done) = 0;
  virtual void end() = 0;
};

class SilentProgress final : public ProgressSink {
 public:
  void begin(std::string_view, std::int64_t) override {}
  void advance(std::int64_t) override {}
  void end() override {}
};

}  // namespace ringmark::runtime
