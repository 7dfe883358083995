// Shared by all parts of lower_stage: layout numbers, redistribution paths, and emitting.
#include "engine/compile/lower/lowering.h"

#include <algorithm>

#include "engine/graph/row_dims.h"
#include "engine/ops/row_order.h"
#include "engine/plan/narrow_layers.h"
#include "engine/plan/stages/kept_results.h"

namespace trainctl {
namespace {

/// Returns for each dim the leading axes that both layouts have in common.
Layout common_cuts(const Layout& a, const Layout& b) {
  Layout common = a;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    const auto end = std::mismatch(a.dims[d].begin(), a.dims[d].end(), b.dims[d].begin(), b.dims[d].end()).first;
    common.dims[d].assign(a.dims[d].begin(), end);
  }
  return common;
}

}  // namespace

/// Looks up the layouts of all inputs and outputs of this stage's nodes, and which tensors are loaded and printed.
Lowering::Lowering(Compiler& compiler) : c(compiler) {
  const size_t tensors = c.graph.tensors.size(), nodes = c.graph.nodes.size();
  node_inputs.resize(nodes);
  node_outputs.resize(nodes);
  num_consumers.resize(tensors);
  first_readers.assign(tensors, -1);
  printed.resize(tensors);
  narrow = c.plan.numerics.narrow_layers;
  narrow.resize(c.graph.layers.size());
  const auto slots = static_cast<size_t>(c.plan.chunks * c.plan.micro_batches);
  statistics.resize(slots);
  values.resize(slots);
  tasks_of_nodes = trainctl::tasks_of_nodes(c.graph, c.plan);
  for (TensorId tensor : c.graph.prints) printed[tensor] = true;
  for (size_t n = 0; n < nodes; ++n) {
    const Node& node = c.graph.nodes[n];
    for (TensorId tensor : node.inputs) {
      if (num_consumers[tensor]++ == 0) first_readers[tensor] = node.layer;
    }
    if (c.plan.stage_of(node) != c.stage) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Layout wanted = input_layout(c.graph, c.plan, node, static_cast<int>(i));
      node_inputs[n].push_back(id(wanted));
      if (c.graph.tensors[node.inputs[i]].kind != TensorKind::input) continue;
      const auto [entry, first] = load_layouts.try_emplace(node.inputs[i], node_inputs[n].back());
      if (!first) entry->second = id(common_cuts(layout(entry->second), wanted));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      node_outputs[n].push_back(id(output_layout(c.graph, c.plan, node, static_cast<int>(o))));
    }
  }
  for (const Node& node : c.graph.nodes) {
    if (node.attrs.integer(kRowOrder, 0) <= 1) continue;
    row_order.set(kRowOrder, node.attrs.integer(kRowOrder));
    if (node.attrs.has(kRowGroups)) row_order.set(kRowGroups, node.attrs.integer(kRowGroups));
  }
  if (row_order.has(kRowOrder)) row_dims = trainctl::row_dims(c.graph);
  open_channels(*this);
}

LayoutId Lowering::id(const Layout& layout) {
  const auto [entry, is_new] = ids_.try_emplace(layout, static_cast<LayoutId>(layouts_.size()));
  if (is_new) layouts_.push_back(&entry->first);
  return entry->second;
}

const Way& Lowering::way(TensorId tensor, LayoutId from, LayoutId to) {
  const auto [entry, is_new] = ways_.try_emplace({tensor, from, to});
  Way& way = entry->second;
  if (is_new) {
    const Tensor& t = c.graph.tensors[tensor];
    way.steps = plan_redistribution(c.plan.mesh, t.shape, t.dtype, layout(from), layout(to), c.cost);
    way.seconds = redistribution_seconds(c.plan.mesh, t.shape, t.dtype, way.steps, c.cost);
  }
  return way;
}

bool Lowering::is_recomputed(TensorId tensor) const {
  const NodeId producer = c.graph.tensors[tensor].producer;
  return producer >= 0 && c.plan.virtual_stage_of(c.graph.nodes[producer]) == virtual_stage() &&
         trainctl::is_recomputed(c.graph, c.plan, tensor);
}

void Lowering::emit(Instruction instruction, std::vector<View> inputs, std::vector<View> outputs) {
  instruction.phase = recomputing || task.kind == TaskKind::forward ? Phase::forward : Phase::backward;
  instruction.weight_gradients = task.kind == TaskKind::weight_gradients;
  instruction.micro_batch = task.micro_batch;
  instruction.chunk = task.chunk;
  instruction.recompute = recomputing;
  c.emit(std::move(instruction), std::move(inputs), std::move(outputs));
}

void Lowering::emit_kernel(std::string name, const KernelDef& kernel, Attrs attrs, std::vector<View> inputs,
                           std::vector<View> outputs, Purpose purpose) {
  Instruction i;
  i.name = std::move(name);
  i.op = kernel.name;
  i.attrs = std::move(attrs);
  i.purpose = purpose;
  emit(std::move(i), std::move(inputs), std::move(outputs));
}

void Lowering::emit_collective(std::string name, Collective kind, int group, const View& input, const View& output,
                               Purpose purpose) {
  Instruction i;
  i.opcode = Opcode::collective;
  i.name = std::move(name);
  i.collective = kind;
  i.group = group;
  i.purpose = purpose;
  emit(std::move(i), {input}, {output});
}

Attrs copy_of(int64_t elements) {
  return {{"outer", int64_t{1}}, {"parts", int64_t{1}}, {"index", int64_t{0}}, {"inner", elements}};
}

View Lowering::new_tensor(TensorId tensor, LayoutId layout_id) {
  return new_tensor(tensor, layout_id, c.formats[static_cast<size_t>(tensor)]);
}

View Lowering::new_tensor(TensorId tensor, LayoutId layout_id, Format format) {
  Operand operand = c.operand(tensor, layout(layout_id), format);
  const BufferId buffer = c.new_buffer(BufferKind::activation, operand.bytes());
  return {buffer, std::move(operand)};
}

View Lowering::new_value(BufferKind kind, Shape shape, DType dtype, std::string name) {
  Operand operand;
  operand.dtype = dtype;
  operand.global_offset.assign(shape.size(), 0);
  operand.global_shape = operand.shape = std::move(shape);
  operand.tensor = std::move(name);
  return {c.new_buffer(kind, operand.bytes()), std::move(operand)};
}

}  // namespace trainctl
