// Tests of auto_parallel: the search is exact by its own cost sum, deterministic, honest about bounds, and gives
// ordinary jobs.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/estimate/simulate.h"
#include "engine/plan/traffic/traffic.h"
#include "engine/planning/compile_job.h"
#include "engine/search/choices/open_choices.h"
#include "engine/search/choices/weighed_choices.h"
#include "engine/search/cuts/cut_search.h"
#include "engine/search/cuts/loads.h"
#include "engine/search/cuts/unit_memory.h"
#include "engine/search/find_plan.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/search/drawn_jobs.h"

using namespace trainctl;

namespace {

struct Weighed {
  JobSpec spec;
  Folded folded;
  Graph graph;
  std::vector<LayerFacts> facts;
  Units units;

  explicit Weighed(const std::string& text) : spec(parse_job(text, "job.yaml")), folded(fold(spec, 3)) {
    graph = build_graph(folded.job, data_and_label(spec.dataset.shape, spec.dataset.shape));
    facts = sharding_facts(graph);
    units = find_units(graph);
  }
};

/// The least Traffic::total() over all settings of the units, found by trying all of them; nothing if there are too
/// many.
std::optional<double> least_by_trial(const Weighed& job, const Mesh& mesh, const CostModel& cost) {
  std::vector<std::vector<FactorAxes>> candidates;
  double count = 1;
  for (const Unit& unit : job.units.all) {
    const size_t l = static_cast<size_t>(unit.layer);
    std::vector<FactorAxes> all;
    const size_t factors = job.graph.layers[l].factors.size();
    // Assigns each axis to each factor, or to none.
    std::vector<size_t> to(static_cast<size_t>(mesh.num_axes()), 0);
    for (;;) {
      FactorAxes axes(factors);
      for (int a = 0; a < mesh.num_axes(); ++a)
        if (to[static_cast<size_t>(a)] < factors) axes[to[static_cast<size_t>(a)]].push_back(a);
      bool legal = true;
      for (size_t f = 0; f < factors; ++f)
        legal = legal && (axes[f].empty() || (job.facts[l].why_not[f].empty() &&
                                              job.graph.layers[l].factors[f].size % mesh.ways(axes[f]) == 0));
      if (legal) all.push_back(axes);
      size_t a = 0;
      while (a < to.size() && ++to[a] > factors) to[a++] = 0;
      if (a == to.size()) break;
    }
    count *= static_cast<double>(all.size());
    candidates.push_back(std::move(all));
  }
  if (count > 30'000) return std::nullopt;
  Traffic traffic(job.graph, job.units, mesh, cost, 1);
  double least = 1e300;
  std::vector<size_t> setting(candidates.size(), 0);
  for (;;) {
    for (size_t u = 0; u < setting.size(); ++u) traffic.set(static_cast<int>(u), candidates[u][setting[u]]);
    least = std::min(least, traffic.total());
    size_t u = 0;
    while (u < setting.size() && ++setting[u] == candidates[u].size()) setting[u++] = 0;
    if (u == setting.size()) return least;
  }
}

const std::string kGpt = gpt(12, 64);
const std::string kAdaptedGpt = kGpt + "adapters: {lora: {layers: ['h.*.qkv', 'h.*.down', head], rank: 4}}\n";

std::vector<Instruction> redistributions(const PlannedJob& job) {
  std::vector<Instruction> all;
  for (const Instruction& instruction : compile(job, 0).instructions)
    if (instruction.opcode == Opcode::collective && instruction.purpose == Purpose::redistribute)
      all.push_back(instruction);
  return all;
}

/// The time of the collectives of rank 0.
double seconds_of(const PlannedJob& job, const std::vector<Instruction>& calls) {
  const Program program = compile(job, 0);
  double seconds = 0;
  for (const Instruction& call : calls)
    seconds +=
        job.cost.collective_seconds(call.collective, call.bytes(), program.groups[static_cast<size_t>(call.group)]);
  return seconds;
}

PlannedJob found(const std::string& text, const std::vector<std::string>& settings) { return planned(text, settings); }

}  // namespace

TEST_CASE("search: the cuts of small graphs are the best of all by the search's own sum") {
  std::mt19937 random(11);
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    const Weighed job(drawn_network(random));
    const Mesh mesh(pick(random, 2, 8));
    const CostModel cost;
    const std::optional<double> least = least_by_trial(job, mesh, cost);
    if (!least) continue;
    ++compared;
    const CutNetwork network(job.graph, job.facts, job.units, job.folded);
    double best = 1e300;
    CutSpace space(network, mesh, Effort::high, cost, 1,
                   std::vector<std::optional<LayerStrategy>>(job.graph.layers.size()));
    for (const AxisSplit& split : axis_splits(mesh, Effort::high)) {
      const FoundCuts cuts = find_cuts(space, split);
      CHECK(cuts.exact);
      best = std::min(best, cuts.seconds);
    }
    CHECK(best == doctest::Approx(*least).epsilon(1e-9));
  }
  CHECK(compared >= 50);
}

