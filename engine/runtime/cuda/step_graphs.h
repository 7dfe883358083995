// Steps as CUDA graphs: one step, and several that follow from one another, which the device goes through without its
// host. Ranks capture the same graphs at the same step, whatever holds up their hosts: NCCL may make all hosts meet for
// each collective that is captured.
#pragma once

#include <functional>
#include <string>

#include "engine/base/start_up.h"
#include "engine/compile/program.h"
#include "engine/runtime/cuda/capture.h"
#include "engine/runtime/cuda/step_program.h"
#include "engine/runtime/cuda/watchdog.h"

namespace trainctl::cuda {

/// Steps for one graph, where `in_flight` may be. What has many instructions keeps a device busy by itself.
int steps_of_graph(int in_flight, const Program& program);

class StepGraphs {
 public:
  struct Options {
    bool in_use = true;
    int at_once = 1;               ///< the same on all ranks
    std::function<void()> settle;  ///< waits until all that was enqueued is over; throws where the device failed
    std::function<void(const std::string& line)> notice;
    StartUpClock* start_up = nullptr;  ///< outlives us
  };
  /// `step` and `watchdog` must outlive it.
  StepGraphs(StepProgram& step, const Watchdog& watchdog, Options options);

  /// False: a step cannot be captured, or is not to be, and is issued each time.
  bool in_use() const { return options_.in_use; }
  /// Steps of the largest graph.
  int at_once() const { return options_.at_once; }

  /// The first time makes the graphs. Throws CommError where a rank is gone meanwhile.
  void capture();
  /// So many steps, at most at_once().
  void enqueue(int steps);
  /// One that takes its times, in a graph of its own. The same `how` each time.
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
