// Provides a tensor of a micro-batch in the layout that an instruction needs.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/named_ops.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

/// Emits the load of this rank's shard of a data set tensor.
View load(Lowering& l, TensorId tensor, LayoutId layout) {
  const View view = l.new_tensor(tensor, layout);
  Instruction i;
  i.opcode = Opcode::load;
  i.op = view.operand.tensor;
  i.name = "load " + i.op;
  if (!l.row_dims.empty() && l.row_dims[static_cast<size_t>(tensor)] == 1) i.attrs = l.row_order;
  l.emit(std::move(i), {}, {view});
  return view;
}

/// Returns a parameter or state: its persistent buffer, or at level 3 the weights that were gathered for this task.
Located variable_value(Lowering& l, TensorId tensor) {
  const int index = l.c.variable_index(tensor);
  check(index >= 0, "a stage has the variables that its nodes use: " + l.c.graph.tensors[tensor].name);
  const Variable& variable = l.c.program.variables[index];
  const Layout& layout = l.c.variable_plans[index]->layout;
  View view{l.c.states[index], l.c.operand(tensor, layout)};
  view.operand.offset = l.c.state_offsets[index];
  if (variable.bucket >= 0) {
    const bool gathered = l.c.program.buckets[variable.bucket].level == 3;
    if (l.used.insert(variable.bucket).second) {
      gather_in_forward(l, variable.bucket, l.first_readers[tensor]);
      if (l.c.program.buckets[variable.bucket].served) pull(l, variable.bucket);
    }
    view.buffer = gathered ? gathered_weights(l, variable.bucket).buffer : l.c.buckets[variable.bucket].read();
    view.operand.offset = variable.bucket_element * byte_size(view.operand.dtype);
  }
  return {l.id(layout), std::move(view)};
}

/// Runs the node that makes a tensor again, in the backward task that needs the tensor.
void make_again(Lowering& l, TensorId tensor) {
  check(l.task.kind != TaskKind::forward && l.is_recomputed(tensor),
        "only tensors of a recompute layer can be recomputed: " + l.c.graph.tensors[tensor].name);
  const bool outer = l.recomputing;
  l.recomputing = true;
  lower_node(l, l.c.graph.tensors[tensor].producer);
  l.recomputing = outer;
}

/// Ensures that the tensor exists in at least one layout.
void make_available(Lowering& l, TensorId tensor) {
  if (!l.have(tensor).empty()) return;
  const TensorKind kind = l.c.graph.tensors[tensor].kind;
  if (kind == TensorKind::input) {
    const LayoutId layout = l.load_layouts.at(tensor);
    View view = load(l, tensor, layout);
    l.have(tensor).push_back({layout, std::move(view)});
  } else if (kind == TensorKind::parameter || kind == TensorKind::state) {
    Located home = variable_value(l, tensor);
    l.have(tensor).push_back(std::move(home));
  } else if (!receive(l, tensor)) {
    make_again(l, tensor);
  }
}

const Located* find(const std::vector<Located>& values, LayoutId layout, Format format) {
  for (const Located& value : values) {
    if (value.layout == layout && value.view.operand.format == format) return &value;
  }
  return nullptr;
}

/// True if a value in layout `from` can be redistributed to layout `to`. A partial sum may stay partial, but a complete
/// sum never becomes partial again.
bool reaches(const Layout& from, const Layout& to) {
  return std::includes(from.partial.begin(), from.partial.end(), to.partial.begin(), to.partial.end());
}

/// Returns the existing value of the tensor that costs least to redistribute to `layout`. Among equally cheap values,
/// the first one in `format` is preferred.
Located nearest_value(Lowering& l, TensorId tensor, LayoutId layout, Format format) {
  const Located* best = nullptr;
  double best_seconds = 0;
  for (const Located& value : l.have(tensor)) {
    if (!reaches(l.layout(value.layout), l.layout(layout))) continue;
    const double seconds = l.way(tensor, value.layout, layout).seconds;
    const bool same_way = best != nullptr && seconds == best_seconds && best->view.operand.format != format &&
                          value.view.operand.format == format;
    if (best == nullptr || seconds < best_seconds || same_way) best = &value, best_seconds = seconds;
  }
  check(best != nullptr,
        "some layout of a tensor must be convertible to the required one: " + l.c.graph.tensors[tensor].name);
  return *best;
}