TEST_CASE("search: blocks that a network repeats are found, and three of them stand for all") {
  const JobSpec job = parse_job(kGpt, "job.yaml");
  const Repeats repeats = find_repeats(job.network);
  REQUIRE(repeats.blocks == std::vector<int>{12});
  CHECK(repeats.places[1].pattern == "h.*.ln1");
  CHECK(repeats.places[0].run == -1);
  const Folded folded = fold(job, 3);
  CHECK(folded.job.network.size() == 1 + 3 * 10 + 2);
  CHECK(folded.job.network.back().name == "head");
  const Graph graph = build_graph(folded.job, data_and_label({16}, {16}, true, true));
  CHECK(graph.layers.size() == folded.job.network.size() + 1);
}

TEST_CASE("search: the sum over a folded network is that of the whole network with the same cuts") {
  for (const auto& [ranks, text] : {std::pair{2, kGpt}, {4, kGpt}, {6, kGpt}, {4, kAdaptedGpt}}) {
    const JobSpec job = parse_job(text, "job.yaml");
    const DataShapes shapes = data_and_label({16}, {16}, true, true);
    double sums[2];
    int at = 0;
    for (const int blocks : {3, 12}) {
      const Folded folded = fold(job, blocks);
      const Graph graph = build_graph(folded.job, shapes);
      const std::vector<LayerFacts> facts = sharding_facts(graph);
      const Units units = find_units(graph);
      const CutNetwork network(graph, facts, units, folded);
      const Mesh mesh(ranks);
      CutSpace space(network, mesh, Effort::normal, CostModel(), 1,
                     std::vector<std::optional<LayerStrategy>>(graph.layers.size()));
      sums[at++] = data_parallel_cuts(space).seconds;
    }
    CHECK(sums[0] == doctest::Approx(sums[1]).epsilon(0.01));
  }
}

TEST_CASE("search: frozen parameters have no gradients and no optimizer state, and adapters belong to their layers") {
  constexpr double kTrained = 4.0 * (12 * (64 + 192 + 256 + 64) + 64 + 64);
  constexpr double kBlock = 2 * 2 * 64 + (64 + 1) * 192 + (64 + 1) * 64 + (64 + 1) * 256 + (256 + 1) * 64;
  constexpr double kFrozen = 64 * 64 + 12 * kBlock + 2 * 64 + 64 * 64;
  const JobSpec job = parse_job(kAdaptedGpt, "job.yaml");
  for (const int blocks : {3, 12}) {
    const Folded folded = fold(job, blocks);
    const Graph graph = build_graph(folded.job, data_and_label({16}, {16}, true, true));
    const std::vector<LayerFacts> facts = sharding_facts(graph);
    const Units units = find_units(graph);
    const CutNetwork network(graph, facts, units, folded);
    const Mesh mesh(2);
    CutSpace space(network, mesh, Effort::normal, CostModel(), 1,
                   std::vector<std::optional<LayerStrategy>>(graph.layers.size()));
    double trained = 0, frozen = 0;
    for (const LayerLoad& load :
         loads_of(network, job, find_repeats(job), mesh, data_parallel_cuts(space), CostModel(), {})) {
      trained += load.elements;
      frozen += load.frozen_elements;
    }
    CHECK(trained == kTrained);
    CHECK(frozen == kFrozen);
    if (blocks < 12) continue;
    double bytes = 0;
    for (const UnitMemory& unit : memory_by_unit(network, {.trained = 16, .frozen = 4}))
      for (const UnitMemory::Part& part : unit.parts)
        if (!part.has_own_buffer) bytes += part.bytes;
    CHECK(bytes == 16 * kTrained + 4 * kFrozen);
  }
}

