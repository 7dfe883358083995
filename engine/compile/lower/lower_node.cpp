// Emits the instructions of one node of the graph on one micro-batch.
#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/moe/token_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/plan/per_rank.h"
#include "engine/plan/row_exchange.h"
#include "engine/plan/token_exchange.h"

namespace trainctl {
namespace {

/// Returns a view of the same bytes with another shape. Emits no instruction.
View reshaped(View view, const Operand& as) {
  check(as.bytes() == view.operand.bytes(), "a reshape keeps this rank's elements: " + as.tensor);
  view.operand.shape = as.shape;
  view.operand.global_shape = as.global_shape;
  view.operand.global_offset = as.global_offset;
  return view;
}

/// Returns the place of the loss or of a metric in the program's sums, to which all micro-batches are added.
View step_sum(const Lowering& l, TensorId tensor) {
  const int place = l.c.graph.reported_place(tensor);
  View view =
      l.c.flat(l.c.loss, place, 1, place == 0 ? "loss" : l.c.graph.metrics[static_cast<size_t>(place) - 1].name);
  view.operand.accumulate = l.task.micro_batch > l.c.plan.first_micro_batch(l.c.rank_in_stage);
  return view;
}

/// True if the tensor is a loss or metric that only the step's sum reads.
bool only_summed(const Lowering& l, TensorId tensor) {
  return l.c.graph.reported_place(tensor) >= 0 && l.num_consumers[tensor] == 0 && !l.printed[tensor];
}

void add_to_step(Lowering& l, TensorId tensor, const OpDef& op) {
  if (only_summed(l, tensor) && (op.kernel.accumulates & 1u)) return;  // the kernel adds directly to the step's sum
  const View& made = l.have(tensor).front().view;
  const View sum = step_sum(l, tensor);
  const std::string& name = sum.operand.tensor;
  if (sum.operand.accumulate) return l.emit_kernel("accumulate " + name, accumulate_kernel, {}, {made}, {sum});
  l.emit_kernel("copy " + name, copy_slice_kernel, copy_of(1), {made}, {sum});
}

/// Emits instructions that print the whole values of the node's outputs, if the job prints them.
void print(Lowering& l, const Node& node) {
  for (TensorId tensor : node.outputs) {
    if (!l.printed[tensor]) continue;
    Layout whole = l.layout(l.have(tensor).front().layout);
    whole.partial.clear();
    View view = bring(l, tensor, l.id(whole));
    Instruction i;
    i.opcode = Opcode::print;
    i.op = l.c.graph.tensors[tensor].name;
    i.name = "print " + i.op;
    view.operand.tensor = i.op;
    l.emit(std::move(i), {view}, {});
  }
}

class NodeLowering {
 public:
  NodeLowering(Lowering& l, NodeId id) : l_(l), id_(id), node_(l.c.graph.nodes[id]), op_(get_op(node_.op)) {}

  /// Emits the instructions of the node: its redistributed inputs, its kernel (or the exchange that replaces it), and
  /// what its readers need.
  void lower() {
    check(!l_.recomputing || op_.kernel.updates_input == 0, "running statistics are updated once: " + node_.name);
    if (exchanges_keys(l_.c.graph, l_.c.plan, node_)) {
      exchange_keys(l_, id_);
      direct_.assign(node_.outputs.size(), false);
      return finish();
    }
    if (!token_exchange_axes(l_.c.graph, l_.c.plan, node_).empty()) {
      if (l_.begun_exchanges.erase(id_) == 0) {
        if (node_.phase == Phase::backward) bring_kept();  // a recomputed layer sends its tokens again
        begin_token_exchange(l_, id_);
      }
      direct_ = finish_token_exchange(l_, id_);
      return finish();
    }
    std::vector<View> inputs;
    inputs.reserve(node_.inputs.size());
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      inputs.push_back(bring(l_, node_.inputs[i], l_.node_inputs[id_][i], input_format(i)));
    }
    if (op_.is_view) {
      const Operand as = l_.c.operand(node_.outputs[0], l_.layout(l_.node_outputs[id_][0]));
      keep(0, reshaped(std::move(inputs[0]), as));
      direct_.assign(1, false);
    } else {
      run(std::move(inputs));
    }
    finish();
  }

