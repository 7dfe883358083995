// A class stands for all of its ranks: their programs differ only in rank numbers, and a proof for it holds for
// all.
#include "engine/compile/rank_classes.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/rank_traits.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/merged_classes.h"

using namespace trainctl;

namespace {

struct ClassedJob {
  JobSpec spec;
  Graph graph;
  Plan plan;

  explicit ClassedJob(const std::string& text) : spec(parse_job(text, "job.yaml", {})) {
    graph = build_graph(spec, data_and_label(spec.dataset.shape, spec.dataset.label_shape, spec.dataset.dtype == "i32",
                                             spec.dataset.label_dtype == "i32"));
    plan = make_plan(graph, spec, CostModel());
  }
  RankClasses classes() const { return compile_classes(graph, plan, CostModel()); }
  Program program(int rank) const { return compile(graph, plan, CostModel(), rank); }
  std::vector<Program> programs() const {
    std::vector<Program> all;
    for (int rank = 0; rank < plan.ranks; ++rank) all.push_back(program(rank));
    return all;
  }
};

/// Networks, plans and optimizers of all kinds on up to 64 ranks.
class RandomJob {
 public:
  explicit RandomJob(unsigned seed) : random_(seed) {}

  std::string text() {
    const bool hybrid = pick({0, 0, 0, 0, 1}) == 1;
    const int stages = pick({1, 1, 1, 2, 3}), micro_batches = pick({1, 1, 2, 4});
    const int ranks = stages * (hybrid ? pick({2, 4, 6, 8}) : pick({1, 2, 3, 4, 6, 8, 12, 16, 18}));
    in_stage_ = ranks / stages;
    const int64_t rows = hybrid ? in_stage_ * 2 : pick({6, 16, 24, 48});
    std::string network;
    const int layers = 3 + pick({0, 1, 2, 3, 4, 5, 6});
    for (int l = 0; l < layers; ++l) network += hybrid ? hybrid_layer(l) : layer(l);
    const char* mode = hybrid ? "hybrid_parallel" : pick({0, 1, 2}) == 0 ? "data_parallel" : "semi_auto_parallel";
    std::string job =
        fmt::format("dataset: {{type: random, shape: [4, 12], label_dtype: f32, label_shape: [4, {}], batch: {}}}\n",
                    width_, rows * micro_batches);
    job += "network:\n" + network + "loss: mse\n" + optimizer();
    const int hosts = pick({1, 2, 4});
    const bool within = ranks % hosts == 0 && pick({0, 1}) == 0;
    const std::string on = within ? fmt::format(", target: slurm, slurm: {{nodes: {}}}", hosts) : "";
    job += fmt::format("launch: {{ranks: {}{}}}\nparallel:\n  mode: {}\n  stages: {}\n  micro_batches: {}\n", ranks, on,
                       mode, stages, micro_batches);
    const bool interleaves = stages > 1 && micro_batches % stages == 0 && layers > 2 * stages && pick({0, 1}) == 0;
    const char* const schedules[] = {"gpipe", "1f1b", "zero_bubble"};
    job += interleaves ? "  schedule: interleaved_1f1b\n  chunks: 2\n"
                       : fmt::format("  schedule: {}\n", schedules[pick({0, 1, 2})]);
    job += fmt::format("  optimizer_shard: {{level: {}, min_kb: 0, within_host: {}}}\n", pick({0, 1, 2, 3}), within);
    if (pick({0, 1, 2}) == 0) job += "  recompute: ['l*']\n";
    if (!strategies_.empty() && mode[0] == 's') job += "  strategies:\n" + strategies_;
    if (pick({0, 1, 2}) == 0)
      job += "precision: bf16\n";
    else if (pick({0, 1, 2}) == 0)
      job += "gradient_precision: bf16\n";
    return job;
  }

 private:
  int pick(const std::vector<int>& from) { return from[random_() % from.size()]; }

  std::string optimizer() {
    const std::string clip = pick({0, 1}) == 0 ? ", clip_norm: 1.0" : "";
    if (pick({0, 1}) == 0) return "optimizer: {type: adamw, learning_rate: 0.01" + clip + "}\n";
    return fmt::format("optimizer: {{type: sgd, learning_rate: 0.01, momentum: {}{}}}\n",
                       pick({0, 1}) == 0 ? "0.9" : "0.0", clip);
  }

