// Jobs from YAML to programs, over the product of everything a plan can say. compile_all verifies what it
// makes, so a combination passes when it does not throw.
#include "tests/compile/jobs.h"

#include <doctest/doctest.h>

#include <chrono>
#include <map>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/verify_programs.h"
#include "engine/plan/part_limits.h"
#include "tests/compile/sketch.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

std::vector<Program> compiled(const Job& j) { return compile_all(j.graph, j.plan, j.spec, CostModel::cpu()); }

std::vector<Program> compiled(const std::string& text, const std::vector<std::string>& overrides) {
  return compiled(job(text, overrides));
}

/// How many of them can be planned; each of those must compile to programs that hold, in f32 and in bf16.
int compile_every(const std::string& text, const std::vector<std::vector<std::string>>& combinations) {
  int count = 0;
  for (auto overrides : combinations) {
    std::string said;
    for (const std::string& o : overrides) said += o + " ";
    CAPTURE(said);
    Job j;
    try {
      j = job(text, overrides);
    } catch (const SpecError&) {
      continue;  // asks for what cannot be: not the compiler's matter
    }
    CHECK_NOTHROW(compiled(j));
    overrides.emplace_back("precision=bf16");
    CHECK_NOTHROW(compiled(text, overrides));
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("data parallel on 1 to 12 ranks, every level, with and without recompute") {
  for (const auto& [name, text] : kNetworks) {
    CAPTURE(name);
    const int count =
        compile_every(text, product({{"parallel.mode=data_parallel"},
                                     {"launch.ranks=1", "launch.ranks=2", "launch.ranks=3", "launch.ranks=4",
                                      "launch.ranks=6", "launch.ranks=8", "launch.ranks=12"},
                                     kLevels,
                                     {"parallel.micro_batches=1", "parallel.micro_batches=2"},
                                     {"", "parallel.recompute=['*']"}}));
    CHECK(count > 80);
  }
}

TEST_CASE("one to four stages, both schedules, every level, recompute") {
  for (const auto& [name, text] : kNetworks) {
    CAPTURE(name);
    const int count = compile_every(
        text, product({{"parallel.mode=semi_auto_parallel"},
                       {"launch.ranks=12"},
                       {"parallel.stages=1", "parallel.stages=2", "parallel.stages=3", "parallel.stages=4"},
                       {"parallel.micro_batches=4"},
                       kSchedules,
                       kLevels,
                       {"", "parallel.recompute=['*a*']"}}));
    CHECK(count == 64);
  }
}

TEST_CASE("cut batch, rows and columns in the same network") {
  const std::vector<std::string> strategies = {
      "parallel.strategies={a: [[1, 1], [2, 1]]}",
      "parallel.strategies={a: [[2, 1], [2, 1]], b: [[1, 4], [1, 4]]}",
      "parallel.strategies={b: [[2, 2], [1, 2]], c: [[4, 1], [1, 1]]}",
      "parallel.strategies={a_act: [[1, 4]], b_act: [[2, 2]], d: [[1, 4], [1, 4]]}",
      "parallel.strategies={a: [[1, 2], [2, 2]], b: [[1, 1], [4, 1]], c: [[1, 4], [1, 4]]}",
  };
  const int count = compile_every(kNetworks.at("mlp"), product({{"parallel.mode=semi_auto_parallel"},
                                                                {"launch.ranks=4", "launch.ranks=8"},
                                                                {"parallel.stages=1", "parallel.stages=2"},
                                                                {"parallel.micro_batches=2"},
                                                                strategies,
                                                                kLevels}));
  CHECK(count >= 60);
  const int norms = compile_every(
      kNetworks.at("norms"),
      product({{"parallel.mode=semi_auto_parallel"},
               {"launch.ranks=4", "launch.ranks=8"},
               {"parallel.stages=1", "parallel.stages=2"},
               {"parallel.micro_batches=2"},
               {"parallel.strategies={a: [[1, 1], [2, 1]], bn: [[2, 2]]}",
                "parallel.strategies={bn: [[1, 4]], b: [[2, 2], [2, 2]]}", "parallel.strategies={b: [[1, 1], [4, 1]]}"},
               kLevels}));
  CHECK(norms > 20);
}

TEST_CASE("no bucket is gathered while a product still reads weights of it, be they in another rank's shard") {
  CHECK_NOTHROW(compiled(R"(
dataset: {type: random, shape: [11, 127], label_dtype: f32, batch: 48}
network:
  - {name: a, type: dense, units: 32}
  - {name: b, type: dense, units: 127}
  - {name: c, type: matmul, units: 129}
  - {name: d, type: dense, units: 129}
  - {type: flatten}
  - {type: dense, units: 1}
loss: mae
optimizer: {type: adamw, learning_rate: 0.003}
parallel:
  mode: semi_auto_parallel
  optimizer_shard: {level: 1, min_kb: 1}
  strategies: {a: [[4, 1, 1]], b: [[2, 1, 2], [1, 2]], d: [[2, 1, 1], [1, 1]]}
launch: {ranks: 4}
)",
                         {}));
}

TEST_CASE("hybrid_parallel: what the job cuts and moves itself") {
  const std::string text = R"(
dataset: {type: random, shape: [12], label_dtype: f32, batch: 48}
network:
  - {name: a, type: dense, units: 6}
  - {name: a_act, type: relu}
  - {name: back, type: dense, units: 24, bias: false}
  - {name: sum, type: all_reduce}
  - {name: swap, type: all_to_all, split_dim: 1, concat_dim: 0}
  - {name: swap_back, type: all_to_all, split_dim: 0, concat_dim: 1}
  - {name: wide, type: all_gather}
  - {name: parts, type: reduce_scatter}
  - {name: same, type: broadcast}
  - {name: d, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01, clip_norm: 1.0}
parallel:
  mode: hybrid_parallel
  strategies: {a: [[1, 1], [4, 1], [4]], back: [[1, 1], [1, 4]]}
launch: {ranks: 4}
)";
  for (const auto& overrides : product({kLevels,
                                        {"parallel.micro_batches=1", "parallel.micro_batches=2"},
                                        {"parallel.full_batch=true", "parallel.full_batch=false"}})) {
    const std::vector<Program> programs = compiled(text, overrides);
    for (const Program& p : programs) {
      // Forward and backward of seven collectives; backward of broadcast is an all_reduce.
      CHECK(collectives(p, Purpose::layer).size() == 12 * (overrides[1].back() - '0'));
      CHECK(collectives(p, Purpose::redistribute).empty());
    }
  }
}

