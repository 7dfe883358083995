// A loader, its workers and a trainer in simulated time: what a setting is worth, and what the tuner makes of it,
// without threads, clocks or files.
//
//   rows of a batch    claimed in order by the worker that is free first
//   batch b            opened once batch b - 1 - ahead is released
//   trainer            takes batch b when it is full, computes, releases it
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

#include "engine/train/data/load_tuner.h"

namespace trainctl {

struct SimulatedPipeline {
  double compute = 1;  ///< seconds per step
  int rows = 8;        ///< rows per batch
  /// Seconds per stage of a row, given its batch and its index in the batch.
  std::function<StageSeconds(int64_t batch, int row)> read;
  int cores = 16;  ///< more workers than these take turns, where `uses_cores`
  bool uses_cores = true;

  /// A row's seconds while `workers` read.
  double seconds(int64_t batch, int row, int workers) const {
    return read(batch, row).sum() * (uses_cores ? std::max(1.0, double(workers) / cores) : 1.0);
  }
};

class SimulatedRun {
 public:
  SimulatedRun(SimulatedPipeline pipeline, LoadSetting setting) : pipeline_(std::move(pipeline)), setting_(setting) {
    free_.assign(static_cast<size_t>(setting.workers), 0.0);
  }

  const LoadSetting& setting() const { return setting_; }
  void set(const LoadSetting& setting) {
    free_.resize(static_cast<size_t>(setting.workers), now_);
    setting_ = setting;
  }
  /// The work changes, e.g. because the files are in the system's cache now.
  void set(SimulatedPipeline pipeline) { pipeline_ = std::move(pipeline); }

  struct Step {
    double seconds = 0, waited = 0, busy = 0;
    StageSeconds stages;
  };
  Step step() {
    while (opened_ <= taken_ + setting_.ahead) open();
    const double start = now_, full = full_.front();
    full_.pop_front();
    ++taken_;
    Step step;
    step.waited = std::max(0.0, full - start);
    const double taken = start + step.waited;
    for (auto row = reading_.begin(); row != reading_.end();) {
      if (row->end > taken) {
        ++row;
        continue;
      }
      step.busy += row->seconds;
      step.stages.add(row->stages);
      row = reading_.erase(row);
    }
    now_ = taken + pipeline_.compute;
    step.seconds = taken - last_taken_;
    last_taken_ = taken;
    return step;
  }
  /// Steps with this setting; seconds of one on average.
  double mean_step(int steps) {
    double sum = 0;
    for (int i = 0; i < steps; ++i) sum += step().seconds;
    return sum / steps;
  }

 private:
  struct Row {
    double end = 0, seconds = 0;
    StageSeconds stages;
  };

  void open() {
    double full = now_;
    for (int row = 0; row < pipeline_.rows; ++row) {
      double& worker = *std::min_element(free_.begin(), free_.end());
      const double seconds = pipeline_.seconds(opened_, row, setting_.workers);
      worker = std::max(worker, now_) + seconds;
      reading_.push_back({worker, seconds, pipeline_.read(opened_, row)});
      full = std::max(full, worker);
    }
    full_.push_back(full);
    ++opened_;
  }

  SimulatedPipeline pipeline_;
  LoadSetting setting_;
  std::vector<double> free_;  ///< per worker: time at which it has read its rows
  std::deque<double> full_;   ///< per opened batch: time at which it is full
  std::vector<Row> reading_;
  int64_t opened_ = 0, taken_ = 0;
  double now_ = 0, last_taken_ = 0;
};

}  // namespace trainctl
