// Tests of the CUDA kernels of the example plugin (examples/plugin), through the same calls as in a job.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/plugins/check/plugin_case.h"
#include "tests/op_cases/cuda/cuda_device.h"

namespace trainctl {
namespace {

using Operand = std::vector<float>;

const PluginOp& snake() {
  if (find_plugin_kernel("snake") == nullptr)
    add_plugin_op("snake.so", std::string(64, '0'), trainctl_plugin()->ops[0]);
  return *find_plugin_kernel("snake");
}

/// Runs a node and returns its outputs, each element of which is 0.5 before the run.
std::vector<Operand> run_on(const CaseDevice& device, const PluginCase& built, const Node& node,
                            const PluginValues& values, bool adds) {
  std::vector<Operand> in, out;
  for (const TensorId id : node.inputs) in.emplace_back(values[id].begin(), values[id].end());
  for (const TensorId id : node.outputs)
    out.emplace_back(static_cast<size_t>(num_elements(built.graph.tensors[id].shape)), 0.5f);
  const auto args = [&](const std::vector<TensorId>& ids, std::vector<Operand>& memory) {
    std::vector<TensorArg> list;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Shape& shape = built.graph.tensors[ids[i]].shape;
      list.push_back({memory[i].data(), DType::f32, shape, shape, Shape(shape.size(), 0), adds && &memory == &out});
    }
    return list;
  };
  const StepScalars scalars;
  const KernelCall call{
      .in = args(node.inputs, in), .out = args(node.outputs, out), .attrs = node.attrs, .scalars = &scalars};
  device.prepare(node.op, call)();
  return out;
}

void check_node(const PluginCase& built, const Node& node, PluginValues& values, bool adds) {
  const std::vector<Operand> expected = run_on(cpu_device(), built, node, values, adds);
  const std::vector<Operand> got = run_on(cuda_device(), built, node, values, adds);
  for (size_t o = 0; o < expected.size(); ++o) {
    float worst = 0;
    for (size_t i = 0; i < expected[o].size(); ++i) worst = std::max(worst, std::fabs(got[o][i] - expected[o][i]));
    CHECK_MESSAGE(worst < 1e-5f, built.name_of(node.outputs[o]));
    values[node.outputs[o]].assign(expected[o].begin(), expected[o].end());
  }
}

}  // namespace

TEST_CASE("the CUDA kernels of the example plugin give what its CPU kernels give, whichever gradients are wanted") {
  if (!gpu_is_here()) return;
  const PluginOp& op = snake();
  for (int e = 0; e < op.c.num_examples; ++e) {
    for (const unsigned wanted : {1U, 2U, 3U}) {
      const PluginCase built = build_plugin_case(op, op.c.examples[e], wanted);
      PluginValues values = plugin_values(built);
      check_node(built, built.forward, values, false);
      for (const bool adds : {false, true}) check_node(built, built.backward, values, adds);
    }
  }
}

TEST_CASE("an op of a plugin without CUDA kernels has none on a GPU") {
  snake();
  CHECK(find_cuda_kernel("snake") != nullptr);
  CHECK(find_cuda_kernel("snake_grad") != nullptr);
  if (find_plugin_kernel("row_dot") == nullptr)
    add_plugin_op("snake.so", std::string(64, '0'), trainctl_plugin()->ops[1]);
  CHECK(find_cuda_kernel("row_dot") == nullptr);
}

}  // namespace trainctl