TEST_CASE("search: the bound is never above a simulated step") {
  std::mt19937 random(3);
  int compared = 0;
  for (int draw = 0; draw < 120; ++draw) {
    const DrawnPlan drawn = drawn_plan(random, draw % 10 == 0);
    PlannedJob job;
    try {
      job = planned(drawn.text, drawn.settings);
    } catch (const SpecError&) {
      continue;  // cuts or micro-batches that do not divide
    }
    ++compared;
    CAPTURE(to_yaml(job.spec));
    const double bound = bound_of(job);
    CHECK(bound > 0);
    CHECK(bound <= simulated_seconds(job));
  }
  CHECK(compared >= 25);
}

TEST_CASE("search: on small graphs the found plan is within 3 % of the best of all plans, short of memory or not") {
  for (const bool short_of_memory : {false, true}) {
    CAPTURE(short_of_memory);
    std::mt19937 random(5);
    int compared = 0;
    for (int draw = 0; draw < 80 && compared < 12; ++draw) {
      const Regret drawn = drawn_regret(random, short_of_memory);
      if (drawn.plans == 0 || drawn.plans > 2'000) continue;
      ++compared;
      CAPTURE(drawn.text);
      REQUIRE(drawn.found > 0);
      CHECK(drawn.regret() <= 0.03);
      CHECK(drawn.bound <= drawn.best);
      if (short_of_memory) CHECK(drawn.memory <= drawn.limit);
    }
    CHECK(compared == 12);
  }
}

TEST_CASE("search: exhaustive refuses more plans than it can try and says how many there are") {
  const std::vector<std::string> settings = {"launch.ranks=8", "parallel.mode=auto_parallel",
                                             "parallel.search.algorithm=exhaustive"};
  CHECK_THROWS_WITH_AS(found(kGpt, settings), doctest::Contains("exhaustive would try"), SpecError);
}

TEST_CASE("search: sharding_propagation lets a layer follow the given strategies where that moves nothing") {
  const std::string text = R"(
dataset: {type: random, shape: [32], label_shape: [32], label_dtype: f32, batch: 16, samples: 32}
network:
  - {name: a, type: dense, units: 64}
  - {name: r, type: relu}
  - {name: b, type: dense, units: 32}
loss: mse
optimizer: {type: adam, learning_rate: 0.001}
)";
  const std::vector<std::string> settings = {"launch.ranks=4", "parallel.mode=auto_parallel",
                                             "parallel.search.algorithm=sharding_propagation",
                                             "parallel.strategies={a: [[2, 1], [2, 1]]}"};
  const PlannedJob job = found(text, settings);
  REQUIRE(job.search);
  CHECK(job.spec.parallel.stages == 1);
  CHECK(job.plan.layers[1].factor_axes.size() == 2);
  CHECK(job.plan.mesh.ways(job.plan.layers[1].factor_axes[0]) == 2);
  CHECK(job.plan.mesh.ways(job.plan.layers[1].factor_axes[1]) == 2);
  // b gathers r: one round, and its backward pass moves nothing. To contract over what cuts r costs a sum, which is two
  // rounds for as many bytes, or a scattered sum forward and a gather backward.
  const std::vector<Instruction> moves = redistributions(job);
  REQUIRE(moves.size() == 1);
  CHECK(moves[0].collective == Collective::all_gather);
  CHECK(moves[0].name == "all_gather r");
  const PlannedJob other = found(text, {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
                                        "parallel.strategies={a: [[2, 1], [2, 1]], b: [[2, 2], [1, 2]]}"});
  CHECK(seconds_of(job, moves) < seconds_of(other, redistributions(other)));
}