  std::string layer(int l) {
    const std::string name = fmt::format("l{}", l), head = fmt::format("  - {{name: {}, type: ", name);
    if (pick({0, 1, 2}) == 0) {
      const auto cut = [&] { return pick({1, 1, 2, 2, 3, 4}); };
      strategies_ += fmt::format("    {}: [[{}, {}, {}]]\n", name, cut(), pick({1, 1, 2}), cut());
    }
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        width_ = pick({8, 12, 24, 10, 36});
        return head + fmt::format("dense, units: {}}}\n", width_);
      case 3:
        return head + "relu}\n";
      case 4:
        return head + "layer_norm}\n";
      case 5:
        return head + "batch_norm}\n";
      case 6:
        return head + "dropout}\n";
      default:
        return head + "softmax}\n";
    }
  }

  /// Lists of two ranks each, adjacent or far apart, or one list of all.
  std::string group() {
    std::string text;
    const int kind = pick({0, 1, 2, 3});
    if (kind == 0) return "";
    for (int r = 0; r < in_stage_ / 2; ++r) {
      const int a = kind == 1 ? 2 * r : r, b = kind == 1   ? 2 * r + 1
                                               : kind == 2 ? r + in_stage_ / 2
                                                           : in_stage_ - 1 - r;
      text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", a, b);
    }
    return ", group: [" + text + "]";
  }

  std::string hybrid_layer(int l) {
    const std::string head = fmt::format("  - {{name: l{}, type: ", l);
    switch (random_() % 5) {
      case 0:
      case 1:
        width_ = pick({8, 12, 24});
        return head + fmt::format("dense, units: {}}}\n", width_);
      case 2:
        return head + "relu}\n";
      case 3:
        return head + "all_reduce" + group() + "}\n";
      default:
        return head + "broadcast" + group() + "}\n";
    }
  }

  std::mt19937 random_;
  int width_ = 12, in_stage_ = 1;
  std::string strategies_;
};

/// Damages an instruction at random, possibly without effect: drops it, moves it, or changes a field.
void break_instruction(Program& p, size_t at, unsigned how) {
  Instruction& i = p.instructions[at];
  const auto operands = [&]() -> std::vector<Operand>& { return i.outputs.empty() ? i.inputs : i.outputs; };
  switch (how % 8) {
    case 0:
      i.waits.clear();
      break;
    case 1:  // a wait that does nothing
      i.opcode = Opcode::wait;
      i.inputs.clear();
      i.outputs.clear();
      break;
    case 2:
      if (!operands().empty()) operands()[0].offset += 64;
      break;
    case 3:
      if (!operands().empty()) operands()[0].accumulate = !operands()[0].accumulate;
      break;
    case 4:
      i.micro_batch += 1;
      break;
    case 5:
      if (at > 0 && i.waits.empty()) std::swap(i, p.instructions[at - 1]);
      break;
    case 6:
      if (i.opcode == Opcode::collective) i.name += " of another";
      break;
    default:
      if (i.opcode == Opcode::collective && !p.groups.empty())
        i.group = (i.group + 1) % static_cast<int>(p.groups.size());
      break;
  }
}

std::string text(const std::vector<ProgramFault>& faults) {
  std::string all;
  for (const ProgramFault& f : faults) all += to_string(f) + "\n";
  return all;
}

const std::string kWide = R"(
dataset: {type: random, shape: [24], label_dtype: i32, classes: 12, batch: 4096}
network:
  - {name: a, type: dense, units: 64}
  - {name: act, type: relu}
  - {name: b, type: dense, units: 64}
  - {name: ln, type: layer_norm}
  - {name: d, type: dense, units: 12}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001}
)";

}  // namespace