TEST_CASE("batch_norm [[4,1]] before matmul [[1,1],[1,4]]: one all_gather, and nothing else in the forward pass") {
  const std::string text = R"(
dataset: {type: random, shape: [16], label_dtype: f32, label_shape: [32], batch: 32}
network:
  - {name: bn, type: batch_norm}
  - {name: mm, type: matmul, units: 32}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
parallel:
  mode: semi_auto_parallel
  strategies: {bn: [[4, 1]], mm: [[1, 1], [1, 4]]}
launch: {ranks: 4}
)";
  for (const Program& p : compiled(text, {})) {
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

TEST_CASE("a parameter of two stages is summed over both, and lies alike in both") {
  const Job j = job(kNetworks.at("tied"), {"parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.stages=2",
                                           "parallel.micro_batches=2"});
  const std::vector<Program> programs = compiled(j);
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
  const Job j =
      job(kNetworks.at("norms"),
          {"parallel.mode=semi_auto_parallel", "launch.ranks=3", "parallel.stages=3", "parallel.micro_batches=2",
           "parallel.stage_config={a: 0, bn: 0, act: 0, drop: 1, b: 1, ln: 2, skip: 2, far: 2, d: 2}"});
  const std::vector<Program> programs = compiled(j);
  int to_last = 0;
  for (int i : find_all(programs[0], Opcode::send)) to_last += programs[0].instructions[i].peer == 2;
  CHECK(to_last == 4);  // a and act, twice
}

TEST_CASE("dropout runs again in a recompute under the same key; running statistics do not") {
  const Job j = job(kNetworks.at("norms"), {"launch.ranks=1", "parallel.recompute=['*']"});
  const Program p = compiled(j)[0];
  std::vector<std::string> masks;  // of chains that dropout is a part of
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

TEST_CASE("a data set tensor that is wanted in two layouts is loaded once and cut from there") {
  const std::string cuts =
      "parallel.strategies={a: [[2, 1, 1], [2, 1]], k: [[2, 1, 1], [2, 1]], v: [[1, 1, 1], [4, 1]]}";
  for (const Program& p :
       compiled(kNetworks.at("attention"), {"parallel.mode=semi_auto_parallel", "launch.ranks=4", cuts})) {
    CHECK(find_all(p, Opcode::load, "load data").size() == 1);
    for (const Instruction& i : p.instructions) {
      const bool moves_data = !i.inputs.empty() && i.inputs[0].tensor == "data" && i.purpose == Purpose::redistribute;
      CHECK((!moves_data || i.op == "copy_slice"));
    }
  }
}

TEST_CASE("hybrid_parallel: a collective runs over this rank's list of its group, in the list's order") {
  const std::string text = R"(
dataset: {type: random, shape: [8], label_dtype: f32, batch: 16}
network:
  - {name: a, type: dense, units: 8}
  - {name: sum, type: all_reduce, group: [[0, 2], [3, 1]]}
  - {name: same, type: broadcast, group: [[2, 0], [1, 3]]}
  - {name: d, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
parallel: {mode: hybrid_parallel, full_batch: true, stages: 2, stage_config: {a: 0, sum: 0, same: 1, d: 1}}
launch: {ranks: 8}
)";
  for (const Program& p : compiled(text, {})) {
    const auto layer = collectives(p, Purpose::layer);
    REQUIRE(layer.size() == 2);  // forward and backward of the stage's one
    const std::vector<int>& ranks = p.groups[layer[0]->group];
    if (p.stage == 0) CHECK(ranks == (p.rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1}));
    if (p.stage == 1) CHECK(ranks == (p.rank % 2 == 0 ? std::vector<int>{6, 4} : std::vector<int>{5, 7}));
    if (p.stage == 1)
      CHECK(find_all(p, Opcode::kernel, "zero " + layer[1]->name).size() == (ranks[0] == p.rank ? 0 : 1));
  }
}

namespace {

std::string spec_error(const std::string& text, const std::vector<std::string>& overrides) {
  try {
    const Job j = job(text, overrides);
    for (int stage = 0; stage < j.plan.num_stages; ++stage)
      (void)compile(j.graph, j.plan, j.spec, CostModel::cpu(), stage * j.plan.mesh.size());
  } catch (const SpecError& error) {
    const Diagnostic& first = error.diagnostics().front();
    return std::to_string(first.pos.line) + ":" + std::to_string(first.pos.column) + ": " + first.path + ": " +
           first.message + " (" + first.hint + ")";
  }
  return "";
}

}  // namespace

TEST_CASE("any number of ranks that the field takes is planned and compiled, or is an error with a position") {
  // 2^16 has the most axes, 65,521 is the largest prime, 30,030 and 46,656 have axes of several sizes.
  int compiled = 0, refused = 0;
  for (const int ranks : {1, 2, 97, 4096, 16384, 30030, 32768, 46656, 65521, 65535, 65536, 65537, 100000}) {
    for (const std::string mode : {"data_parallel", "semi_auto_parallel", "hybrid_parallel", "stand_alone"}) {
      for (const std::string batch : {"65536", "48", "1000"}) {
        for (const std::string stages : {"1", "2"}) {
          const Words overrides = {"parallel.mode=" + mode, "launch.ranks=" + std::to_string(ranks),
                                   "dataset.batch=" + batch, "parallel.stages=" + stages};
          std::string said;
          for (const std::string& o : overrides) said += o + " ";
          CAPTURE(said);
          try {
            const std::string error = spec_error(kNetworks.at("norms"), overrides);
            ++(error.empty() ? compiled : refused);
          } catch (const std::exception& other) {
            FAIL_CHECK("not an error in the job: " << other.what());
          }
        }
      }
    }
  }
  MESSAGE(compiled << " compiled, " << refused << " refused");
  CHECK(compiled > 50);
  CHECK(refused > 50);
}

TEST_CASE("a contraction that is cut 65,536 ways is summed and scattered") {
  const Job j = job(R"(
dataset: {type: random, shape: [65536], label_dtype: f32, label_shape: [2], batch: 65536}
network:
  - {name: a, type: dense, units: 2, bias: false}
  - {name: act, type: relu}
loss: mse
optimizer: {type: sgd, learning_rate: 0.1}
parallel: {mode: semi_auto_parallel, strategies: {a: [[1, 65536], [1, 65536]], act: [[65536, 1]]}}
launch: {ranks: 65536}
)",
                    {});
  CHECK(j.plan.mesh.num_axes() == 16);
  const Program p = compile(j.graph, j.plan, j.spec, CostModel::cpu(), 40000);
  std::vector<Collective> forward;
  for (const Instruction* i : collectives(p, Purpose::redistribute))
    if (i->phase == Phase::forward) forward.push_back(i->collective);
  CHECK(forward == std::vector<Collective>{Collective::reduce_scatter});
}

