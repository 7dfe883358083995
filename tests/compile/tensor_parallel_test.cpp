// Traffic of a transformer block whose products are cut as Megatron cuts them. The unit is (p-1)/p n: the bytes that a
// rank sends in an all_gather or a reduce_scatter of the block's n bytes of activations over p ranks; an all_reduce is
// two.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/compile/compile.h"
#include "tests/compile/jobs.h"
#include "tests/compile/sketch.h"
#include "tests/jobs/transformer.h"

using namespace trainctl;
using namespace trainctl::transformer;

namespace {

constexpr int kBlocks = 2;

const std::vector<std::string> kNoBiases = {"modules.block.proj.bias=false", "modules.block.fc2.bias=false"};

struct Moved {
  double units = 0;                  ///< sent in redistributions, per rank and micro-batch
  std::map<std::string, int> calls;  ///< number of redistributions by kind
  std::vector<std::string> sends;    ///< names, forward then backward
};

Moved moved(const Program& program, int ways, int64_t activations) {
  Moved result;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::send) result.sends.push_back(i.name);
    if (i.opcode != Opcode::collective || i.purpose != Purpose::redistribute) continue;
    CHECK(static_cast<int>(program.groups[static_cast<size_t>(i.group)].size()) == ways);
    result.units += static_cast<double>(wire_bytes(i.collective, i.bytes(), ways)) /
                    static_cast<double>(wire_bytes(Collective::all_gather, activations, ways));
    ++result.calls[std::string(to_string(i.collective))];
  }
  return result;
}

Job transformer_job(int ranks, std::vector<std::string> overrides) {
  overrides.push_back("parallel.mode=semi_auto_parallel");
  overrides.push_back(fmt::format("launch.ranks={}", ranks));
  return job("transformer", std::move(overrides));
}

std::vector<Program> tensor_parallel_programs(const Job& j) { return compile_all(j.graph, j.plan, CostModel()); }

int64_t activation_bytes(const Job& j) {
  const Tensor& t = j.graph.tensors[j.graph.find_tensor("h.0.sum1").value()];
  return num_elements(t.shape) * byte_size(t.dtype);
}

Moved moved(const Job& j) {
  const int ways = j.plan.mesh.size();
  Moved all;
  for (const Program& p : tensor_parallel_programs(j)) {
    if (p.rank % ways != 0) continue;  // the other ranks of a stage send as much
    const Moved one = moved(p, ways, activation_bytes(j));
    all.units += one.units;
    for (const auto& [kind, calls] : one.calls) all.calls[kind] += calls;
    all.sends.insert(all.sends.end(), one.sends.begin(), one.sends.end());
  }
  return all;
}

double activations(const Job& j) { return static_cast<double>(tensor_parallel_programs(j)[0].memory.activations); }

const std::string& reason(const Job& j, const char* layer) {
  return j.plan.layers[static_cast<size_t>(j.graph.find_layer(layer).value())].reason;
}

/// "8 all_reduce".
std::string text(const std::map<std::string, int>& calls) {
  std::vector<std::string> each;
  for (const auto& [kind, count] : calls) each.push_back(fmt::format("{} {}", count, kind));
  return join(each);
}

}  // namespace

TEST_CASE("tensor parallel: a block takes two all_reduces forward and two backward, 8 units") {
  for (int ways : {2, 4}) {
    for (const std::vector<std::string>& biases : {std::vector<std::string>{}, kNoBiases}) {
      std::vector<std::string> overrides = biases;
      overrides.push_back(whole_norms(ways));
      CAPTURE(join(overrides));
      const Moved m = moved(transformer_job(ways, overrides));
      CHECK(m.units == doctest::Approx(8 * kBlocks).epsilon(0.01));
      CHECK(text(m.calls) == "8 all_reduce");
    }
  }
}

TEST_CASE("sequence-parallel norms: four all_gathers and four reduce_scatters a block, 8 units as well") {
  for (int ways : {2, 4}) {
    for (const std::vector<std::string>& biases : {std::vector<std::string>{}, kNoBiases}) {
      std::vector<std::string> overrides = biases;
      overrides.push_back(sequence_norms(ways));
      const Moved m = moved(transformer_job(ways, overrides));
      CHECK(m.units == doctest::Approx(8 * kBlocks).epsilon(0.01));
      CHECK(text(m.calls) == "8 all_gather, 8 reduce_scatter");
    }
  }
}

TEST_CASE("if only the products have strategies, a block takes 8 units too") {
  for (int ways : {2, 4})
    CHECK(moved(transformer_job(ways, {tensor_parallel(ways)})).units == doctest::Approx(8 * kBlocks).epsilon(0.01));
}

TEST_CASE("a bias is added to this rank's rows, after the reduce_scatter, and the plan says so") {
  const Job j = transformer_job(2, {sequence_norms(2)});
  CHECK(reason(j, "h.0.proj").ends_with("; add_bias after reduce_scatter"));
  for (const Program& p : tensor_parallel_programs(j)) {
    for (const Instruction& i : p.instructions) {
      if (i.opcode != Opcode::collective || i.name != "reduce_scatter h.1.fc2.matmul") continue;
      CHECK(i.inputs[0].shape == Shape{48 * 12 * 24});
      CHECK(i.outputs[0].shape == Shape{48, 6, 24});
    }
  }
}

TEST_CASE("gradients of q, k and v are added before they are summed over ranks") {
  const Job plain = transformer_job(2, {whole_norms(2)});
  CHECK(reason(plain, "h.0.ln1").ends_with("; terms of its gradient are added before all_reduce"));
  const Job cut = transformer_job(2, {sequence_norms(2)});
  CHECK(reason(cut, "h.0.ln1").ends_with("; terms of its gradient are added before reduce_scatter"));
}

TEST_CASE("a residual crosses a stage border once in each direction") {
  for (const std::string& cuts : {whole_norms(2), sequence_norms(2)}) {
    const Job j = transformer_job(4, {cuts, kStages, kStageOfBlocks});
    const Moved m = moved(j);
    CHECK(m.sends == std::vector<std::string>{"send h.0.sum2", "send grad.h.0.sum2"});
    CHECK(m.units == doctest::Approx(8 * kBlocks).epsilon(0.01));
    CHECK(reason(j, "h.0.sum2").ends_with("; terms of its gradient are added in stage 1"));
  }
}

TEST_CASE("recompute of whole blocks moves nothing again, and still takes less memory") {
  for (const std::string& cuts : {whole_norms(2), sequence_norms(2)}) {
    const Job kept = transformer_job(2, {cuts}), again = transformer_job(2, {cuts, kRecompute});
    CHECK(text(moved(again).calls) == text(moved(kept).calls));
    CHECK(activations(again) < 0.6 * activations(kept));
    CHECK(reason(again, "h.0.proj").find("; recompute keeps the result of ") != std::string::npos);
  }
}

TEST_CASE("recompute keeps what is small next to what it saves: on 4 ranks one gathered tensor of two") {
  const Job kept = transformer_job(4, {sequence_norms(4)}), again = transformer_job(4, {sequence_norms(4), kRecompute});
  CHECK(text(moved(again).calls) == "10 all_gather, 8 reduce_scatter");
  int repeated = 0;
  for (const LayerPlan& layer : again.plan.layers)
    repeated += layer.reason.find("; recompute repeats all_gather") != std::string::npos;
  CHECK(repeated == 2);  // the plan says which, one in each block
  CHECK(activations(again) < 0.6 * activations(kept));
}
