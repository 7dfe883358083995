// What the streams of a program may do at the same time.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

/// Four equal layers on four ranks, each a bucket of its own at level 3.
Program compiled(int level, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"parallel.optimizer_shard={level: " + std::to_string(level) + ", min_kb: 0}"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const JobSpec spec = parse_job(R"(
dataset: {type: random, shape: [64], label_shape: [64], label_dtype: f32, batch: 32}
network:
  - {name: a, type: dense, units: 64}
  - {name: b, type: dense, units: 64}
  - {name: c, type: dense, units: 64}
  - {name: d, type: dense, units: 64}
loss: mse
optimizer: {type: adam, learning_rate: 0.01}
parallel: {mode: data_parallel, micro_batches: 2}
launch: {ranks: 4}
)",
                                 "job.yaml", overrides);
  const Graph graph = build_graph(spec, {spec.dataset.shape, spec.dataset.label_shape, false, false});
  return compile_all(graph, make_plan(graph, spec, CostModel::cpu()), spec, CostModel::cpu())[0];
}

bool overlap(const Operand& a, const Operand& b) {
  return a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

/// Gathers of level 3, and up to where each one's weights are read.
std::vector<std::pair<int, int>> gathered_lives(const Program& p) {
  std::vector<std::pair<int, int>> lives;
  for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
    const Instruction& gather = p.instructions[i];
    if (gather.opcode != Opcode::collective || gather.purpose != Purpose::weights || gather.micro_batch < 0) continue;
    lives.emplace_back(i, i);
    for (int r = i + 1; r < static_cast<int>(p.instructions.size()); ++r) {
      const Instruction& reader = p.instructions[r];
      const auto writes = [&](const Operand& o) { return overlap(o, gather.outputs[0]); };
      if (std::any_of(reader.outputs.begin(), reader.outputs.end(), writes)) break;
      if (std::any_of(reader.inputs.begin(), reader.inputs.end(), writes)) lives.back().second = r;
    }
  }
  return lives;
}

}  // namespace

TEST_CASE(
    "level 3: each layer's weights are on their way before the layer before it computes, and two at most are there") {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Program p = compiled(3, {"precision=" + precision});
    const auto lives = gathered_lives(p);
    // Two micro-batches, four layers forward and two backward: the first needs
    // no gradient of its data. The last layer's weights are still there.
    REQUIRE(lives.size() == 12);
    for (size_t k = 0; k + 1 < lives.size(); ++k) {
      CHECK(lives[k + 1].first < lives[k].second);
      if (k + 2 < lives.size()) CHECK(lives[k + 2].first > lives[k].second);
    }
    for (size_t k = 1; k < lives.size(); ++k) {
      // Nothing between a gather and the product before its own waits for it.
      for (int i = lives[k].first + 1; i <= lives[k - 1].second; ++i) {
        const std::vector<int>& waits = p.instructions[i].waits;
        CHECK(std::find(waits.begin(), waits.end(), lives[k].first) == waits.end());
      }
    }
  }
}

TEST_CASE("no work on a micro-batch waits for the reduction that was issued last") {
  for (int level = 0; level <= 3; ++level) {
    for (const std::string micro_batches : {"1", "2", "4"}) {
      const Program p = compiled(level, {"parallel.micro_batches=" + micro_batches});
      int last = -1;
      for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
        const Instruction& code = p.instructions[static_cast<size_t>(i)];
        if (code.opcode == Opcode::collective && code.purpose == Purpose::gradient) last = i;
        if (code.stream != Stream::compute || code.micro_batch < 0) continue;
        if (code.op == "accumulate" && code.micro_batch == (micro_batches[0] - '1')) continue;  // the step ends here
        for (int w : code.waits) CHECK_MESSAGE(w != last, code.name, " waits for the last, level ", level);
      }
      CHECK(last >= 0);
    }
  }
}