TEST_CASE("any number of data and tensor parallel ranks are one or two classes") {
  for (const int ranks : {16, 1024, 4096}) {
    const ClassedJob job(kWide +
                  fmt::format("launch: {{ranks: {}}}\nparallel: {{mode: semi_auto_parallel, strategies: {{a: [[{}, 1], "
                              "[4, 1]], b: [[{}, 4], [1, 4]]}}}}\n",
                              ranks, ranks / 4, ranks / 4));
    const RankClasses classes = job.classes();
    CHECK(classes.num_ranks() == ranks);
    CHECK(classes.programs.size() <= 2);
    CHECK(classes.groups.size() <= 4);
    const Program last = job.program(ranks - 1);
    const Program seen = classes.of_rank(ranks - 1);
    CHECK(seen.groups == last.groups);
    CHECK(text_of_class(last, job.plan.mesh) == text_of_class(classes.program_of(ranks - 1), job.plan.mesh));
  }
}

TEST_CASE("of several ranks that compute the same loss one counts it: that rank is its own class") {
  const ClassedJob job(
      kWide +
      "launch: {ranks: 4}\nparallel: {mode: semi_auto_parallel, strategies: {d: [[1, 4], [1, 4]], loss: [[1, 1]]}}\n");
  const RankClasses classes = job.classes();
  REQUIRE(classes.ranks.size() == 2);
  CHECK(classes.ranks[0] == std::vector<int>{0});
  CHECK(classes.ranks[1] == std::vector<int>{1, 2, 3});
}

TEST_CASE("a group that does not follow the mesh is equal only to the same list of ranks") {
  const Mesh mesh(4);
  CHECK(group_of_ranks(mesh, {0, 1}, 0) == group_of_ranks(mesh, {2, 3}, 3));
  CHECK_FALSE(group_of_ranks(mesh, {0, 2}, 0) == group_of_ranks(mesh, {5, 7}, 7));  // of another stage
  CHECK(group_of_ranks(mesh, {0, 1, 4, 5}, 0) == group_of_ranks(mesh, {2, 3, 6, 7}, 6));
  const GroupKind odd = group_of_ranks(mesh, {0, 3}, 0);
  CHECK_FALSE(odd.is_of_mesh());
  CHECK_FALSE(odd == group_of_ranks(mesh, {1, 2}, 1));
  CHECK(odd.members(mesh, 3) == std::vector<int>{0, 3});
  CHECK(group_of_ranks(mesh, {0, 1, 2, 3}, 1).first(mesh, 3) == 0);
  CHECK(group_of_ranks(mesh, {2, 3}, 2).members(mesh, 1) == std::vector<int>{0, 1});
}

TEST_CASE("random jobs: the programs of a class differ only in numbers, and both proofs agree") {
  int legal = 0, shared = 0, broken = 0, found = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    const std::string drawn = RandomJob(seed).text();
    CAPTURE(drawn);
    std::optional<ClassedJob> job;
    try {
      job.emplace(drawn);
    } catch (const SpecError&) {
      continue;  // impossible to plan
    }
    ++legal;
    const RankClasses classes = job->classes();
    std::vector<Program> programs = job->programs();
    shared += classes.programs.size() < programs.size() ? 1 : 0;
    for (const Program& program : programs) {
      const Program seen = classes.of_rank(program.rank);
      CHECK(seen.groups == program.groups);
      CHECK(text_of_class(program, job->plan.mesh) == text_of_class(seen, job->plan.mesh));
    }
    CHECK(text(verify_programs(programs)) == "");
    CHECK(text(verify_classes(classes)) == "");

    std::mt19937 random(seed);
    for (int times = 0; times < 6; ++times) {
      std::vector<Program> wrong = programs;
      const size_t rank = random() % programs.size();
      const size_t at = random() % programs[rank].instructions.size();
      const unsigned how = random();
      const bool all = random() % 2 == 0;  // ranks of the class
      for (size_t r = 0; r < wrong.size(); ++r)
        if (r == rank || (all && classes.class_of[r] == classes.class_of[rank])) break_instruction(wrong[r], at, how);
      CAPTURE(rank);
      CAPTURE(at);
      CAPTURE(how % 8);
      ++broken;
      found += faults_by_both_proofs(wrong).empty() ? 0 : 1;
    }
  }
  MESSAGE(legal << " legal jobs, in " << shared << " of them ranks share a class; " << found << " of " << broken
                << " changes are faults");
  CHECK(legal > 100);
  CHECK(shared > 50);
  CHECK(found > broken / 4);
}
