// Combines all choices that a job leaves open, and estimates time and memory of each combination.
#include "engine/search/choices/weighed_choices.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "engine/plan/axes/host_axes.h"
#include "engine/plan/axes/sharding_facts.h"

namespace trainctl {
namespace {

constexpr double kNoWeight = std::numeric_limits<double>::infinity();
/// Numbers of stages and micro-batches are left out if their kernels, evenly distributed, take kBoundDoubt times as
/// long as the best plan, or in a large network with long kernels if kernels and starts take kStartsDoubt times as
/// long.
constexpr double kBoundDoubt = 1.1, kStartsDoubt = 1.03;

}  // namespace

int differences(const Considered& a, const Considered& b) {
  return (a.stages != b.stages) + (a.chunks != b.chunks || a.schedule != b.schedule) +
         (a.micro_batches != b.micro_batches) + (a.shard != b.shard) + (a.bucket_bytes != b.bucket_bytes) +
         !recomputes_alike(a, b) + (a.stages == b.stages && a.cuts->name != b.cuts->name);
}

WeighedChoices::WeighedChoices(const JobSpec& job, Networks& networks, const OpenChoices& open, const CostModel& cost,
                               int64_t memory, bool large)
    : job_(job),
      networks_(networks),
      open_(open),
      cost_(cost),
      memory_(memory),
      large_(large),
      ranks_of_host_(ranks_of_host(job, cost.machine())),
      bytes_(weight_bytes(job, cost.machine())),
      cut_choices_(job, networks, cost, bytes_) {}

/// Returns the pipelines in the order of their lower bounds, so that pipelines that can be fast come first.
std::vector<WeighedChoices::Pipeline> WeighedChoices::pipelines() {
  std::vector<Pipeline> all;
  const bool counts_starts = has_long_kernels();
  for (int stages : open_.stage_counts()) {
    if (job_.launch.ranks % stages != 0) continue;
    for (int m : open_.micro_batch_counts()) {
      const std::shared_ptr<const SearchNetwork> network = networks_.of(m);
      double idle = kNoWeight;
      for (const auto& [schedule, chunks] : open_.schedules(stages, m)) {
        const double bound = least_seconds(network->least, job_.launch.ranks, stages, m, schedule);
        bound_ = bound_ == 0 ? bound : std::min(bound_, bound);
        idle = std::min(idle, waits(schedule, stages, chunks));
      }
      const double launches = counts_starts ? network->launch_seconds / stages : 0;
      const double of_micro_batch = network->kernel_seconds / job_.launch.ranks + launches;
      all.push_back({stages, m, of_micro_batch * (m + idle)});
    }
  }
  // With one stage, all numbers of micro-batches have almost the same bound.
  const auto rank = [](const Pipeline& one) { return one.stages == 1 ? 0 : one.least; };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return all;
}

bool WeighedChoices::has_long_kernels() {
  const std::shared_ptr<const SearchNetwork> network = networks_.of(open_.micro_batch_counts().front());
  return large_ && network->launch_seconds < network->kernel_seconds / job_.launch.ranks;
}

void WeighedChoices::weigh(double seconds_per_byte) {
  const double doubt = has_long_kernels() ? kStartsDoubt : kBoundDoubt;
  double best = kNoWeight;
  bool one_stage_fits = false;
  for (const Pipeline& pipeline : pipelines()) {
    if (pipeline.least > best * doubt || (pipeline.stages == 1 && one_stage_fits && !saves_memory_)) continue;
    const double here =
        weigh(pipeline, cut_choices_.of(pipeline.stages, pipeline.micro_batches, seconds_per_byte, illegal_));
    best = std::min(best, here);
    one_stage_fits = one_stage_fits || here < kNoWeight;
  }
}

/// Estimates all choices of a pipeline with these cuts. Returns the estimated time of the best choice that certainly
/// fits.
double WeighedChoices::weigh(const Pipeline& pipeline,
                             const std::vector<std::shared_ptr<const CutChoice>>& ways_to_cut) {
  double best = kNoWeight;
  const auto schedules = open_.schedules(pipeline.stages, pipeline.micro_batches);
  const std::vector<ShardChoice> shards = open_.shards(Mesh(job_.launch.ranks / pipeline.stages));
  const int64_t bucket_bytes = open_.bucket_sizes().front();
  for (const std::shared_ptr<const CutChoice>& cuts : ways_to_cut) {
    exact_ = exact_ && cuts->cuts.exact;
    const std::vector<LayerLoad> loads = this->loads(*cuts);
    if (recomputed_.empty())
      for (const Recompute& way : open_.recompute_ways()) recomputed_.push_back(recomputed(way, *cuts->network, loads));
    StepSum step(loads, bytes_, cost_.machine());
    const size_t from = all_.size();
    for (size_t way = 0; way < open_.recompute_ways().size(); ++way) {
      step.recompute(recomputed_[way]);
      for (const auto& [schedule, chunks] : schedules)
        for (const ShardChoice& shard : shards) {
          Considered one{.stages = pipeline.stages,
                         .chunks = chunks,
                         .micro_batches = pipeline.micro_batches,
                         .shard = shard,
                         .bucket_bytes = bucket_bytes,
                         .schedule = schedule,
                         .recompute = way,
                         .cuts = cuts,
                         .expected = {},
                         .saves_in_vain = false,
                         .some = {}};
          one.expected =
              step.of({one.stages, one.chunks, one.schedule, one.micro_batches, one.shard, bucket_bytes, {}, {}, {}});
          ++weighed_;
          if (fits(one, kMemoryDoubt)) best = std::min(best, one.expected.seconds);
          all_.push_back(std::move(one));
        }
    }
    mark_savers_in_vain(from);
  }
  return best;
}

void WeighedChoices::mark_savers_in_vain(size_t from) {
  for (size_t i = from; i < all_.size(); ++i)
    for (size_t j = from; j < all_.size(); ++j) {
      Considered& one = all_[i];
      const Considered& other = all_[j];
      const bool recomputes_more = other.recompute == 0 && one.recompute != 0,
                 shards_more = other.shard.level < one.shard.level;
      const bool saves = (recomputes_more && (shards_more || other.shard == one.shard)) ||
                         (shards_more && other.recompute == one.recompute);
      if (saves && other.schedule == one.schedule && other.chunks == one.chunks &&
          other.shard.within_host == one.shard.within_host && other.expected.seconds <= one.expected.seconds &&
          fits(other, kMemoryDoubt))
        one.saves_in_vain = true;
    }
}

void WeighedChoices::weigh_short_of_memory(bool to_the_end) {
  double fastest = kNoWeight;
  for (const Considered& one : all_) fastest = std::min(fastest, one.expected.seconds);
  for (double part : {0.1, 1.0, 10.0}) {
    weigh(part * fastest / least_memory());
    if (!to_the_end && any_fits()) break;
  }
}

void WeighedChoices::weigh_many_cuts() {
  const double memory = least_memory();
  for (const Pipeline& pipeline : pipelines())
    weigh(pipeline, cut_choices_.many(pipeline.stages, pipeline.micro_batches, memory));
}

double WeighedChoices::least_memory() const {
  double least = kNoWeight;
  for (const Considered& one : all_) least = std::min(least, one.expected.memory);
  return least;
}

void WeighedChoices::weigh_more_micro_batches() {
  saves_memory_ = true;
  weigh(0);
}

bool WeighedChoices::fits(const Considered& one, double scale) const {
  return memory_ <= 0 || scale * one.expected.memory <= static_cast<double>(memory_);
}

double WeighedChoices::memory_of(const Considered& one) const {
  const std::vector<LayerLoad> loads = this->loads(*one.cuts);
  const Recompute& rules = one.some ? *one.some : open_.recompute_ways()[one.recompute];
  StepSum step(loads, bytes_, cost_.machine());
  step.recompute(recomputed(rules, *one.cuts->network, loads));
  return step.of({one.stages, one.chunks, one.schedule, one.micro_batches, one.shard, one.bucket_bytes, {}, {}, {}})
      .memory;
}

bool WeighedChoices::any_fits() const {
  return std::any_of(all_.begin(), all_.end(), [&](const Considered& one) { return fits(one); });
}

void WeighedChoices::sort(double memory_scale) {
  const auto rank = [&](const Considered& one) {
    return fits(one, memory_scale / kMemoryDoubt) ? std::pair{0, one.expected.seconds}
                                                  : std::pair{1, one.expected.memory};
  };
  std::stable_sort(all_.begin(), all_.end(),
                   [&](const Considered& a, const Considered& b) { return rank(a) < rank(b); });
}

void WeighedChoices::sort_by_memory() {
  std::stable_sort(all_.begin(), all_.end(),
                   [](const Considered& a, const Considered& b) { return a.expected.memory < b.expected.memory; });
}

std::vector<std::pair<int, const Considered*>> WeighedChoices::in_turns() const {
  std::map<std::pair<int, std::string_view>, int> turns;
  std::vector<std::pair<int, const Considered*>> turned;
  for (const Considered& one : all_) turned.emplace_back(turns[{one.stages, one.cuts->name}]++, &one);
  std::stable_sort(turned.begin(), turned.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return turned;
}

/// The layers that the plan will recompute, as recomputed_layers() does.
std::vector<bool> WeighedChoices::recomputed(const Recompute& rules, const SearchNetwork& network,
                                             const std::vector<LayerLoad>& loads) const {
  const std::vector<BlockPlace>& places = networks_.repeats().places;
  std::vector<bool> result;
  for (size_t l = 0; l < loads.size(); ++l) {
    const bool leaves = l < places.size() && network.leaves_block.contains(places[l].pattern);
    result.push_back(!leaves && rule_for(rules, loads[l].name, false) != nullptr);
  }
  return result;
}

std::vector<LayerLoad> WeighedChoices::loads(const CutChoice& cuts) const {
  return loads_of(*cuts.network->cuts, job_, networks_.repeats(), cuts.mesh, cuts.cuts, cost_,
                  axes_within_hosts(cuts.mesh, ranks_of_host_));
}

}  // namespace trainctl