/// Keeps only those values of a recomputed tensor that are results of collectives.
void keep_results(const Lowering& l, TensorId tensor, std::vector<Located>& values) {
  const auto kept = l.c.plan.kept.find(tensor);
  if (kept == l.c.plan.kept.end()) return values.clear();
  std::erase_if(values, [&](const Located& value) {
    return std::find(kept->second.begin(), kept->second.end(), l.layout(value.layout)) == kept->second.end();
  });
}

/// Returns the value of a tensor that is never redistributed: the local shard of this rank, if possible in `format`.
Located local_value(Lowering& l, TensorId tensor, Format format) {
  for (const Located& value : l.have(tensor))
    if (value.view.operand.format == format) return value;
  return l.have(tensor).front();
}

/// Emits the transpose of an image to another format. The layout stays the same.
View transposed(Lowering& l, TensorId tensor, const Located& from, Format format) {
  const View& image = from.view;
  if (same_in_both_formats(image.operand.shape, image.operand.format)) {
    View same{image.buffer, l.c.operand(tensor, l.layout(from.layout), format)};
    same.operand.offset = image.operand.offset;
    same.operand.tensor = image.operand.tensor;
    return same;
  }
  const View to = l.new_tensor(tensor, from.layout, format);
  const Ints perm = format == Format::channels_last ? Ints{0, 2, 3, 1} : Ints{0, 3, 1, 2};
  l.emit_kernel("transpose " + to.operand.tensor, transpose_op.kernel, {{"perm", perm}}, {image}, {to});
  return to;
}

}  // namespace

View bring(Lowering& l, TensorId tensor, LayoutId layout, Format format) {
  if (const Located* value = find(l.have(tensor), layout, format)) return value->view;
  make_available(l, tensor);
  if (const Located* value = find(l.have(tensor), layout, format)) return value->view;

  const bool outer = l.recomputing;
  l.recomputing = outer || (l.task.kind != TaskKind::forward && l.is_recomputed(tensor));
  // Tensors that only one rank has are not redistributed.
  Located now =
      l.c.plan.has_local_tensors() ? local_value(l, tensor, format) : nearest_value(l, tensor, layout, format);
  if (!l.c.plan.has_local_tensors()) {
    for (const RedistributionStep& step : l.way(tensor, now.layout, layout).steps) {
      View next = redistribute(l, tensor, now.view, step);
      now = {l.id(step.after), std::move(next)};
      l.have(tensor).push_back(now);
    }
  }
  if (now.view.operand.format != format) {
    now.view = transposed(l, tensor, now, format);
    l.have(tensor).push_back(now);
  }
  l.recomputing = outer;
  return now.view;
}

void forget(Lowering& l) {
  const Pipeline pipeline = l.c.plan.pipeline(l.c.trains());
  const TaskKind last = pipeline.splits_backward() ? TaskKind::weight_gradients : TaskKind::backward;
  const bool all = l.task.kind == last || !l.c.trains();
  std::vector<std::vector<Located>>& values = l.values[l.slot()];
  for (size_t tensor = 0; tensor < values.size(); ++tensor) {
    const auto id = static_cast<TensorId>(tensor);
    const int variable = values[tensor].empty() || l.c.graph.tensors[id].producer >= 0 ? -1 : l.c.variable_index(id);
    const int bucket = variable < 0 ? -1 : l.c.program.variables[variable].bucket;
    const bool gathered = bucket >= 0 && l.c.program.buckets[bucket].level == 3;
    if (gathered)
      values[tensor].clear();
    else if (l.task.kind == TaskKind::forward && l.is_recomputed(id))
      keep_results(l, id, values[tensor]);
  }
  if (all) values = {};
  if (all) l.statistics[l.slot()].clear();
  l.gathered.assign(l.gathered.size(), -1);
}

}  // namespace trainctl
