// Jobs from YAML to programs, over combinations of everything that a plan can contain. compile_all verifies its
// result, so a combination passes if it does not throw.
#include "tests/compile/jobs.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/verify/verify_programs.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

std::vector<Program> jobs_compiled(const Job& j) { return compile_all(j.graph, j.plan, CostModel()); }

std::vector<Program> jobs_compiled(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return jobs_compiled(job(name, overrides));
}

/// Returns the number of combinations that can be planned. Each of these must compile to valid programs, in f32 and in
/// bf16.
int compile_every(const std::string& name, const std::vector<std::vector<std::string>>& combinations) {
  int count = 0;
  for (auto overrides : combinations) {
    std::string said;
    for (const std::string& o : overrides) said += o + " ";
    CAPTURE(said);
    Job j;
    try {
      j = job(name, overrides);
    } catch (const SpecError&) {
      continue;  // impossible to plan: not the compiler's concern
    }
    CHECK_NOTHROW(jobs_compiled(j));
    overrides.emplace_back("precision=bf16");
    CHECK_NOTHROW(jobs_compiled(name, overrides));
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("every job of tests/jobs compiles unchanged") {
  const std::vector<std::string> names = job_names();
  CHECK(names.size() >= 20);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Job j = job(job_spec(name));
    CHECK(j.spec.name == name);
    CHECK_FALSE(jobs_compiled(j).empty());
  }
}

TEST_CASE("data parallel on 1 to 12 ranks, every level, with and without recompute") {
  for (const std::string& name : kNetworks) {
    CAPTURE(name);
    const int count =
        compile_every(name, product({{"parallel.mode=data_parallel"},
                                     {"launch.ranks=1", "launch.ranks=2", "launch.ranks=3", "launch.ranks=4",
                                      "launch.ranks=6", "launch.ranks=8", "launch.ranks=12"},
                                     kLevels,
                                     {"parallel.micro_batches=1", "parallel.micro_batches=2"},
                                     {"", "parallel.recompute=['*']"}}));
    CHECK(count > 80);
  }
}

TEST_CASE("one to four stages, both schedules, every level, recompute") {
  for (const std::string& name : kNetworks) {
    CAPTURE(name);
    const int count = compile_every(
        name, product({{"parallel.mode=semi_auto_parallel"},
                       {"launch.ranks=12"},
                       {"parallel.stages=1", "parallel.stages=2", "parallel.stages=3", "parallel.stages=4"},
                       {"parallel.micro_batches=4"},
                       kSchedules,
                       kLevels,
                       {"", "parallel.recompute=['*a*']"}}));
    CHECK(count == 64);
  }
}

TEST_CASE("zero_bubble and interleaved_1f1b, every level, recompute") {
  const std::vector<std::string> semi = {"parallel.mode=semi_auto_parallel"};
  const std::vector<std::string> recompute = {"", "parallel.recompute=['*a*']"};
  for (const std::string& name : kNetworks) {
    CAPTURE(name);
    const int split = compile_every(name, product({semi,
                                                   {"launch.ranks=6"},
                                                   {"parallel.stages=1", "parallel.stages=2", "parallel.stages=3"},
                                                   {"parallel.schedule=zero_bubble"},
                                                   {"parallel.micro_batches=4"},
                                                   kLevels,
                                                   recompute}));
    CHECK(split == 24);
    const int interleaved = compile_every(name, product({semi,
                                                         {"launch.ranks=4"},
                                                         {"parallel.stages=2"},
                                                         {"parallel.schedule=interleaved_1f1b"},
                                                         {"parallel.chunks=2", "parallel.chunks=3"},
                                                         {"parallel.micro_batches=2", "parallel.micro_batches=8"},
                                                         kLevels,
                                                         recompute}));
    CHECK(interleaved >= 16);
  }
}

// 3 or 4 stages form a ring: each sends to the next and receives from the one before, in both passes.
TEST_CASE("interleaved_1f1b on deeper pipelines, with shared parameters and values that skip chunks") {
  int count = 0;
  for (const char* name : {"gpt", "language", "deep_mlp"}) {
    CAPTURE(name);
    count += compile_every(name, product({{"parallel.mode=data_parallel"},
                                          {"launch.ranks=12"},
                                          {"parallel.stages=3", "parallel.stages=4"},
                                          {"parallel.schedule=interleaved_1f1b"},
                                          {"parallel.chunks=2", "parallel.chunks=3"},
                                          {"parallel.micro_batches=12"},
                                          {"parallel.optimizer_shard={level: 2, min_kb: 0}"},
                                          {"", "parallel.recompute=['*']"}}));
  }
  CHECK(count >= 8);
}

TEST_CASE("interleaved_1f1b: each border between virtual stages is crossed once in each direction, by stages in turn") {
  const int micro_batches = 4, borders = 3;
  int sends = 0;
  for (const Program& p : jobs_compiled(
           "deep_mlp", {"parallel.mode=semi_auto_parallel", "launch.ranks=2", "parallel.stages=2",
                        "parallel.schedule=interleaved_1f1b", "parallel.chunks=2", "parallel.micro_batches=4"})) {
    std::set<int> chunks;
    for (const Instruction& i : p.instructions) {
      if (i.opcode == Opcode::send) ++sends;
      if (i.micro_batch >= 0) chunks.insert(i.chunk);
    }
    CHECK(chunks == std::set<int>{0, 1});
  }
  CHECK(sends == 2 * borders * micro_batches);
}

TEST_CASE("cut batch, rows and columns in the same network") {
  const std::vector<std::string> strategies = {
      "parallel.strategies={a: [[1, 1], [2, 1]]}",
      "parallel.strategies={a: [[2, 1], [2, 1]], b: [[1, 4], [1, 4]]}",
      "parallel.strategies={b: [[2, 2], [1, 2]], c: [[4, 1], [1, 1]]}",
      "parallel.strategies={a_act: [[1, 4]], b_act: [[2, 2]], d: [[1, 4], [1, 4]]}",
      "parallel.strategies={a: [[1, 2], [2, 2]], b: [[1, 1], [4, 1]], c: [[1, 4], [1, 4]]}",
  };
  const int count = compile_every("deep_mlp", product({{"parallel.mode=semi_auto_parallel"},
                                                       {"launch.ranks=4", "launch.ranks=8"},
                                                       {"parallel.stages=1", "parallel.stages=2"},
                                                       {"parallel.micro_batches=2"},
                                                       strategies,
                                                       kLevels}));
  CHECK(count >= 60);
  const int norms = compile_every("norms", product({{"parallel.mode=semi_auto_parallel"},
                                                    {"launch.ranks=4", "launch.ranks=8"},
                                                    {"parallel.stages=1", "parallel.stages=2"},
                                                    {"parallel.micro_batches=2"},
                                                    {"parallel.strategies={a: [[1, 1], [2, 1]], bn: [[2, 2]]}",
                                                     "parallel.strategies={bn: [[1, 4]], b: [[2, 2], [2, 2]]}",
                                                     "parallel.strategies={b: [[1, 1], [4, 1]]}"},
                                                    kLevels}));
  CHECK(norms > 20);
}

TEST_CASE("no bucket is gathered while a product still reads weights of it, even if they are in another rank's shard") {
  CHECK_NOTHROW(jobs_compiled("sharded_buckets"));
}

TEST_CASE("hybrid_parallel: the job's own cuts and collectives") {
  for (const auto& overrides : product({kLevels,
                                        {"parallel.micro_batches=1", "parallel.micro_batches=2"},
                                        {"parallel.full_batch=true", "parallel.full_batch=false"}})) {
    const std::vector<Program> programs = jobs_compiled("hybrid_collectives", overrides);
    for (const Program& p : programs) {
      // Forward and backward of seven collectives; backward of broadcast is an all_reduce.
      CHECK(collectives(p, Purpose::layer).size() == 12 * (overrides[1].back() - '0'));
      CHECK(collectives(p, Purpose::redistribute).empty());
    }
  }
}

TEST_CASE("batch_norm [[4,1]] before matmul [[1,1],[1,4]]: one all_gather, and nothing else in the forward pass") {
  for (const Program& p : jobs_compiled("norm_before_matmul")) {
    int gathers = 0;
    for (const Instruction& i : p.instructions) {
      if (i.purpose != Purpose::redistribute || i.phase != Phase::forward) continue;
      const bool statistics = i.collective == Collective::all_reduce && i.name.find("bn") != std::string::npos;
      if (i.opcode == Opcode::collective && i.collective == Collective::all_gather) ++gathers;
      CHECK((statistics || i.collective == Collective::all_gather));
    }
    CHECK(gathers == 1);
  }
}

TEST_CASE("a parameter of two stages is summed over both, and has the same layout in both") {
  const Job j = job("language", {"parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.stages=2",
                                 "parallel.micro_batches=2"});
  const std::vector<Program> programs = jobs_compiled(j);
  for (const Program& p : programs) {
    bool found = false;
    for (const Instruction* i : collectives(p, Purpose::gradient)) {
      if (p.groups[i->group].size() != 4) continue;
      found = true;
      CHECK(i->bytes() == 24 * 12 * 4);
    }
    CHECK(found);
  }
}

TEST_CASE("redistributions and transfers of a skip over several stages reach their stage once") {
  const Job j = job(
      "norms", {"parallel.mode=semi_auto_parallel", "launch.ranks=3", "parallel.stages=3", "parallel.micro_batches=2",
                "parallel.stage_config={a: 0, bn: 0, act: 0, drop: 1, b: 1, ln: 2, skip: 2, far: 2, d: 2}"});
  const std::vector<Program> programs = jobs_compiled(j);
  int to_last = 0;
  for (int i : find_all(programs[0], Opcode::send)) to_last += programs[0].instructions[i].peer == 2;
  CHECK(to_last == 4);  // a and act, twice
}

TEST_CASE("dropout runs again in a recompute under the same key, and running statistics do not") {
  const Job j = job("norms", {"launch.ranks=1", "parallel.recompute=['*']"});
  const Program p = jobs_compiled(j)[0];
  std::vector<std::string> masks;  // of chains that contain dropout
  std::vector<bool> again;
  int running = 0;
  for (const Instruction& i : p.instructions) {
    const std::string chain = i.attrs.text("expression");
    if (const size_t at = chain.find("dropout("); at != std::string::npos && i.phase == Phase::forward) {
      masks.push_back(chain.substr(at, chain.find(')') - at));
      again.push_back(i.recompute);
    }
    running += i.op == "batch_norm_running";
  }
  REQUIRE(masks.size() == 2);
  CHECK(masks[0] == masks[1]);
  CHECK(again == std::vector<bool>{false, true});
  CHECK(running == 1);
}

TEST_CASE("a data set tensor needed in two layouts is loaded once and sliced from there") {
  const std::string cuts =
      "parallel.strategies={q: [[2, 1, 1], [2, 1]], k: [[2, 1, 1], [2, 1]], v: [[1, 1, 1], [4, 1]]}";
  for (const Program& p : jobs_compiled("attention", {"parallel.mode=semi_auto_parallel", "launch.ranks=4", cuts})) {
    CHECK(find_all(p, Opcode::load, "load data").size() == 1);
    for (const Instruction& i : p.instructions) {
      const bool moves_data = !i.inputs.empty() && i.inputs[0].tensor == "data" && i.purpose == Purpose::redistribute;
      CHECK((!moves_data || i.op == "copy_slice"));
    }
  }
}

TEST_CASE(
    "hybrid_parallel: running statistics become their means over the ranks that read other rows, and only those") {
  const std::string rows = "parallel.mode=hybrid_parallel";
  for (const Program& p : jobs_compiled("norms", {"launch.ranks=4", rows})) {
    int states = 0, sums = 0, scales = 0;
    for (const Variable& v : p.variables) states += v.kind == TensorKind::state;
    for (const Instruction& i : p.instructions) {
      const bool is_running = i.name.find("running_") != std::string::npos;
      sums += i.opcode == Opcode::collective && is_running && p.groups[static_cast<size_t>(i.group)].size() == 4;
      scales += is_running && i.attrs.text("expression") == "x0 scale(0.25,0) =0";
    }
    CHECK(states > 0);
    CHECK(sums == states);
    CHECK(scales == states);
  }
  for (const Program& p : jobs_compiled("norms", {"launch.ranks=4", rows, "parallel.full_batch=true"}))
    for (const Instruction& i : p.instructions)
      CHECK_FALSE((i.opcode == Opcode::collective && i.name.find("running_") != std::string::npos));
}

TEST_CASE("hybrid_parallel: a collective runs over this rank's list of its group, in the list's order") {
  for (const Program& p : jobs_compiled("hybrid_groups")) {
    const auto layer = collectives(p, Purpose::layer);
    REQUIRE(layer.size() == 2);  // forward and backward of the stage's one
    const std::vector<int>& ranks = p.groups[layer[0]->group];
    if (p.stage == 0) CHECK(ranks == (p.rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1}));
    if (p.stage == 1) CHECK(ranks == (p.rank % 2 == 0 ? std::vector<int>{6, 4} : std::vector<int>{5, 7}));
    if (p.stage == 1)
      CHECK(find_all(p, Opcode::kernel, "zero " + layer[1]->name).size() == (ranks[0] == p.rank ? 0 : 1));
  }
}
