#include "engine/search/find_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/text.h"
#include "engine/graph/contraction.h"
#include "engine/ops/op_def.h"
#include "engine/plan/plan.h"
#include "engine/search/loads.h"

namespace trainctl {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int kFoldedBlocks = 3;      ///< the first, one for those between, the last
constexpr int kMostMicroBatches = 64;
/// The search's own sum may be off by this much before a plan that it likes less is not tried.
constexpr double kDoubt = 1.5;
/// The same of the memory that it expects.
constexpr double kMemoryDoubt = 1.3;
/// What is a plan of more parts must be faster by more than this.
constexpr double kSimpler = 0.005;

/// How much is tried in full: layers times micro-batches, which is about what a compiled plan takes to make and simulate.
int64_t most_work(Effort effort) { return effort == Effort::low ? 1'000 : effort == Effort::normal ? 10'000 : 400'000; }
constexpr size_t kMostTrials = 16;

/// The graph of the folded network for a number of micro-batches, and what follows from it.
struct Network {
  Graph graph;
  std::vector<LayerFacts> facts;
  Units units;
  std::optional<CutNetwork> cuts;

  Network(const Folded& folded, const DataShapes& data) : graph(build_graph(folded.job, data)), facts(sharding_facts(graph)), units(find_units(graph)) {
    cuts.emplace(graph, facts, units, folded);
  }
};

/// A way to recompute: patterns of layers.
struct Recompute {
  std::vector<RecomputeRule> rules;
};

std::vector<int> divisors(int64_t number, int64_t most) {
  std::vector<int> all;
  for (int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) all.push_back(static_cast<int>(d));
  return all;
}

class Search {
 public:
  Search(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory, const TryPlan& try_plan)
      : job_(job),
        data_(data),
        cost_(cost),
        memory_(memory),
        try_plan_(try_plan),
        effort_(job.parallel.search.effort),
        folded_(fold(job, kFoldedBlocks)),
        repeats_(find_repeats(job.network)),
        bytes_(weight_bytes(job)) {}

  FoundPlan run() {
    found_.memory = memory_;
    weigh_all(0);
    if (memory_ > 0 && !any_fits()) weigh_short_of_memory();
    if (considered_.empty()) throw_none_legal();
    sort_considered();
    try_best();
    improve();
    finish();
    return std::move(found_);
  }

 private:
  /// A choice with the search's own sum of it; `cuts` and `layers` are shared with others.
  struct Considered {
    PlanChoice choice;
    std::shared_ptr<const FoundCuts> cuts;
    Expected expected;
    size_t recompute = 0;
    bool data_parallel = false;
    Mesh mesh;
    std::shared_ptr<const Network> network;
  };

  bool is_given(const std::string& field) const { return job_.positions.contains("parallel." + field); }

  // ---- what may be chosen -------------------------------------------------------------------------

  std::vector<int> stage_counts() const {
    if (is_given("stages") || is_given("stage_config")) return {job_.parallel.stages};
    std::vector<int> counts;
    for (int s : divisors(job_.launch.ranks, static_cast<int64_t>(job_.network.size()))) counts.push_back(s);
    return counts;
  }

  /// A free choice only where the network's numbers do not depend on it.
  std::vector<int> micro_batch_counts() {
    if (is_given("micro_batches")) return {job_.parallel.micro_batches};
    const Network& whole = network_of(job_.parallel.micro_batches);
    for (const Layer& layer : whole.graph.layers) {
      if (layer.mixed_rows == 0) continue;
      found_.notes.push_back(fmt::format("parallel.micro_batches stays {}: {} computes over the rows of a micro-batch, so the "
                                         "numbers would depend on it",
                                         job_.parallel.micro_batches, layer.name));
      return {job_.parallel.micro_batches};
    }
    std::vector<int> counts;
    for (int m : divisors(job_.dataset.batch, kMostMicroBatches))
      if (counts.empty() || m >= 2 * counts.back()) counts.push_back(m);
    return counts;
  }

  std::vector<std::pair<Schedule, int>> schedules(int stages, int micro_batches) const {
    const int chunks = job_.parallel.chunks;
    if (stages == 1) return {{is_given("schedule") && chunks == 1 ? job_.parallel.schedule : Schedule::one_f_one_b, 1}};
    if (is_given("schedule") || is_given("chunks") || is_given("stage_config")) return {{job_.parallel.schedule, chunks}};
    std::vector<std::pair<Schedule, int>> all = {{Schedule::one_f_one_b, 1}, {Schedule::zero_bubble, 1}};
    for (int c : {2, 4})
      if (micro_batches % stages == 0 && static_cast<int>(job_.network.size()) >= 2 * c * stages) all.emplace_back(Schedule::interleaved_1f1b, c);
    return all;
  }

  std::vector<int> levels(int ranks_of_stage) const {
    if (job_.positions.contains("parallel.optimizer_shard") || is_given("optimizer_shard.level")) return {job_.parallel.optimizer_shard.level};
    return ranks_of_stage == 1 ? std::vector<int>{0} : std::vector<int>{0, 1, 2, 3};
  }

  /// As given; else nothing, what is cheap to make again, attention alone, blocks but for what leaves them.
  std::vector<Recompute> recompute_ways() {
    if (is_given("recompute")) return {{job_.parallel.recompute}};
    const Network& whole = network_of(job_.parallel.micro_batches);
    std::set<std::string> products;
    for (const Node& node : whole.graph.nodes)
      if (node.phase == Phase::forward && get_op(node.op).kernel.is_product)
        products.insert(whole.cuts->patterns[static_cast<size_t>(node.layer)]);
    Recompute cheap, attention, blocks;
    const auto add = [](Recompute& to, const std::string& pattern) {
      for (const RecomputeRule& rule : to.rules)
        if (rule.pattern == pattern) return;
      to.rules.push_back({pattern, ""});
    };
    for (size_t l = 0; l < job_.network.size(); ++l) {
      const Place& place = repeats_.places[l];
      if (place.run < 0) continue;
      const bool leaves = l + 1 == job_.network.size() || repeats_.places[l + 1].block != place.block || repeats_.places[l + 1].run != place.run;
      if (leaves) continue;
      add(blocks, place.pattern);
      if (job_.network[l].type == "attention") add(attention, place.pattern);
      if (!products.contains(place.pattern)) add(cheap, place.pattern);
    }
    std::vector<Recompute> ways = {{}};
    for (Recompute* way : {&cheap, &attention, &blocks})
      if (!way->rules.empty()) ways.push_back(std::move(*way));
    return ways;
  }

  // ---- weighing -----------------------------------------------------------------------------------

  const Network& network_of(int micro_batches) { return *shared_network(micro_batches); }

  std::shared_ptr<const Network> shared_network(int micro_batches) {
    std::shared_ptr<const Network>& known = networks_[micro_batches];
    if (!known) {
      Folded& folded = foldeds_.try_emplace(micro_batches, folded_).first->second;
      folded.job.parallel.micro_batches = micro_batches;
      known = std::make_shared<Network>(folded, data_);
    }
    return known;
  }

  /// Whether each rule names the layer, for every layer of the whole network and the loss.
  std::vector<bool> recomputed(const Recompute& way, const std::vector<LayerLoad>& loads) const {
    std::vector<bool> result;
    for (const LayerLoad& load : loads) result.push_back(rule_for(way.rules, load.name, false) != nullptr);
    return result;
  }

  void weigh_all(double seconds_per_byte) {
    if (ways_.empty()) ways_ = recompute_ways();
    const std::vector<int> micro_batches = micro_batch_counts();
    double best = kInfinite;
    for (int stages : stage_counts()) {
      if (job_.launch.ranks % stages != 0) continue;
      for (int m : micro_batches) {
        const double least = least_seconds(whole_graph(), cost_.machine(), job_.precision, job_.launch.ranks, stages, m);
        found_.bound = found_.bound == 0 ? least : std::min(found_.bound, least);
        if (stages == 1 && m > 1 && memory_ == 0) continue;  // only for memory
        if (least > best * kDoubt) continue;
        best = std::min(best, weigh(stages, m, seconds_per_byte));
      }
    }
  }

  /// The expected time of the best that fits.
  double weigh(int stages, int micro_batches, double seconds_per_byte) {
    const std::shared_ptr<const Network> network = shared_network(micro_batches);
    const Mesh mesh(job_.launch.ranks / stages);
    JobSpec job = folded_.job;
    job.parallel.stages = stages;
    job.parallel.micro_batches = micro_batches;
    job.parallel.mode = ParallelMode::semi_auto_parallel;
    std::vector<Diagnostic> errors;
    const auto strategies = read_strategies(network->graph, network->facts, job, mesh, errors);
    if (!errors.empty()) {
      illegal_ = std::move(errors);
      return kInfinite;
    }
    double best = kInfinite;
    const double per_weight = bytes_.weight + bytes_.master + bytes_.gradient + bytes_.optimizer;
    std::vector<std::shared_ptr<const FoundCuts>> all_cuts;
    const bool free = std::none_of(strategies.begin(), strategies.end(), [](const auto& given) { return given.has_value(); });
    if (free && mesh.size() > 1 && seconds_per_byte == 0)
      all_cuts.push_back(std::make_shared<FoundCuts>(data_parallel_cuts(*network->cuts, mesh, cost_, micro_batches)));
    const size_t named = all_cuts.size();
    for (const AxisSplit& split : axis_splits(mesh, effort_))
      all_cuts.push_back(std::make_shared<FoundCuts>(
          find_cuts(*network->cuts, mesh, split, effort_, cost_, micro_batches, strategies, seconds_per_byte, per_weight)));
    for (size_t c = 0; c < all_cuts.size(); ++c) {
      const std::shared_ptr<const FoundCuts>& cuts = all_cuts[c];
      found_.exact = found_.exact && cuts->exact;
      const std::vector<LayerLoad> loads = loads_of(*network->cuts, job_, repeats_, mesh, *cuts, cost_);
      for (size_t way = 0; way < ways_.size(); ++way) {
        const std::vector<bool> again = recomputed(ways_[way], loads);
        for (const auto& [schedule, chunks] : schedules(stages, micro_batches)) {
          for (int level : levels(mesh.size())) {
            Considered one{.choice = {.stages = stages,
                                      .chunks = chunks,
                                      .schedule = schedule,
                                      .micro_batches = micro_batches,
                                      .optimizer_shard_level = level,
                                      .stage_config = job_.parallel.stage_config,
                                      .strategies = {},
                                      .recompute = ways_[way].rules},
                           .cuts = cuts,
                           .expected = {},
                           .recompute = way,
                           .data_parallel = c < named,
                           .mesh = mesh,
                           .network = network};
            one.expected = expected_step(loads, again, one.choice, bytes_, cost_.machine());
            ++found_.weighed;
            if (memory_ <= 0 || one.expected.memory <= static_cast<double>(memory_)) best = std::min(best, one.expected.seconds);
            considered_.push_back(std::move(one));
          }
        }
      }
    }
    return best;
  }

  bool any_fits() const {
    return std::any_of(considered_.begin(), considered_.end(),
                       [&](const Considered& one) { return one.expected.memory <= static_cast<double>(memory_); });
  }

  /// Cuts that hold less: memory gets a price, which rises until something fits.
  void weigh_short_of_memory() {
    double fastest = kInfinite, least = kInfinite;
    for (const Considered& one : considered_) {
      fastest = std::min(fastest, one.expected.seconds);
      least = std::min(least, one.expected.memory);
    }
    for (double part : {0.1, 1.0, 10.0}) {
      weigh_all(part * fastest / least);
      if (any_fits()) break;
    }
  }

  void sort_considered() {
    std::stable_sort(considered_.begin(), considered_.end(), [&](const Considered& a, const Considered& b) { return rank(a) < rank(b); });
  }

  /// What may fit comes first, by its time; then the rest, by its memory.
  std::pair<int, double> rank(const Considered& one) const {
    if (memory_ <= 0 || memory_scale_ * one.expected.memory <= kMemoryDoubt * static_cast<double>(memory_)) return {0, one.expected.seconds};
    return {1, one.expected.memory};
  }

  /// Of the whole batch: the bound counts all products.
  const Graph& whole_graph() {
    if (!whole_) {
      JobSpec whole = job_;
      whole.parallel.micro_batches = 1;
      whole_ = std::make_unique<Graph>(build_graph(whole, data_));
    }
    return *whole_;
  }

  // ---- trying -------------------------------------------------------------------------------------

  std::vector<StrategySpec> strategies_of(const Considered& one) const {
    std::vector<StrategySpec> strategies;
    std::map<std::string, const CutAlternative*> others;
    for (const CutAlternative& other : one.cuts->next_best) others[other.pattern] = &other;
    std::set<std::string> told;
    const Graph& graph = one.network->graph;
    for (size_t l = 0; l < graph.layers.size(); ++l) {
      const std::string& pattern = one.network->cuts->patterns[l];
      const StrategySpec* given = rule_for(job_.parallel.strategies, graph.layers[l].name, one.network->facts[l].is_loss);
      if (given != nullptr || !told.insert(pattern).second) continue;
      std::string reason;
      if (const auto other = others.find(pattern); other != others.end()) {
        std::vector<std::string> cuts;
        for (const Ints& of_input : other->second->cuts) cuts.push_back(format_list(of_input));
        reason = fmt::format("saves {} a micro-batch against [{}]", format_seconds(other->second->costs), join(cuts));
      }
      strategies.push_back({pattern, cuts_of(one.mesh, graph.layers[l], one.cuts->of_layer[l]), "", reason});
    }
    for (const StrategySpec& given : job_.parallel.strategies) strategies.push_back(given);
    return strategies;
  }

  static std::string format_seconds(double seconds) {
    return seconds >= 1e-3 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.1f} us", 1e6 * seconds);
  }

  /// Nothing new if it has been tried.
  TriedPlan* try_one(const Considered& one) {
    PlanChoice choice = one.choice;
    if (one.mesh.size() > 1) choice.strategies = strategies_of(one);
    const JobSpec job = with_choice(job_, choice);
    std::string key = to_string(choice);
    for (const StrategySpec& strategy : choice.strategies) {
      key += strategy.pattern;
      for (const Ints& cuts : strategy.cuts) key += format_list(cuts);
    }
    if (!keys_.insert(key).second) return nullptr;
    TriedPlan tried{name_of(one), std::move(choice), one.expected.seconds, one.expected.memory, try_plan_(job)};
    found_.tried.push_back(std::move(tried));
    sources_.push_back(one);
    return &found_.tried.back();
  }

  /// How a stage's ranks are used, and the rest.
  static std::string name_of(const Considered& one) {
    std::string ranks = one.data_parallel ? fmt::format("data parallel on {} ranks", one.mesh.size()) : "1 rank";
    if (one.mesh.size() > 1 && !one.data_parallel) {
      std::vector<std::string> runs;
      for (const Axes& run : one.cuts->split) runs.push_back(std::to_string(one.mesh.ways(run)));
      ranks = join(runs, " x ") + " ranks";
    }
    return fmt::format("{}; {}", ranks, to_string(one.choice));
  }

  /// True if there is work left for it; until something fits there is more.
  bool spend(const Considered& one) {
    const int64_t work = static_cast<int64_t>(job_.network.size()) * one.choice.micro_batches;
    if ((best_tried() || trials_ >= 3 * kMostTrials) && (work_ + work > most_work(effort_) || trials_ >= kMostTrials)) return false;
    ++trials_;
    work_ += work;
    return true;
  }

  /// Data parallel, and the lowest optimizer_shard level at which it fits, always compete; then what the search's own sum
  /// likes best.
  void try_best() {
    for (const Considered& one : considered_) {
      if (!one.data_parallel || one.choice.stages > 1 || one.recompute != 0) continue;
      const TriedPlan* tried = try_one(one);
      if (tried == nullptr || !tried->trial.fault.empty()) continue;
      memory_scale_ = static_cast<double>(tried->trial.memory) / one.expected.memory;
      if (tried->trial.fits(memory_)) break;
    }
    sort_considered();
    double best = kInfinite;
    for (const Considered& one : considered_) {
      if (one.expected.seconds > best * kDoubt || !spend(one)) continue;
      const TriedPlan* tried = try_one(one);
      if (tried != nullptr && tried->trial.fits(memory_)) best = std::min(best, tried->expected);
    }
  }

  /// Single changes of the best, as long as one is better.
  void improve() {
    for (;;) {
      const std::optional<size_t> from = best_tried();
      if (!from) return;
      const Considered base = sources_[*from];
      const double before = found_.tried[*from].trial.seconds;
      for (const Considered& one : considered_) {
        if (differences(one, base) != 1 || one.expected.seconds > base.expected.seconds * kDoubt) continue;
        if (spend(one)) try_one(one);
      }
      const std::optional<size_t> now = best_tried();
      if (!now || found_.tried[*now].trial.seconds >= before) return;
    }
  }

  static int differences(const Considered& a, const Considered& b) {
    const PlanChoice &x = a.choice, &y = b.choice;
    return (x.stages != y.stages) + (x.chunks != y.chunks || x.schedule != y.schedule) + (x.micro_batches != y.micro_batches) +
           (x.optimizer_shard_level != y.optimizer_shard_level) + (a.recompute != b.recompute) +
           (x.stages == y.stages && (a.cuts->split != b.cuts->split || a.data_parallel != b.data_parallel));
  }

  std::optional<size_t> best_tried() const {
    std::optional<size_t> best;
    for (size_t i = 0; i < found_.tried.size(); ++i) {
      if (!found_.tried[i].trial.fits(memory_)) continue;
      if (!best || found_.tried[i].trial.seconds < found_.tried[*best].trial.seconds) best = i;
    }
    return best;
  }

  /// Parts that a reader has to understand.
  static int complexity(const PlanChoice& choice) {
    int parts = (choice.stages > 1) + (choice.chunks > 1) + (choice.micro_batches > 1) + choice.optimizer_shard_level +
                !choice.recompute.empty() + (choice.schedule == Schedule::zero_bubble);
    std::set<std::vector<Ints>> distinct;
    for (const StrategySpec& strategy : choice.strategies) distinct.insert(strategy.cuts);
    return parts + static_cast<int>(distinct.size() > 6);
  }

  void finish() {
    const std::optional<size_t> best = best_tried();
    if (!best) throw_none_fits();
    const double fastest = found_.tried[*best].trial.seconds;
    std::vector<size_t> order(found_.tried.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto place = [&](size_t i) {
      const TriedPlan& plan = found_.tried[i];
      const bool fits = plan.trial.fits(memory_);
      const bool as_good = fits && plan.trial.seconds <= fastest * (1 + kSimpler);
      return std::tuple(!fits, !as_good, as_good ? complexity(plan.choice) : 0,
                        fits ? plan.trial.seconds : plan.trial.fault.empty() ? static_cast<double>(plan.trial.memory) : kInfinite);
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
    std::vector<TriedPlan> sorted;
    for (size_t i : order) sorted.push_back(std::move(found_.tried[i]));
    found_.next_best = sources_[order[0]].cuts->next_best;
    found_.tried = std::move(sorted);
  }

  [[noreturn]] void throw_none_legal() const {
    if (!illegal_.empty()) throw SpecError(illegal_);
    throw SpecError(job_.position("parallel"), "parallel", "no plan of these ranks is legal with what the job fixes",
                    "leave stages or micro_batches to the search");
  }

  [[noreturn]] void throw_none_fits() const {
    int64_t least = std::numeric_limits<int64_t>::max();
    std::string how, fault;
    for (const TriedPlan& plan : found_.tried) {
      if (!plan.trial.fault.empty()) {
        fault = plan.trial.fault;
      } else if (plan.trial.memory < least) {
        least = plan.trial.memory;
        how = plan.name;
      }
    }
    if (how.empty())
      throw SpecError(job_.position("parallel"), "parallel", "none of the plans that were tried is legal: " + fault,
                      "leave more of parallel to the search");
    throw SpecError(job_.position("parallel.max_memory"), "parallel.max_memory",
                    fmt::format("no plan fits: parallel.max_memory is {}, and the plan that needs least takes {} a rank, {} more ({})",
                                format_bytes(memory_), format_bytes(least), format_bytes(least - memory_), how),
                    fmt::format("allow {}, use more ranks, or a smaller dataset.batch", format_bytes(least)));
  }

  const JobSpec& job_;
  const DataShapes& data_;
  const CostModel& cost_;
  const int64_t memory_;
  const TryPlan& try_plan_;
  const Effort effort_;
  const Folded folded_;
  const Repeats repeats_;
  const WeightBytes bytes_;
  std::map<int, Folded> foldeds_;  // by micro-batches
  std::map<int, std::shared_ptr<const Network>> networks_;
  std::unique_ptr<Graph> whole_;
  std::vector<Recompute> ways_;
  std::vector<Considered> considered_;
  std::vector<Considered> sources_;  // of found_.tried
  std::set<std::string> keys_;
  size_t trials_ = 0;
  double memory_scale_ = 1;  ///< what a plan takes over what was expected of it, as far as is known
  int64_t work_ = 0;
  std::vector<Diagnostic> illegal_;
  FoundPlan found_;
};

}  // namespace

double least_seconds(const Graph& graph, const Machine& machine, Precision precision, int ranks, int stages, int micro_batches) {
  double flops = 0;
  for (const Node& node : graph.nodes) {
    const OpDef& op = get_op(node.op);
    if (!op.kernel.is_product || op.kernel.cost == nullptr) continue;
    std::vector<TensorInfo> inputs, outputs;
    for (TensorId t : node.inputs) inputs.push_back({graph.tensors[static_cast<size_t>(t)].shape, graph.tensors[static_cast<size_t>(t)].dtype});
    for (TensorId t : node.outputs) outputs.push_back({graph.tensors[static_cast<size_t>(t)].shape, graph.tensors[static_cast<size_t>(t)].dtype});
    flops += static_cast<double>(op.kernel.cost(inputs, outputs, node.attrs).flops);
  }
  FlopsPerSecond rate = machine.product_rate(precision == Precision::bf16 ? DType::bf16 : DType::f32, precision == Precision::tf32);
  for (const auto& [key, model] : machine.kernels)
    for (const KernelSample& sample : model.samples())
      if (sample.seconds.value > 0) rate = std::max(rate, FlopsPerSecond{static_cast<double>(sample.cost.flops) / sample.seconds.value});
  const double seconds = (Flops{flops} / rate).value / (ranks / stages);  // of all stages, one after the other
  // A stage waits until its first micro-batch has passed the stages before it, and its last one still has to pass back
  // through them. Stage s with T_s seconds of work ends after T_s + (T_0 + … + T_(s-1)) / M at the earliest; the best shares
  // make all of these equal.
  const double m = micro_batches;
  return stages == 1 ? seconds : seconds / (m * (1 - std::pow(1 - 1 / m, stages)));
}

FoundPlan find_plan(const JobSpec& job, const DataShapes& data, const CostModel& cost, int64_t memory, const TryPlan& try_plan) {
  return Search(job, data, cost, memory, try_plan).run();
}

}  // namespace trainctl