TEST_CASE("search: a found plan is an ordinary job that gives the same plan, each time") {
  const std::vector<std::string> settings = {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8"};
  const PlannedJob one = found(kGpt, settings), two = found(kGpt, settings);
  REQUIRE(one.search);
  CHECK(to_yaml(one.spec) == to_yaml(two.spec));
  CHECK(one.spec.parallel.mode == ParallelMode::semi_auto_parallel);
  const PlannedJob again = plan_job(parse_job(to_yaml(one.spec), "job.found.yaml"));
  CHECK(!again.search);
  for (size_t l = 0; l < one.plan.layers.size(); ++l)
    CHECK(again.plan.layers[l].factor_axes == one.plan.layers[l].factor_axes);
  const double seconds = simulate(compile_classes(again), again.cost.machine()).step.value;
  CHECK(seconds == one.search->best().trial.seconds);
  CHECK(one.search->best().trial.seconds >= one.search->bound);
}

TEST_CASE("search: a found plan of a job with a reference model is an ordinary job too") {
  const std::string file = std::string(TRAINCTL_SOURCE_DIR) + "/templates/dpo.yaml";
  const PlannedJob one =
      plan_job(load_job(file, {"launch.ranks=2", "launch.device=cpu", "parallel.mode=auto_parallel"}));
  REQUIRE(one.search);
  const PlannedJob again = plan_job(parse_job(to_yaml(one.spec), file));
  REQUIRE(again.plan.layers.size() == one.plan.layers.size());
  for (size_t l = 0; l < one.plan.layers.size(); ++l)
    CHECK(again.plan.layers[l].factor_axes == one.plan.layers[l].factor_axes);
}

TEST_CASE("search: the programs of its last trial are those of the found plan, compiled anew") {
  for (const std::string& more : {std::string("train.steps=3"), std::string("parallel.stages=2"),
                                  std::string("parallel.strategies={h.*.up: [[1, 1, 1], [8, 1]]}")}) {
    CAPTURE(more);
    const PlannedJob job =
        found(kGpt, {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8", more});
    REQUIRE(job.compiled);
    PlannedJob anew = plan_job(job.spec);
    REQUIRE(!anew.compiled);
    const RankClasses tried = compile_classes(job), compiled = compile_classes(anew);
    CHECK(tried.ranks == compiled.ranks);
    REQUIRE(tried.programs.size() == compiled.programs.size());
    for (size_t c = 0; c < tried.programs.size(); ++c)
      CHECK(to_string(tried.programs[c]) == to_string(compiled.programs[c]));
    for (size_t l = 0; l < job.plan.layers.size(); ++l) CHECK(job.plan.layers[l].reason == anew.plan.layers[l].reason);
    CHECK(job.plan.notes == anew.plan.notes);
  }
}

TEST_CASE("search: the best plan is no slower than data parallel, and a constraint never helps") {
  const std::vector<std::string> free = {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8"};
  const double best = found(kGpt, free).search->best().trial.seconds;
  for (const TriedPlan& plan : found(kGpt, free).search->tried)
    if (plan.trial.fault.empty()) CHECK(plan.trial.seconds >= best * (1 - 0.006));
  for (const char* constraint : {"parallel.stages=2", "parallel.optimizer_shard.level=3", "parallel.micro_batches=4",
                                 "parallel.strategies={h.*.up: [[1, 1, 1], [8, 1]]}"}) {
    CAPTURE(constraint);
    std::vector<std::string> settings = free;
    settings.emplace_back(constraint);
    const PlannedJob job = found(kGpt, settings);
    CHECK(job.search->best().trial.seconds >= best * (1 - 0.006));
  }
}

TEST_CASE("search: settings of the job do not change") {
  const PlannedJob job =
      found(kGpt, {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8", "parallel.stages=2",
                   "parallel.optimizer_shard.level=1", "parallel.micro_batches=4"});
  CHECK(job.spec.parallel.stages == 2);
  CHECK(job.spec.parallel.micro_batches == 4);
  CHECK(job.spec.parallel.optimizer_shard.level == 1);
}

TEST_CASE("search: less memory changes the plan until none fits, and then says the least that is needed") {
  const std::vector<std::string> free = {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8"};
  const std::string text = gpt(4, 64);
  int64_t memory = found(text, free).search->best().trial.memory;
  int plans = 0;
  double seconds = 0;
  std::pair<bool, bool> offloads;  // the optimizer's state, and activations
  std::string fault;
  for (int round = 0; round < 30 && fault.empty(); ++round) {
    std::vector<std::string> settings = free;
    settings.push_back("parallel.max_memory=" + std::to_string(memory * 3 / 5));
    try {
      const PlannedJob job = found(text, settings);
      const Trial& trial = job.search->best().trial;
      CHECK(trial.memory < memory);
      // If nothing fits without offloading, the host has a part of the data: another row of plans begins.
      const OffloadSpec& offload = job.spec.parallel.offload;
      const std::pair now{offload.optimizer == StatePlace::host, !offload.activations.empty()};
      if (now != offloads) seconds = 0;
      offloads = now;
      CHECK(trial.seconds >= seconds * 0.85);  // only some plans are tried
      seconds = std::max(seconds, trial.seconds);
      memory = trial.memory;
      ++plans;
    } catch (const SpecError& error) {
      fault = error.what();
    }
  }
  CHECK(plans >= 3);
  CHECK(fault.find("no plan fits") != std::string::npos);
  CHECK(fault.find("the smallest plan needs") != std::string::npos);
}

TEST_CASE("search: activations are offloaded if a job does not fit otherwise, and not while memory suffices") {
  const std::string text = gpt(8, 256);
  std::vector<std::string> settings = {"parallel.mode=auto_parallel", "launch.machine=h100x8",
                                       "launch.device=cuda",          "parallel.recompute=[]",
                                       "parallel.micro_batches=1",    "optimizer={type: sgd, learning_rate: 0.1}",
                                       "dataset.batch=1024",          "dataset.samples=2048"};
  const PlannedJob free = found(text, settings);
  CHECK(free.spec.parallel.offload.activations.empty());
  CHECK(free.spec.parallel.offload.optimizer == StatePlace::device);
  const int64_t needed = free.search->best().trial.memory;
  settings.push_back("parallel.max_memory=" + std::to_string(needed * 11 / 10));
  CHECK(found(text, settings).spec.parallel.offload.activations.empty());
  settings.back() = "parallel.max_memory=" + std::to_string(needed * 4 / 5);
  const PlannedJob limited = found(text, settings);
  CHECK(limited.search->best().trial.memory <= needed * 4 / 5);
  CHECK_FALSE(limited.spec.parallel.offload.activations.empty());
  CHECK(limited.spec.parallel.offload.optimizer == StatePlace::device);  // sgd has no state
  const Program program = compile(limited, 0);
  CHECK(std::any_of(program.instructions.begin(), program.instructions.end(),
                    [](const Instruction& i) { return i.opcode == Opcode::copy; }));
  CHECK(program.memory.host > 0);
}

TEST_CASE("search: a layer whose output leaves its block is not recomputed, by the search's sum as by the plan") {
  // Each block reads the relu in the middle of the block before it, and that block's output.
  const std::string text = R"(
dataset: {type: random, shape: [16], label_dtype: f32, label_shape: [16], batch: 16, samples: 64}
network:
  - {name: h.0.in, type: dense, units: 16}
  - {name: h.0.mid, type: relu}
  - {name: h.0.out, type: dense, units: 16}
  - {name: h.1.in, type: add, inputs: [h.0.out, h.0.mid]}
  - {name: h.1.mid, type: relu}
  - {name: h.1.out, type: dense, units: 16}
  - {name: h.2.in, type: add, inputs: [h.1.out, h.1.mid]}
  - {name: h.2.mid, type: relu}
  - {name: h.2.out, type: dense, units: 16}
  - {name: last, type: add, inputs: [h.2.out, h.2.mid]}
loss: mse
parallel: {recompute: ['h.*']}
)";
  const PlannedJob job = planned(text, {"parallel.mode=semi_auto_parallel"});
  Networks networks(job.spec, job.data.shapes, job.cost);
  std::vector<std::string> notes;
  const OpenChoices open(job.spec, networks, job.cost.machine(), notes);
  const auto seconds = [&](const std::string& patterns) {
    const PlannedJob other = planned(text, {"parallel.mode=semi_auto_parallel", "parallel.recompute=" + patterns});
    Networks of_other(other.spec, other.data.shapes, other.cost);
    const OpenChoices choices(other.spec, of_other, other.cost.machine(), notes);
    WeighedChoices weighed(other.spec, of_other, choices, other.cost, 0, false);
    weighed.weigh(0);
    return weighed.all().front().expected;
  };
  const Expected all = seconds("['h.*']"), inner = seconds("['h.*.in']"), none = seconds("[]");
  CHECK(all.seconds == inner.seconds);
  CHECK(all.memory == inner.memory);
  CHECK(all.seconds > none.seconds);
  for (const Recompute& way : recompute_ways(job.spec, networks))
    for (const RecomputeRule& rule : way) CHECK(rule.pattern == "h.*.in");
  for (size_t l = 0; l < job.graph.layers.size(); ++l)
    CHECK(job.plan.layers[l].recompute == job.graph.layers[l].name.ends_with(".in"));
}

TEST_CASE("search: a plan whose trial has a fault is not chosen, even if only the trial of all ranks has the fault") {
  const PlannedJob job =
      found(gpt(4, 64), {"launch.ranks=4", "parallel.mode=semi_auto_parallel", "launch.machine=h100x8"});
  // Plans with stages would be the fastest.
  const auto search_with = [&](TriedRanks faulty, const std::vector<std::string>& more) {
    std::vector<std::string> fields = {"launch.ranks=4", "parallel.mode=auto_parallel"};
    fields.insert(fields.end(), more.begin(), more.end());
    JobSpec spec = parse_job(gpt(4, 64), "job.yaml", fields);
    spec.parallel.mode = ParallelMode::semi_auto_parallel;
    spec.launch = job.spec.launch;
    const TryPlan try_plan = [&](const JobSpec& fixed, TriedRanks ranks) -> Trial {
      const bool has_stages = fixed.parallel.stages > 1;
      if (has_stages && (faulty == TriedRanks::one_per_stage || ranks == TriedRanks::all))
        return {.fault = "its stages would deadlock"};
      return {.seconds = has_stages ? 0.5 : 1.0, .memory = 1, .of_all_ranks = ranks == TriedRanks::all};
    };
    return find_plan(spec, job.data.shapes, job.cost, {}, try_plan);
  };
  for (const TriedRanks faulty : {TriedRanks::one_per_stage, TriedRanks::all}) {
    const FoundPlan plan = search_with(faulty, {});
    CHECK(plan.best().choice.stages == 1);
    CHECK(plan.best().trial.fault.empty());
    CHECK_THROWS_WITH_AS(search_with(faulty, {"parallel.stages=2"}),
                         doctest::Contains("is legal: its stages would deadlock"), SpecError);
  }
}

TEST_CASE("search: the number of micro-batches stays the same if the network's results depend on it") {
  const std::string text = R"(
dataset: {type: random, shape: [3, 8, 8], classes: 4, label_dtype: i32, batch: 16, samples: 32}
network:
  - {name: c, type: conv2d, channels: 8, kernel: 3, padding: 1}
  - {name: bn, type: batch_norm}
  - {type: global_avg_pool}
  - {name: fc, type: dense, units: 4}
loss: softmax_cross_entropy
)";
  const PlannedJob job = found(text, {"launch.ranks=4", "parallel.mode=auto_parallel"});
  CHECK(job.spec.parallel.micro_batches == 1);
  REQUIRE(job.search->notes.size() == 1);
  CHECK(job.search->notes[0].find("bn computes over the rows") != std::string::npos);
}
