// Groups, buffers and operands of one rank's program during compilation.
#include "engine/compile/compiler.h"

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/compile/parameter_optimizer.h"
#include "engine/plan/served.h"

namespace trainctl {

Compiler::Compiler(const Graph& g, const Plan& p, const CostModel& c, int of_rank, const EvaluationOf* of)
    : graph(g),
      trained(of != nullptr ? of->trained : g),
      keeps_training_state(of == nullptr || of->beside_training),
      only(of != nullptr ? of->only : EvaluationOf::Only::none),
      plan(p),
      cost(c),
      rank(of_rank),
      server(of_rank < p.ranks ? -1 : of_rank - p.ranks),
      stage(is_server() ? -1 : of_rank / p.mesh.size()),
      rank_in_stage(is_server() ? 0 : of_rank % p.mesh.size()),
      formats(g.tensors.size(), Format::declared),
      forms(g.nodes.size()),
      variables(g.tensors.size(), -1) {
  check(rank >= 0 && rank < plan.processes() && plan.ranks == plan.num_stages * plan.mesh.size(),
        "the rank must belong to the plan");
  for (int group = -1; group < static_cast<int>(p.numerics.optimizer.groups.size()); ++group)
    optimizers.push_back(trainctl::optimizer_of(p.numerics.optimizer, group, false));
  for (int group = -1; get_optimizer(p.numerics.optimizer.type).companion != nullptr &&
                       group < static_cast<int>(p.numerics.optimizer.groups.size());
       ++group)
    companions.push_back(trainctl::optimizer_of(p.numerics.optimizer, group, true));
  program.rank = rank;
  program.server = server;
  program.stage = is_server() ? 0 : stage;
  program.chunks = plan.chunks;
  program.rank_in_stage = rank_in_stage;
  program.replicas = plan.replicas;
}

int Compiler::group_of(const std::vector<int>& ranks) {
  check(std::find(ranks.begin(), ranks.end(), rank) != ranks.end(), "a rank must be a member of each of its groups");
  const auto found = std::find(program.groups.begin(), program.groups.end(), ranks);
  if (found == program.groups.end()) {
    program.groups.push_back(ranks);
    return static_cast<int>(program.groups.size()) - 1;
  }
  return static_cast<int>(found - program.groups.begin());
}

std::vector<int> Compiler::all_ranks() const {
  std::vector<int> ranks(static_cast<size_t>(serves_tables_alone(plan) ? plan.ranks : plan.processes()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

BufferId Compiler::new_buffer(BufferKind kind, int64_t bytes) {
  buffers.push_back({kind, bytes, -1});
  return static_cast<BufferId>(buffers.size()) - 1;
}

void Compiler::emit(Instruction instruction, std::vector<View> inputs, std::vector<View> outputs) {
  VirtualInstruction v;
  v.code = std::move(instruction);
  v.code.inputs.reserve(inputs.size());
  v.code.outputs.reserve(outputs.size());
  v.inputs.reserve(inputs.size());
  v.outputs.reserve(outputs.size());
  for (View& view : inputs) {
    v.inputs.push_back(view.buffer);
    v.code.inputs.push_back(std::move(view.operand));
    v.code.inputs.back().accumulate = false;
  }
  for (View& view : outputs) {
    v.outputs.push_back(view.buffer);
    v.code.outputs.push_back(std::move(view.operand));
  }
  code.push_back(std::move(v));
}

Shape Compiler::local_shape(TensorId tensor, const Layout& layout) const {
  const Shape& shape = graph.tensors[tensor].shape;
  return plan.hybrid() ? shape : layout.local_shape(plan.mesh, shape);
}

Operand Compiler::operand(TensorId tensor, const Layout& layout, Format format) const {
  const Tensor& t = graph.tensors[tensor];
  Operand o;
  o.shape = local_shape(tensor, layout);
  o.dtype = t.dtype;
  o.global_shape = plan.hybrid() ? plan.hybrid_shards.global_shape(tensor, t.shape) : t.shape;
  o.global_offset = plan.hybrid() ? plan.hybrid_shards.offset(tensor, t.shape, rank_in_stage)
                                  : layout.local_offset(plan.mesh, t.shape, rank_in_stage);
  o.tensor = t.name;
  o.format = format;
  for (Shape* shape : {&o.shape, &o.global_shape, &o.global_offset}) *shape = stored_shape(*shape, format);
  return o;
}

View Compiler::own_part(View part, OwnPart kind, int64_t whole, int64_t first) {
  part.operand.own = kind;
  part.operand.global_shape = {whole};
  part.operand.global_offset = {first};
  return part;
}

View Compiler::flat(BufferId buffer, int64_t first_element, int64_t elements, std::string name, DType dtype) const {
  Operand o;
  o.offset = first_element * byte_size(dtype);
  o.dtype = dtype;
  o.shape = {elements};
  o.global_shape = {elements};
  o.global_offset = {0};
  o.tensor = std::move(name);
  return {buffer, std::move(o)};
}

}  // namespace trainctl
