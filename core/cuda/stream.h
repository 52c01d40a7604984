// Streams and events that end with their owner.
#pragma once

#include <utility>

#include "core/cuda/error.h"

namespace ringmark::cuda {

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "wait for the GPU"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "create an event"); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  operator cudaEvent_t() const { return event_; }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "record an event"); }
  // Work enqueued on `stream` after this waits for what was recorded.
  void hold(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "wait for an event"); }
  void wait() const { check(cudaEventSynchronize(event_), "wait for an event"); }
  // Milliseconds from an earlier event; both have been reached.
  float since(const Event& earlier) const {
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "time between events");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace ringmark::cuda
