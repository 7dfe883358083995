// Profiles of a GPU's steps, and the timers of trainctl bench on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/measure/kernel_timer.h"
#include "engine/runtime/timeline.h"
#include "tests/gpu/gpus.h"

using namespace trainctl;

namespace {

/// Wants steps 2 and 3, counted from 0.
struct TwoSteps : Timeline {
  bool wants(uint32_t step) override { return step == 2 || step == 3; }
  void ran(const TimeSpan& span) override { spans.push_back(span); }
  std::vector<TimeSpan> spans;
};

constexpr int64_t kCount = 1 << 22;

Operand floats(int64_t offset) {
  Operand operand;
  operand.offset = offset;
  operand.shape = operand.global_shape = {kCount};
  operand.global_offset = {0};
  return operand;
}

/// Three kernels of 16 MiB, one after another.
Program three_relus() {
  Program program;
  program.arena_bytes = 1024 + 4 * kCount * 4;
  program.scalars_offset = 0;
  for (int i = 0; i < 3; ++i) {
    Instruction relu;
    relu.opcode = Opcode::kernel;
    relu.name = "relu" + std::to_string(i);
    relu.op = "relu";
    relu.inputs = {floats(1024 + i * kCount * 4)};
    relu.outputs = {floats(1024 + (i + 1) * kCount * 4)};
    program.instructions.push_back(relu);
  }
  return program;
}

}  // namespace

TEST_CASE("every instruction of a wanted step is reported once, in order, at times of the host's clock") {
  if (!have_gpus(1)) return;
  for (const bool graph : {false, true}) {
    CAPTURE(graph);
    const Program program = three_relus();
    const auto memory = SharedMemory::create({64});
    const auto comm = make_shared_memory_communicator(memory, 0, 10);
    TwoSteps timeline;
    ExecutorOptions options;
    options.timeline = &timeline;
    const auto executor = make_cuda_executor(program, *comm, options, {.graph = graph});
    const HostBlock inputs = executor->allocate_inputs(input_layout(program).bytes);
    std::map<uint32_t, std::pair<int64_t, int64_t>> host;
    for (uint32_t step = 0; step < 6; ++step) {
      host[step].first = monotonic_ns();
      executor->start_step(inputs.get(), {.step = step});
      executor->finish_step();
      host[step].second = monotonic_ns();
    }
    REQUIRE(timeline.spans.size() == 6);
    constexpr int64_t kSlack = 200'000;  // ns: accuracy of the mapping between clocks
    std::sort(timeline.spans.begin(), timeline.spans.end(), [](const TimeSpan& a, const TimeSpan& b) {
      return std::pair(a.step, a.instruction) < std::pair(b.step, b.instruction);
    });
    for (size_t i = 0; i < timeline.spans.size(); ++i) {
      const TimeSpan& span = timeline.spans[i];
      CHECK(span.step == 2 + i / 3);
      CHECK(span.instruction == static_cast<int32_t>(i % 3));
      CHECK(span.end_ns > span.begin_ns);
      CHECK(span.begin_ns >= host[span.step].first - kSlack);
      CHECK(span.end_ns <= host[span.step].second + kSlack);
      if (span.instruction > 0) CHECK(timeline.spans[i - 1].end_ns <= span.begin_ns);
    }
  }
}

TEST_CASE("a GPU kernel takes longer on more memory, and not much longer than memory bandwidth allows") {
  if (!have_gpus(1)) return;
  const auto timer = make_cuda_kernel_timer();
  CHECK_FALSE(timer->device().empty());
  CHECK(timer->cache_bytes() > 0);
  REQUIRE(timer->has_kernel("relu"));
  CHECK_FALSE(timer->has_kernel("no_such_kernel"));
  const StepScalars scalars;
  const auto median = [&](int64_t count) {
    std::vector<KernelCall> calls(4);
    for (KernelCall& call : calls) {
      call.scalars = &scalars;
      const auto arg = [&] { return TensorArg{timer->allocate(count * 4), DType::f32, {count}, {count}, {0}}; };
      call.in = {arg()};
      call.out = {arg()};
    }
    std::vector<double> seconds = timer->time("relu", calls, {.samples = 9});
    std::sort(seconds.begin(), seconds.end());
    timer->clear();
    return seconds[4];
  };
  const double small = median(1 << 10), large = median(1 << 26);
  CHECK(small > 0);
  CHECK(large > small);
  const double rate = timer->memory_rate(int64_t{1} << 28, {.samples = 5});
  CHECK(2.0 * (1 << 26) * 4 / large < 1.5 * rate);
}
