// Runs steps as CUDA graphs: one graph of a single step, and one of several consecutive steps, which the device runs
// without the host.
#include "engine/runtime/cuda/step_graphs.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace trainctl::cuda {

int steps_of_graph(int in_flight, const Program& program) {
  // Limits a graph of several steps: a program of many instructions keeps the device busy with one step per graph.
  constexpr size_t kMostInstructions = 512;
  const size_t fitting = kMostInstructions / std::max<size_t>(program.instructions.size(), 1);
  return std::clamp(in_flight / 2, 1, std::clamp(static_cast<int>(fitting), 1, kMostStepsAtOnce));
}

StepGraphs::StepGraphs(StepProgram& step, const Watchdog& watchdog, Options options)
    : step_(step), watchdog_(watchdog), options_(std::move(options)) {}

void StepGraphs::capture() {
  if (one_) return;
  one_ = capture({}, 1);
  if (one_ && options_.at_once > 1) many_ = capture({}, options_.at_once);
  phase_ended(options_.start_up, "graph");
}

void StepGraphs::enqueue(int steps) {
  if (steps == options_.at_once && launch(many_)) return;
  for (int i = 0; i < steps; ++i)
    if (!launch(one_)) step_.issue({});
}

void StepGraphs::enqueue_timed(const StepProgram::Issue& how) {
  if (!timed_) timed_ = capture(how, 1);
  if (!launch(timed_)) step_.issue(how);
}

/// Launches a graph. Returns false if the graph was not captured.
bool StepGraphs::launch(const GraphExec& graph) const {
  if (graph) cuda_check(cudaGraphLaunch(graph.get(), step_.compute()), "cudaGraphLaunch");
  return static_cast<bool>(graph);
}

/// Returns null if the step cannot be captured; it is then enqueued again each time.
GraphExec StepGraphs::capture(const StepProgram::Issue& how, int steps) {
  options_.settle();  // capturing may wait for the device while holding a lock that ranks of one process share
  phase_ended_together(options_.start_up, "step");
  try {
    StepProgram::Issue capturing = how;
    capturing.capturing = true;
    return capture_graph(step_.compute(), [&] {
      capturing.steps = steps;
      for (capturing.at = 0; capturing.at < steps; ++capturing.at) step_.issue(capturing);
    });
  } catch (const EnvError& error) {
    cudaGetLastError();
    watchdog_.throw_if_given_up();
    if (steps > 1) {
      options_.at_once = 1;
      return {};
    }
    options_.in_use = false;
    options_.notice("the step cannot be captured as a CUDA graph, so its kernels are launched one by one: " +
                    std::string(error.what()));
    return {};
  }
}

}  // namespace trainctl::cuda
