// Reports what each pass of the compiler does to one rank's program.
#include "cli/render/pass_report.h"

#include <fmt/format.h>

#include <chrono>

#include "cli/text/table.h"
#include "engine/base/text.h"
#include "engine/compile/rank_classes.h"

namespace trainctl {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::vector<PassCost> time_passes(const PlannedJob& job, int rank) {
  Compiler c(job.graph, job.plan, job.cost, rank_of_program(job.plan, rank));
  std::vector<PassCost> costs;
  ProgramSize before;
  Clock::time_point start = Clock::now();
  run_passes(passes(), c, [&](const Pass& pass, const Compiler& now) {
    const std::chrono::duration<double> taken = Clock::now() - start;
    costs.push_back({&pass, taken.count(), before, size_so_far(now)});
    before = costs.back().after;
    start = Clock::now();
  });
  return costs;
}

std::string render_passes(const std::vector<PassCost>& costs) {
  Table table({"pass", ">ms", ">instructions", ">after", ">bytes", ">after", "description"});
  double seconds = 0;
  for (const PassCost& cost : costs) {
    seconds += cost.seconds;
    table.add({std::string(cost.pass->name), fmt::format("{:.3f}", cost.seconds * 1e3),
               with_commas(static_cast<int64_t>(cost.before.instructions)),
               with_commas(static_cast<int64_t>(cost.after.instructions)), with_commas(cost.before.bytes),
               with_commas(cost.after.bytes), std::string(cost.pass->doc)});
  }
  return table.str(0) +
         fmt::format(
             "\n{} passes, {:.3f} ms. Bytes: before place_buffers, the sum of all buffers; from then on, the size of "
             "the arena.\n",
             costs.size(), seconds * 1e3);
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const Pass& pass : passes()) names.emplace_back(pass.name);
  return names;
}

}  // namespace trainctl
