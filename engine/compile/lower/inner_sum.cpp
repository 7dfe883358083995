// The statistics of an op whose inner dim is cut (OpDef::inner_sum), as instructions:
//
//   part of x [rows, d/p] -> stats -> [rows, k] -> all_gather -> [p, rows, k]             then apply, in lower_node
//   part of x [rows, d/p] -> stats -> [p, rows, m] -> all_to_all -> [p, rows, m]          where blocks are exchanged
#include <algorithm>

#include "engine/compile/lower/lowering.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

class InnerSumLowering {
 public:
  InnerSumLowering(Lowering& l, const Node& node, const std::optional<ChannelsLast>& form,
                   const std::vector<View>& inputs)
      : l_(l), node_(node), inner_(*get_op(node.op).inner_sum), form_(form), inputs_(inputs) {
    axes_ = inner_axes(l.c.graph, l.c.plan, node);
    if (inner_.reads > 0) inputs_.resize(inner_.reads);
  }

  View lower() { return inner_.block != nullptr ? exchange() : gather(); }

 private:
  /// Emits the statistics of this rank's shard, and their all_gather. Returns the statistics of all shards.
  View gather() {
    const std::string name = node_.name + ".stats";
    std::vector<TensorInfo> infos;
    for (const View& view : inputs_) infos.push_back({view.operand.shape, view.operand.dtype});
    Shape shape = inner_.shape(infos, attrs());
    const View part = l_.new_value(BufferKind::scratch, shape, DType::f32, name);
    shape.insert(shape.begin(), parts());
    View all = l_.new_value(BufferKind::activation, std::move(shape), DType::f32, name);
    emit(Collective::all_gather, name, part, all, Purpose::statistics);
    return all;
  }

  /// Emits the blocks that this rank sends to the others, and their all_to_all. Returns the received blocks.
  View exchange() {
    const std::string name = node_.name + ".blocks";
    Shape shape = inner_.block(with_whole_inner_dims(), attrs(), parts());
    shape.insert(shape.begin(), parts());
    const DType dtype = inputs_[0].operand.dtype;
    const View sent = l_.new_value(BufferKind::scratch, shape, dtype, name);
    View received = l_.new_value(BufferKind::activation, std::move(shape), dtype, name);
    emit(Collective::all_to_all, name, sent, received, Purpose::redistribute);
    return received;
  }

  const Attrs& attrs() const { return form_ ? form_->attrs : node_.attrs; }
  int64_t parts() const { return l_.c.plan.mesh.ways(axes_); }

  /// The inputs, with the dims that the kernel sums over as large as in the whole tensor.
  std::vector<TensorInfo> with_whole_inner_dims() const {
    const std::vector<Factor>& factors = l_.c.graph.layers[node_.layer].factors;
    const std::vector<int>& inner = node_.rule.inner;
    std::vector<TensorInfo> infos;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Operand& operand = inputs_[i].operand;
      infos.push_back({operand.shape, operand.dtype});
      for (size_t d = 0; d < operand.shape.size(); ++d) {
        const int factor = cut_factor(node_.rule.inputs[i][d], factors);
        if (std::find(inner.begin(), inner.end(), factor) == inner.end()) continue;
        const Format format = form_ && form_->has_input(i) ? Format::channels_last : Format::declared;
        const auto at = static_cast<size_t>(stored_dim(static_cast<int>(d), format));
        infos[i].shape[at] = operand.global_shape[at];
      }
    }
    return infos;
  }

  void emit(Collective kind, const std::string& name, const View& part, const View& all, Purpose purpose) {
    l_.emit_kernel(name, *inner_.stats, attrs(), inputs_, {part}, purpose);
    std::vector<int> ranks = l_.c.plan.mesh.group(l_.c.rank_in_stage, axes_);
    for (int& rank : ranks) rank = l_.c.global_rank(l_.c.stage, rank);
    l_.emit_collective(std::string(to_string(kind)) + " " + name, kind, l_.c.group_of(ranks), part, all, purpose);
  }

  Lowering& l_;
  const Node& node_;
  const InnerSum& inner_;
  const std::optional<ChannelsLast>& form_;  ///< how the node takes images
  std::vector<View> inputs_;
  Axes axes_;
};

/// Returns whether both nodes read their inputs in the same layouts.
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
  known.emplace_back(id, InnerSumLowering(l, node, l.c.forms[static_cast<size_t>(id)], inputs).lower());
  return known.back().second;
}

}  // namespace trainctl
