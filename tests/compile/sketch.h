// Writes graphs, plans and programs by hand, for the compiler's tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/compile/program.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// Builds a graph node by node; rules are in letters, which are the factors of the layer.
class GraphSketch {
 public:
  Graph graph;

  TensorId tensor(std::string name, Shape shape, TensorKind kind);
  /// A layer whose factors are named by letters: layer("layer1", {{"n", 8}, {"o", 4}}).
  void layer(std::string name, std::vector<std::pair<std::string, int64_t>> factors);
  /// A node of the last layer. Its output has the name of the node, or "grad.…" as given.
  TensorId node(std::string op, std::string rule, std::vector<TensorId> inputs, std::string output, Phase phase,
                Attrs attrs = {});

 private:
  Shape shape_of(const TensorRule& rule) const;
};

/// data [n, 4·…] -> dense -> relu -> dense -> relu … -> dense [n, 1] -> mae, with backward and updates.
/// `units` are those of the hidden layers, `in` the input features. Layers "layer1", "relu1", "layer2" … "loss".
Graph mlp_graph(int64_t batch, int64_t in, const std::vector<int64_t>& units);

/// A plan that cuts the batch factor "n" over all axes of the mesh; layers are assigned to stages in order.
Plan data_parallel_plan(const Graph& graph, int ranks, int stages = 1, int micro_batches = 1);

/// Programs of all ranks, as from compile_all.
std::vector<Program> programs_of(const Graph& graph, Plan plan, const JobSpec& spec = {});

/// Collectives of one purpose in a program.
std::vector<const Instruction*> collectives(const Program& program, Purpose purpose);
/// Indices of the instructions with this opcode and, if given, this name.
std::vector<int> find_all(const Program& program, Opcode opcode, std::string_view name = "");
/// Moves an instruction to another index. Waits are adjusted; those that would wait for a later instruction are
/// dropped.
void move_instruction(Program& program, int from, int to);

}  // namespace trainctl
