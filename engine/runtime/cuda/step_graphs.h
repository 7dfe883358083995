// Runs steps as CUDA graphs: one graph of a single step, and one of several consecutive steps, which the device runs
// without the host. All ranks capture the same graphs at the same step, however slow a host is: NCCL may synchronize
// all hosts for each collective that is captured.
#pragma once

#include <functional>
#include <string>

#include "engine/base/start_up.h"
#include "engine/compile/program.h"
#include "engine/runtime/cuda/capture.h"
#include "engine/runtime/cuda/step_program.h"
#include "engine/runtime/cuda/watchdog.h"

namespace trainctl::cuda {

/// Number of steps in one graph if `in_flight` steps may be started. A program of many instructions keeps a device busy
/// with one step per graph.
int steps_of_graph(int in_flight, const Program& program);

class StepGraphs {
 public:
  struct Options {
    bool in_use = true;
    int at_once = 1;               ///< the same on all ranks
    std::function<void()> settle;  ///< waits until all enqueued work is done; throws if the device failed
    std::function<void(const std::string& line)> notice;
    StartUpClock* start_up = nullptr;  ///< may be null; must outlive this object
  };
  /// `step` and `watchdog` must outlive this object.
  StepGraphs(StepProgram& step, const Watchdog& watchdog, Options options);

  /// False if a step cannot or must not be captured: it is issued again each time.
  bool in_use() const { return options_.in_use; }
  /// Steps in the largest graph.
  int at_once() const { return options_.at_once; }

  /// The first call builds the graphs. Throws CommError if a rank is lost meanwhile.
  void capture();
  /// Enqueues at most at_once() steps.
  void enqueue(int steps);
  /// One step that records its times, in its own graph. Pass the same `how` each time.
  void enqueue_timed(const StepProgram::Issue& how);

 private:
  GraphExec capture(const StepProgram::Issue& how, int steps);
  bool launch(const GraphExec& graph) const;

  StepProgram& step_;
  const Watchdog& watchdog_;
  Options options_;
  GraphExec one_, many_, timed_;
};

}  // namespace trainctl::cuda
