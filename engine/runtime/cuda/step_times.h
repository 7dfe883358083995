// Times of the instructions of a step that a Timeline wants: device events, mapped to the host's clock.
#pragma once

#include <vector>

#include "engine/runtime/cuda/step_program.h"

namespace trainctl::cuda {

class StepTimes {
 public:
  StepTimes(const Program& program, Timeline* timeline) : program_(program), timeline_(timeline) {}

  bool wants(uint32_t step) { return timeline_ != nullptr && timeline_->wants(step); }

  /// Call before the step is enqueued. The device is idle, so an event recorded now has the host clock's time.
  void begin(uint32_t step, const StepProgram& launches, cudaStream_t idle) {
    launches_ = &launches;
    make_events();
    cuda_check(cudaEventRecord(origin_.get(), idle), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(origin_.get()), "cudaEventSynchronize");
    origin_ns_ = monotonic_ns();
    step_ = step;
    pending_ = true;
  }
  std::vector<TimedEvents>& events() { return events_; }

  /// Reads the events of the last step begun, once the device has finished it.
  void collect() {
    if (!pending_) return;
    pending_ = false;
    for (size_t i = 0; i < events_.size(); ++i) {
      TimeSpan span;
      span.step = step_;
      span.instruction = static_cast<int32_t>(i);
      span.launched = launches_->launched_by(i);
      span.begin_ns = time_of(events_[i].begin);
      span.ready_ns = span.begin_ns;
      span.end_ns = time_of(events_[i].end);
      spans_.push_back(span);
    }
  }

  /// Reports the collected times, after reading those of `step` if they are pending: it is finished.
  void finish(uint32_t step) {
    if (timeline_ == nullptr) return;
    if (pending_ && step == step_) {
      if (!events_.empty()) cuda_check(cudaEventSynchronize(events_.back().end.get()), "cudaEventSynchronize");
      collect();
    }
    for (const TimeSpan& span : spans_) timeline_->ran(span);
    spans_.clear();
  }

 private:
  void make_events() {
    if (origin_) return;
    origin_ = make_timed_event();
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      events_.push_back({make_timed_event(), make_timed_event()});
    }
  }

  int64_t time_of(const Event& event) const {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, origin_.get(), event.get()), "cudaEventElapsedTime");
    return origin_ns_ + static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  }

  const Program& program_;
  Timeline* timeline_;
  const StepProgram* launches_ = nullptr;
  std::vector<TimedEvents> events_;
  Event origin_;
  int64_t origin_ns_ = 0;
  uint32_t step_ = 0;
  bool pending_ = false;
  std::vector<TimeSpan> spans_;
};

}  // namespace trainctl::cuda
