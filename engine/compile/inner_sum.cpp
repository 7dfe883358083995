// The statistics of an op whose inner dim is cut (OpDef::inner_sum), as instructions:
//
//   part of x [rows, d/p] -> stats -> [rows, k] -> all_gather -> [p, rows, k]     then apply, in lower_node
#include <algorithm>

#include "engine/compile/lowering.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

View new_statistics(Lowering& l, BufferKind kind, Shape shape, std::string name) {
  Operand operand;
  operand.global_offset.assign(shape.size(), 0);
  operand.global_shape = operand.shape = std::move(shape);
  operand.tensor = std::move(name);
  return {l.c.new_buffer(kind, operand.bytes()), std::move(operand)};
}

View gather(Lowering& l, const Node& node, const std::vector<View>& inputs) {
  const InnerSum& inner = *get_op(node.op).inner_sum;
  const Axes axes = inner_axes(l.c.graph, l.c.plan, node);
  const size_t reads = inner.reads > 0 ? inner.reads : inputs.size();
  const std::vector<View> read(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(reads));
  std::vector<TensorInfo> infos;
  for (const View& view : read) infos.push_back({view.operand.shape, view.operand.dtype});

  const std::string name = node.name + ".stats";
  Shape shape = inner.shape(infos, node.attrs);
  const View part = new_statistics(l, BufferKind::scratch, shape, name);
  l.emit_kernel(name, *inner.stats, node.attrs, read, {part}, Purpose::statistics);

  shape.insert(shape.begin(), l.c.plan.mesh.ways(axes));
  View all = new_statistics(l, BufferKind::activation, std::move(shape), name);
  std::vector<int> ranks = l.c.plan.mesh.group(l.c.rank_in_stage, axes);
  for (int& rank : ranks) rank = l.c.global_rank(l.c.stage, rank);
  l.emit_collective("all_gather " + name, Collective::all_gather, l.c.group_of(ranks), part, all, Purpose::statistics);
  return all;
}

/// In the same layouts.
bool read_alike(const Lowering& l, NodeId a, NodeId b) {
  const std::vector<LayoutId>&of_a = l.node_inputs[a], &of_b = l.node_inputs[b];
  const size_t reads = get_op(l.c.graph.nodes[a].op).inner_sum->reads;
  return reads == 0 ? of_a == of_b
                    : std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(reads), of_b.begin());
}

}  // namespace

View gathered_statistics(Lowering& l, NodeId id, const std::vector<View>& inputs) {
  const Node& node = l.c.graph.nodes[id];
  auto& known = l.statistics[l.slot()];
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& of) {
    return of.first == id || (share_statistics(l.c.graph.nodes[of.first], node) && read_alike(l, of.first, id));
  });
  if (found != known.end()) return found->second;
  known.emplace_back(id, gather(l, node, inputs));
  return known.back().second;
}

}  // namespace trainctl
