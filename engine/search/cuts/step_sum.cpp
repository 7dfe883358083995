// The time and the memory of a step from the loads of its layers.
#include "engine/search/cuts/step_sum.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/machine/host_bus.h"
#include "engine/ops/optimizer_def.h"
#include "engine/plan/plan.h"

namespace trainctl {
namespace {

/// Divides the layers into stages of consecutive layers such that the slowest stage takes the least time, to within a
/// millionth. This is the result of balanced_partition, except that equally fast stages may end at other layers. It
/// takes less time, because it bisects the time of the slowest stage and fills the stages for each candidate.
std::vector<int> even_stages(const std::vector<double>& seconds, int stages) {
  const size_t n = seconds.size(), most = static_cast<size_t>(stages);
  std::vector<double> before = {0};  // by layer: the seconds of all layers before it
  before.reserve(n + 1);
  for (double own : seconds) before.push_back(before.back() + own);
  std::vector<size_t> ends(most);
  const auto fill = [&](double limit) {
    size_t begin = 0;
    for (size_t part = 0; part < most; ++part) {
      const size_t last = n - (most - 1 - part);  // leaves at least one layer for each later part
      const auto from = before.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto beyond =
          std::upper_bound(from + 1, before.begin() + static_cast<std::ptrdiff_t>(last) + 1, *from + limit);
      const size_t end = static_cast<size_t>(beyond - before.begin()) - 1;
      if (end == begin) return false;
      ends[part] = begin = end;
    }
    return begin == n;
  };
  double all = 0, longest = 0;
  for (double own : seconds) {
    all += own;
    longest = std::max(longest, own);
  }
  double low = std::max(longest, all / stages), high = all * (1 + 1e-9);
  for (int round = 0; round < 40 && high - low > 1e-6 * high; ++round) {
    const double middle = (low + high) / 2;
    fill(middle) ? high = middle : low = middle;
  }
  check(fill(high), "all layers must fit into stages as long as their total time");
  std::vector<int> part_of;
  for (size_t part = 0; part < most; ++part) part_of.resize(ends[part], static_cast<int>(part));
  return part_of;
}

int in_flight(const PlanChoice& choice, int stage) {
  const bool early = choice.schedule == Schedule::one_f_one_b || choice.schedule == Schedule::zero_bubble;
  return std::min(choice.micro_batches, early ? choice.stages - stage % choice.stages : choice.micro_batches);
}

}  // namespace

double waits(Schedule schedule, int stages, int chunks) {
  const double others = stages - 1;
  if (schedule == Schedule::interleaved_1f1b) return others / chunks;
  return schedule == Schedule::zero_bubble ? others / 3 : others;
}

WeightBytes weight_bytes(const JobSpec& job, const Machine& machine) {
  WeightBytes bytes;
  if (is_half(compute_type(job.precision))) bytes = {.weight = 2, .master = 4};
  if (job.gradient_precision == Precision::bf16) bytes.gradient = 2;
  bytes.least_sharded = static_cast<double>(job.parallel.optimizer_shard.min_kb) * 1024;
  const OptimizerDef& optimizer = *find_optimizer(job.optimizer.type);
  const double states = 4.0 * static_cast<double>(optimizer.states(job.optimizer.settings_of(-1)).size());
  const bool on_host = job.parallel.offload.optimizer == StatePlace::host && machine.kind == DeviceKind::cuda;
  (on_host ? bytes.on_host : bytes.optimizer) += states;
  if (job.optimizer.average) bytes.optimizer += 4;
  return bytes;
}

const LayerLoad::Shards& StepSum::shards_of(const LayerLoad& load, const PlanChoice& choice) {
  return choice.optimizer_shard.within_host ? load.of_host : load.of_all;
}

int StepSum::level_of(const LayerLoad& load, const PlanChoice& choice) const {
  const bool is_sharded = shards_of(load, choice).ways > 1 && 4 * load.elements >= bytes_.least_sharded;
  return is_sharded ? choice.optimizer_shard.level : 0;
}

void StepSum::recompute(const std::vector<bool>& layers) {
  recomputed_ = layers;
  placed_.clear();
  stages_.clear();
}

/// Returns the seconds of each layer, and the stages that balance them.
const StepSum::Placed& StepSum::placed(const PlanChoice& choice) {
  const int stages = choice.stages * choice.chunks;
  const int gathers = choice.optimizer_shard.level < 3 ? 0 : choice.optimizer_shard.within_host ? 2 : 1;
  const auto [known, fresh] = placed_.try_emplace({stages, gathers});
  Placed& placed = known->second;
  if (!fresh) return placed;
  placed.seconds.reserve(loads_.size());
  for (size_t l = 0; l < loads_.size(); ++l) {
    const LayerLoad& load = loads_[l];
    double own = load.seconds + (recomputed_[l] ? load.forward_seconds : 0);
    if (gathers > 0 && level_of(load, choice) == 3) own += 2 * shards_of(load, choice).gather_seconds;
    placed.seconds.push_back(own);
  }
  // The loss is in the stage of the last layer, so it is not divided among stages itself.
  const std::vector<double> layers(placed.seconds.begin(), placed.seconds.end() - 1);
  placed.part_of.assign(layers.size(), 0);
  if (stages > 1 && static_cast<int>(layers.size()) >= stages) placed.part_of = even_stages(layers, stages);
  placed.part_of.push_back(stages - 1);
  return placed;
}

/// Returns the amounts that each layer adds to its stage, given the level of optimizer_shard.
const StepSum::Shares& StepSum::shares(const PlanChoice& choice) {
  const ShardChoice& shard = choice.optimizer_shard;
  const auto [known, fresh] = shares_.try_emplace({shard.level, shard.within_host});
  Shares& shares = known->second;
  if (!fresh) return shares;
  for (std::vector<double>* each :
       {&shares.update_bytes, &shares.host_bytes, &shares.memory, &shares.gradients, &shares.summed, &shares.gathered})
    each->reserve(loads_.size());
  const double kept = bytes_.master > 0 ? bytes_.master : bytes_.weight;
  for (const LayerLoad& load : loads_) {
    const int level = level_of(load, choice);
    const double ways = shards_of(load, choice).ways;
    const auto shared = [&](int from, double of) { return level >= from ? of / ways : of; };
    shares.update_bytes.push_back(load.elements * shared(1, bytes_.gradient + 2 * (bytes_.optimizer + kept)));
    shares.host_bytes.push_back(load.elements * shared(1, bytes_.on_host));
    // At level 3 in bf16 ranks keep only the f32 weights.
    const double read = level == 3 && bytes_.master > 0 ? 0 : shared(3, bytes_.weight);
    shares.memory.push_back(load.elements * (read + shared(1, bytes_.master + bytes_.optimizer)) +
                            load.frozen_elements * bytes_.weight + load.packed_bytes);
    shares.gradients.push_back(load.elements * shared(2, bytes_.gradient));
    shares.summed.push_back(level >= 1 ? load.elements * bytes_.gradient / (level == 1 ? ways : 1) : 0);
    shares.gathered.push_back(level >= 1 ? load.elements * bytes_.weight / (level == 3 ? 1 : ways) : 0);
  }
  return shares;
}

/// The sums of the loads over the layers of each stage; known ones are returned from memory.
const std::vector<StepSum::Stage>& StepSum::stages(const PlanChoice& choice) {
  const ShardChoice& shard = choice.optimizer_shard;
  const auto [known, fresh] = stages_.try_emplace({choice.stages, choice.chunks, shard.level, shard.within_host});
  std::vector<Stage>& stages = known->second;
  if (!fresh) return stages;
  const auto& [seconds, part_of] = placed(choice);
  const Shares& shares = this->shares(choice);
  stages.resize(static_cast<size_t>(choice.stages));
  for (size_t l = 0; l < loads_.size(); ++l) {
    Stage& stage = stages[static_cast<size_t>(part_of[l] % choice.stages)];
    stage.seconds += seconds[l];
    stage.update_bytes += shares.update_bytes[l];
    stage.host_bytes += shares.host_bytes[l];
    stage.memory += shares.memory[l];
    stage.gradients += shares.gradients[l];
    stage.summed += shares.summed[l];
    stage.gathered += shares.gathered[l];
    if (!recomputed_[l]) (loads_[l].is_offloaded ? stage.to_host : stage.kept) += loads_[l].kept_bytes;
    stage.largest = std::max(stage.largest, loads_[l].made_bytes);
  }
  return stages;
}

/// Estimates a step: the slowest stage determines the time, and the stage that needs the most memory the memory.
Expected StepSum::of(const PlanChoice& choice) {
  const std::vector<Stage>& stages = this->stages(choice);
  const auto bucket = static_cast<double>(choice.bucket_bytes > 0 ? choice.bucket_bytes : kBucketBytes);
  Expected result;
  double slowest = 0, update = 0;
  for (int s = 0; s < choice.stages; ++s) {
    const Stage& stage = stages[static_cast<size_t>(s)];
    // Copies to the host overlap with the forward pass (a third of the stage's seconds), and copies back with the
    // backward pass (two thirds).
    const double copies = (Bytes{stage.to_host} / host_bus_rate(machine_)).value;
    slowest = std::max(slowest, stage.seconds + std::max(copies - stage.seconds / 3, 0.0) +
                                    std::max(copies - stage.seconds * 2 / 3, 0.0));
    update = std::max({update, (Bytes{stage.update_bytes} / machine_.memory_rate).value,
                       (Bytes{stage.host_bytes} / host_bus_rate(machine_)).value});
    const double buckets = std::min(bucket, stage.summed) + std::min(bucket, stage.gathered);
    // The gradients of a single micro-batch take the memory that its activations leave.
    const double kept = stage.kept * in_flight(choice, s) + 2 * stage.largest;
    const double changing = choice.micro_batches == 1 ? std::max(kept, stage.gradients) : kept + stage.gradients;
    result.memory = std::max(result.memory, stage.memory + buckets + changing);
  }
  result.seconds = slowest * (choice.micro_batches + waits(choice.schedule, choice.stages, choice.chunks)) + update;
  return result;
}

}  // namespace trainctl
