// Messages between the stages of a pipeline: when a GPU starts to await them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/order/kernel_seconds.h"
#include "tests/compile/jobs.h"

using namespace trainctl;

namespace {

CostModel cost_of_gpus() {
  const Machine* machine = find_machine("h100x8");
  REQUIRE(machine != nullptr);
  return CostModel(std::make_shared<const Machine>(*machine), Precision::bf16);
}

Job staged(const std::string& name, int stages, const std::string& schedule, int micro_batches) {
  return job(name, {"parallel.mode=semi_auto_parallel", fmt::format("parallel.stages={}", stages),
                    fmt::format("launch.ranks={}", stages), "parallel.schedule=" + schedule,
                    fmt::format("parallel.chunks={}", schedule == "interleaved_1f1b" ? 2 : 1),
                    fmt::format("parallel.micro_batches={}", micro_batches)});
}

}  // namespace

TEST_CASE("between stages of GPUs a recv starts no longer before its use than its message needs") {
  const CostModel cost = cost_of_gpus();
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}) {
    CAPTURE(schedule);
    const Job j = staged("transformer", 2, schedule, 4);
    int late = 0;
    for (const Program& p : compile_all(j.graph, j.plan, cost)) {
      for (const RecvStart& start : starts_of_recvs(p)) {
        const Instruction& recv = p.instructions[static_cast<size_t>(start.recv)];
        const std::array<int, 2> ranks = {p.rank, recv.peer};
        const Bytes bytes{static_cast<double>(recv.bytes())};
        const Seconds needed = 2 * send_time(cost.machine(), bytes, spread_of(cost.machine(), ranks));
        std::vector<Seconds> beside;  // the kernels during which it may wait
        for (int i = start.awaited + 1; i < start.recv; ++i) {
          const Instruction& now = p.instructions[static_cast<size_t>(i)];
          if (now.opcode == Opcode::kernel) beside.push_back(kernel_seconds(cost.machine(), now));
        }
        const Seconds all_but_first =
            beside.empty() ? Seconds{} : std::accumulate(beside.begin() + 1, beside.end(), Seconds{});
        CHECK(all_but_first.value < needed.value * 1.001);  // rounding of sums
        if (start.awaited >= 0) ++late;
      }
    }
    CHECK(late > 0);
  }
}

TEST_CASE("pipelines whose recvs are late cannot block, whatever the schedule, also past stages and with few kernels") {
  const CostModel cost = cost_of_gpus();
  for (const char* name : {"transformer", "resnet", "mlp"})
    for (const int stages : {2, 3})
      for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}) {
        CAPTURE(name);
        CAPTURE(schedule);
        const Job j = staged(name, stages, schedule, 6);
        CHECK_NOTHROW(compile_all(j.graph, j.plan, cost));  // proves them
      }
}