namespace {

const std::string kLanguageModel = R"(
dataset: {type: random, shape: [1024], dtype: i32, label_shape: [1024], label_dtype: i32, classes: 50257, batch: 65536}
network:
  - {name: e, type: embedding, vocab: 50257, units: 768}
  - {name: head, type: dense, units: 50257, bias: false}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001}
)";

}  // namespace

TEST_CASE("a whole tensor may be far larger than any machine: only what one rank holds has a limit") {
  const Words data_parallel = {"parallel.mode=data_parallel", "launch.ranks=1024"};
  const Job j = job(kLanguageModel, data_parallel);
  const TensorId logits = j.graph.find_tensor("head").value();
  CHECK(num_elements(j.graph.tensors[logits].shape) == int64_t{65536} * 1024 * 50257);
  const Program p = compile(j.graph, j.plan, j.spec, CostModel::cpu(), 1023);
  CHECK(p.arena_bytes > int64_t{64} * 1024 * 50257 * 4);
  CHECK(p.arena_bytes < int64_t{64} * 1024 * 50257 * 4 * 4);
}

TEST_CASE("what a rank would hold of one tensor is refused at the layer, with the ranks and the next move") {
  const std::string two = spec_error(kLanguageModel, {"parallel.mode=data_parallel", "launch.ranks=2"});
  CHECK(two.starts_with("5:5: layer head: "));
  CHECK(two.find("head is [65536, 1024, 50257]; each of the ranks 0 to 1 would hold [32768, 1024, 50257] of it, "
                 "6.1 TiB, and a rank holds at most 4.0 TiB of one tensor") != std::string::npos);
  CHECK(two.find("more launch.ranks") != std::string::npos);
  CHECK(spec_error(kLanguageModel, {"launch.ranks=1"}).find("rank 0 would hold all of it, 12.3 TiB") !=
        std::string::npos);
}

TEST_CASE("an arena that is too large is refused at the layer of its largest tensor") {
  std::string text = "dataset: {type: random, shape: [1024], label_dtype: f32, label_shape: [1024], batch: 1048576}\n";
  text += "network:\n";
  for (int i = 0; i < 40; ++i) text += "  - {name: l" + std::to_string(i) + ", type: dense, units: 1048576}\n";
  text += "  - {name: last, type: dense, units: 1024}\nloss: mse\n";
  const std::string error = spec_error(text, {});
  CHECK(error.starts_with("3:5: layer l0: rank 0 would need "));
  CHECK(error.find("and a rank holds at most 64.0 TiB; the largest tensor is ") != std::string::npos);
  CHECK(error.find("4.0 TiB (a smaller dataset.batch, or more parallel.micro_batches") != std::string::npos);
  CHECK(kMaxArenaBytes == int64_t{64} << 40);
}