 private:
  /// Brings the operands of the forward node that a gradient of experts reads.
  void bring_kept() {
    const size_t kept = expert_operands(node_)->kept();
    bring(l_, node_.inputs[kept], l_.node_inputs[id_][kept]);
  }

  void finish() {
    if (l_.recomputing) return;
    contribute(l_, id_, direct_);
    print(l_, node_);
    send_outputs(l_, node_);
  }

  const std::optional<ChannelsLast>& form() const { return l_.c.forms[static_cast<size_t>(id_)]; }
  Format input_format(size_t i) const {
    return form() && form()->has_input(i) ? Format::channels_last : Format::declared;
  }

  /// Emits the kernel or collective of the node on these inputs, and keeps its outputs for later readers.
  void run(std::vector<View> inputs) {
    const KernelDef* kernel = &op_.kernel;
    if (!inner_axes(l_.c.graph, l_.c.plan, node_).empty()) {
      inputs.push_back(gathered_statistics(l_, id_, inputs));
      kernel = op_.inner_sum->apply;
    }
    std::vector<View> outputs = places();
    const bool is_reported = !node_.outputs.empty() && l_.c.graph.reported_place(node_.outputs[0]) >= 0;
    const bool idle = is_reported && only_summed(l_, node_.outputs[0]) && !counts_loss(l_);
    if (op_.collective) {
      lower_layer_collective(l_, node_, inputs[0], outputs[0]);
    } else if (!idle) {
      l_.emit_kernel(node_.name, *kernel, attrs(), placed(std::move(inputs)), placed(outputs));
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!direct_[o]) keep(o, std::move(outputs[o]));
    }
    if (is_reported && counts_loss(l_)) add_to_step(l_, node_.outputs[0], op_);
  }

  /// The attrs of the kernel. The plan decides whether a product may round its factors to 8 bits, so this is recorded
  /// here.
  Attrs attrs() const {
    Attrs attrs = form() ? form()->attrs : node_.attrs;
    if (op_.kernel.is_product && l_.c.plan.numerics.precision == Precision::tf32) attrs.set("tf32", true);
    if (op_.kernel.is_product && l_.narrow[static_cast<size_t>(node_.layer)]) attrs.set("fp8", true);
    if (attrs.flag(kPerRank)) {
      attrs.set("count", attrs.integer("count") / shards_of_statistics(l_.c.graph, l_.c.plan, node_));
      attrs.erase(kPerRank);
    }
    return attrs;
  }

  /// In hybrid_parallel, positions in attrs (such as the start of a slice) refer to this rank's shards. Returns the
  /// operands with global shapes that make kernels take them so.
  std::vector<View> placed(std::vector<View> operands) const {
    if (!l_.c.plan.hybrid() || !op_.attrs_name_places) return operands;
    for (View& view : operands) {
      view.operand.global_shape = view.operand.shape;
      view.operand.global_offset.assign(view.operand.shape.size(), 0);
    }
    return operands;
  }

  /// Returns where each output is written: a new buffer, or the range of a sum to which it is added.
  std::vector<View> places() {
    std::vector<View> outputs;
    for (size_t o = 0; o < node_.outputs.size(); ++o) {
      const TensorId tensor = node_.outputs[o];
      const auto gradient = op_.collective ? std::nullopt : gradient_target(l_, id_, static_cast<int>(o));
      const bool is_sum = only_summed(l_, tensor) && (op_.kernel.accumulates & 1u);
      direct_.push_back(gradient.has_value());
      outputs.push_back(gradient ? *gradient
                        : is_sum ? step_sum(l_, tensor)
                                 : l_.new_tensor(tensor, l_.node_outputs[id_][o]));
    }
    return outputs;
  }

  void keep(size_t output, View view) {
    l_.have(node_.outputs[output]).push_back({l_.node_outputs[id_][output], std::move(view)});
  }

  Lowering& l_;
  const NodeId id_;
  const Node& node_;
  const OpDef& op_;
  std::vector<bool> direct_;  // by output: already added to its bucket
};

}  // namespace

void lower_node(Lowering& l, NodeId node) { NodeLowering(l, node).lower(); }

}  // namespace trainctl
