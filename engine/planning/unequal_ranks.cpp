// Divides the micro-batches of a data-parallel job among ranks of different speeds.
#include "engine/planning/unequal_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/machine_file.h"

namespace trainctl {
namespace {

/// Cost of one more micro-batch per rank, relative to the step: smaller products, one more pass over the gradients.
constexpr double kCostOfMicroBatch = 0.01;
constexpr int64_t kMostPerRank = 32;
/// Speeds within this factor count as equal.
constexpr double kSame = 1.01;

/// Divides `count` micro-batches among ranks of these speeds such that the slowest rank takes the least time.
Ints in_proportion(int64_t count, const std::vector<double>& speeds) {
  Ints of_ranks(speeds.size(), 1);
  for (auto left = count - static_cast<int64_t>(speeds.size()); left > 0; --left) {
    size_t best = 0;
    for (size_t rank = 1; rank < speeds.size(); ++rank)
      if (static_cast<double>(of_ranks[rank] + 1) / speeds[rank] <
          static_cast<double>(of_ranks[best] + 1) / speeds[best])
        best = rank;
    ++of_ranks[best];
  }
  return of_ranks;
}

}  // namespace

std::optional<DividedMicroBatches> divide_micro_batches(int64_t batch, int64_t most_rows,
                                                        const std::vector<double>& speeds) {
  const auto ranks = static_cast<int64_t>(speeds.size());
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::optional<DividedMicroBatches> best;
  double best_cost = 0;
  for (int64_t count = ranks; count <= std::min(batch, kMostPerRank * ranks); ++count) {
    if (batch % count != 0 || batch / count > most_rows) continue;
    DividedMicroBatches found{in_proportion(count, speeds)};
    double slowest = 0;
    for (size_t rank = 0; rank < speeds.size(); ++rank)
      slowest = std::max(slowest, static_cast<double>(found.of_ranks[rank]) / speeds[rank]);
    found.share = slowest * all / static_cast<double>(count);
    const double cost = found.share + kCostOfMicroBatch * static_cast<double>(count) / static_cast<double>(ranks);
    if (best && cost >= best_cost) continue;
    best = std::move(found);
    best_cost = cost;
  }
  return best;
}

int64_t even_micro_batches(int64_t batch, int64_t most_rows, int64_t ranks) {
  for (int64_t count = 1; count * ranks <= batch; ++count)
    if (batch % (count * ranks) == 0 && batch / (count * ranks) <= most_rows) return count;
  return 1;
}

std::string divide_by_speed(JobSpec& spec) {
  ParallelSpec& parallel = spec.parallel;
  const std::vector<double> speeds = rank_speeds(spec);
  if (speeds.empty() || parallel.mode != ParallelMode::data_parallel || parallel.stages > 1 ||
      !parallel.rank_micro_batches.empty())
    return "";
  const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
  if (*most / *least < kSame) return "";
  const int64_t ranks = spec.launch.ranks, batch = spec.dataset.batch;
  const auto too_coarse = [&](const std::string& why, const std::string& hint) {
    return SpecError(spec.position("launch.machine"), "launch.machine",
                     fmt::format("the machines have speeds from {:.2g} to {:.2g}, so ranks run different numbers of "
                                 "micro-batches, but {}",
                                 *least, *most, why),
                     hint);
  };
  const int64_t even = ranks * parallel.micro_batches;
  const std::optional<DividedMicroBatches> divided =
      divide_micro_batches(batch, std::max<int64_t>(1, batch / even), speeds);
  if (!divided)
    throw too_coarse(
        fmt::format("a batch of {} cannot be divided among {} ranks", batch, ranks),
        fmt::format("use a batch with more divisors, such as {}", 4 * ranks * ((batch + 4 * ranks - 1) / (4 * ranks))));
  if (divided->share * *least * static_cast<double>(ranks) >= std::accumulate(speeds.begin(), speeds.end(), 0.0))
    return "";
  parallel.rank_micro_batches = divided->of_ranks;
  const int64_t count = std::accumulate(divided->of_ranks.begin(), divided->of_ranks.end(), int64_t{0});
  parallel.micro_batches = static_cast<int>(count);
  std::vector<std::string> texts;
  for (const double speed : speeds) texts.push_back(fmt::format("{:.2g}", speed));
  return fmt::format(
      "launch.machine: the ranks have the speeds {} relative to the fastest machine, so of {} micro-batches of {} rows "
      "they run {}; the slowest takes {:.0f} % longer than in a perfect division",
      join(texts), count, batch / count, format_list(divided->of_ranks), 100 * (divided->share - 1));
}

std::string exchange_once_per_step(JobSpec& spec) {
  int& level = spec.parallel.optimizer_shard.level;
  if (spec.parallel.rank_micro_batches.empty() || level <= 1) return "";
  return fmt::format(
      "parallel.rank_micro_batches: ranks with different numbers of micro-batches exchange gradients and weights once "
      "per step, so optimizer_shard level {} shards only the optimizer state, as level 1",
      std::exchange(level, 1));
}

void require_independent_micro_batches(const PlannedJob& job) {
  if (job.spec.parallel.rank_micro_batches.empty()) return;
  for (const Tensor& tensor : job.graph.tensors) {
    if (tensor.kind != TensorKind::state || tensor.is_cache) continue;
    const std::string field = job.spec.launch.machines.size() > 1 ? "launch.machine" : "parallel.rank_micro_batches";
    throw SpecError(
        job.spec.position(field), field,
        tensor.name +
            " changes with every micro-batch, so ranks that run different ones would have "
            "different values",
        "give all ranks equal shares, or use layers that keep nothing between micro-batches, such as layer_norm");
  }
}

}  // namespace trainctl
