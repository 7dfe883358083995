// Compares dataset.autotune with a grid of numbers of workers and of batches ahead that are set by hand:
// bench_autotune [STEPS], by default 200. It runs pipelines with known bottlenecks in real time. Each stage sleeps for
// its time, as if there were as many cores as workers, so that the choice is measured and not this machine. Prints the
// grid and the table of docs/data.md.
#include <fmt/format.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "engine/train/data/loader.h"

using namespace trainctl;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 8;  ///< rows per batch; a worker claims several, so samples are large

struct Pipeline {
  const char* name;
  StageSeconds milliseconds;  ///< average time per sample
  double compute;             ///< milliseconds per step
};

const std::vector<Pipeline>& pipelines() {
  static const std::vector<Pipeline> all = {{"decode-heavy", {{0.2, 8, 0.6, 0.2}}, 8},
                                            {"slow source", {{8, 0.2, 0.2, 0.2}}, 8},
                                            {"transform-heavy", {{0.1, 0.8, 5, 0.1}}, 8},
                                            {"balanced", {{1, 1, 1, 1}}, 8}};
  return all;
}

/// Sample s is 64 KiB of f32 with the value s, so that each sample is claimed alone. It takes 0.6 to 1.4 times the time
/// of the pipeline.
class Slow final : public Dataset {
 public:
  explicit Slow(const Pipeline& pipeline, std::atomic<double>& factor) : pipeline_(pipeline), factor_(factor) {
    fields_ = as_loaded(data_and_label({1 << 14}, {}));
  }
  int64_t size() const override { return 1 << 20; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    const double share = (0.6 + 0.8 * SampleRng(1, 0, sample).uniform()) * factor_;
    for (size_t stage = 0; stage < kReadStages; ++stage) {
      const StageTimer timer(state.seconds, static_cast<ReadStage>(stage));
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pipeline_.milliseconds.of[stage] * share));
    }
    if (to[0] != nullptr) *static_cast<float*>(to[0]) = static_cast<float>(sample);
    if (to[1] != nullptr) *static_cast<float*>(to[1]) = static_cast<float>(sample);
  }

 private:
  Pipeline pipeline_;
  std::atomic<double>& factor_;
  std::vector<SampleField> fields_;
};

Program program_of() {
  Program program;
  Instruction load;
  load.opcode = Opcode::load;
  load.op = "label";
  load.micro_batch = 0;
  Operand operand;
  operand.global_shape = operand.shape = {kRows, 1};
  operand.global_offset = {0, 0};
  load.outputs = {operand};
  Instruction data = load;
  data.op = "data";
  data.outputs[0].global_shape = data.outputs[0].shape = {kRows, 1 << 14};
  program.instructions = {data, load};
  return program;
}

struct Outcome {
  double first = 0, last = 0;  ///< milliseconds of a step, of the first 16 and the last 40
  LoadSetting settled, after;  ///< after: the load has fallen to a tenth
  std::vector<float> order;    ///< the first sample of each batch
  std::vector<std::string> log;
};

Outcome run(const Pipeline& pipeline, int workers, int ahead, int64_t steps, int64_t steps_after) {
  DatasetSpec spec;
  spec.batch = kRows;
  spec.workers = workers;
  spec.prefetch = ahead;
  spec.autotune = workers == 0;
  static const Program program = program_of();
  Outcome outcome;
  std::atomic<double> factor = 1;
  LoaderOptions options;
  options.num_steps = steps + steps_after + 32;
  options.most_workers = 16;
  options.on_change = [&](int64_t step, const LoadTuner::Change& change) {
    outcome.log.push_back(fmt::format("    step {:3}: {}: {}", step, to_string(change.to), change.reason));
  };
  Loader loader(std::make_unique<Slow>(pipeline, factor), spec, program, 1, options);
  const InputLayout layout = input_layout(program);
  std::vector<double> at = {0};
  const auto start = Clock::now();
  const auto step = [&] {
    outcome.order.push_back(*reinterpret_cast<const float*>(loader.next_step() + layout.offsets[1]));
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pipeline.compute));
    loader.release_step();
    at.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  };
  for (int64_t i = 0; i < steps; ++i) step();
  constexpr size_t kStart = 16, kPart = 40;  // the tuner decides first after 16 steps
  outcome.first = (at[kStart] - at[0]) / kStart;
  outcome.last = (at.back() - at[at.size() - 1 - kPart]) / kPart;
  outcome.settled = loader.setting();
  factor = 0.1;
  for (int64_t i = 0; i < steps_after; ++i) step();
  outcome.after = loader.setting();
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 200;
  std::vector<std::string> table;
  bool is_same = true;
  for (const Pipeline& pipeline : pipelines()) {
    fmt::print(
        "{}: read {}, decode {}, transform {}, copy {} ms per sample, {} samples per batch, a step computes for {} "
        "ms\n",
        pipeline.name, pipeline.milliseconds.of[0], pipeline.milliseconds.of[1], pipeline.milliseconds.of[2],
        pipeline.milliseconds.of[3], kRows, pipeline.compute);
    fmt::print("  by hand, ms per step{:>12}", "ahead 1");
    for (const int ahead : {2, 4, 8}) fmt::print("{:>10}", ahead);
    double best = 1e30;
    LoadSetting best_at;
    std::vector<float> order;
    for (const int workers : {1, 2, 4, 8, 12, 16}) {
      fmt::print("\n  {:2} workers        ", workers);
      for (const int ahead : {1, 2, 4, 8}) {
        const Outcome by_hand = run(pipeline, workers, ahead, 60, 0);
        if (by_hand.last < best) best = by_hand.last, best_at = {workers, ahead};
        if (order.empty()) order = by_hand.order;
        is_same = is_same && std::equal(order.begin(), order.end(), by_hand.order.begin());
        fmt::print("{:10.1f}", by_hand.last);
        std::fflush(stdout);
      }
    }
    const Outcome tuned = run(pipeline, 0, 0, steps, 200);
    is_same = is_same && std::equal(order.begin(), order.end(), tuned.order.begin());
    fmt::print("\n  autotune:\n");
    for (const std::string& line : tuned.log) fmt::print("{}\n", line);
    fmt::print("\n");
    table.push_back(fmt::format("| {} | {:.1f} | {:.1f} | {} | {:.1f} ({}) | {:.0f} % | {} |", pipeline.name,
                                tuned.first, tuned.last, to_string(tuned.settled), best, to_string(best_at),
                                100 * best / tuned.last, to_string(tuned.after)));
  }
  fmt::print("| pipeline | start | step {} | autotune has | best by hand | of the best | a tenth of the load |\n",
             steps);
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const std::string& row : table) fmt::print("{}\n", row);
  fmt::print("ms per step; the order of samples was {} in all runs\n", is_same ? "the same" : "NOT the same");
  return is_same ? 0 : 1;
}
