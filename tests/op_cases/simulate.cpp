// Runs the nodes of a graph on simulated ranks. The rule of a node determines the slices: a dim is cut into as many
// parts as its cut factor. If an inner factor is cut, the ranks of a group compute the statistics of their slices,
// gather them, and apply them, as compiled programs do.
#include "tests/op_cases/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/random.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// The index of this rank's block in each factor. Ranks enumerate the factors; the last factor changes fastest.
std::vector<int> coordinates(int rank, const Cuts& cuts) {
  std::vector<int> at(cuts.size());
  for (size_t f = cuts.size(); f-- > 0;) {
    at[f] = rank % cuts[f];
    rank /= cuts[f];
  }
  return at;
}

int num_ranks(const Cuts& cuts) { return std::accumulate(cuts.begin(), cuts.end(), 1, std::multiplies<>()); }

/// One operand of one rank: memory with the values of its slice.
struct Slice {
  TensorArg arg;
  std::vector<std::byte> memory;

  double get(size_t i) const {
    if (arg.dtype == DType::i32) return arg.as<int32_t>()[i];
    if (arg.dtype == DType::f32) return double{arg.as<float>()[i]};
    float value = 0;
    halves_to_floats(arg.dtype, arg.as<uint16_t>() + i, 1, &value);
    return double{value};
  }
  void set(size_t i, double value) {
    if (arg.dtype == DType::i32) {
      arg.as<int32_t>()[i] = static_cast<int32_t>(value);
    } else if (arg.dtype == DType::f32) {
      arg.as<float>()[i] = static_cast<float>(value);
    } else {
      const auto narrow = static_cast<float>(value);
      floats_to_halves(arg.dtype, &narrow, 1, arg.as<uint16_t>() + i);
    }
  }
};

/// A rank's part of a tensor, in memory that is filled with NaN.
Slice make_slice(const Tensor& tensor, const TensorRule& rule, const Layer& layer, const Cuts& cuts, int rank) {
  const std::vector<int> at = coordinates(rank, cuts);
  Slice slice;
  slice.arg.dtype = tensor.dtype;
  slice.arg.global_shape = slice.arg.shape = tensor.shape;
  slice.arg.offset.assign(tensor.shape.size(), 0);
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int factor = cut_factor(rule[d], layer.factors);
    if (factor < 0) continue;
    slice.arg.shape[d] /= cuts[factor];
    slice.arg.offset[d] = slice.arg.shape[d] * at[factor];
  }
  constexpr std::byte kNan{0xff};  // all bits set: in f32, bf16 and f16
  slice.memory.assign(static_cast<size_t>(slice.arg.size() * byte_size(tensor.dtype)), kNan);
  slice.arg.data = slice.memory.data();
  return slice;
}

/// Calls f(index in the slice, index in the whole tensor) for each element.
template <class F>
void for_each_element(const TensorArg& arg, F f) {
  for (int64_t i = 0; i < arg.size(); ++i) {
    int64_t rest = i, whole = 0, stride = 1;
    for (size_t d = arg.shape.size(); d-- > 0;) {
      whole += (rest % arg.shape[d] + arg.offset[d]) * stride;
      rest /= arg.shape[d];
      stride *= arg.global_shape[d];
    }
    f(static_cast<size_t>(i), static_cast<size_t>(whole));
  }
}

void scatter(const std::vector<double>& whole, Slice& slice) {
  check(!whole.empty(), "a node reads a tensor that nothing made");
  for_each_element(slice.arg, [&](size_t i, size_t w) { slice.set(i, whole[w]); });
}

void add_to(const Slice& slice, std::vector<double>& whole) {
  for_each_element(slice.arg, [&](size_t i, size_t w) { whole[w] += slice.get(i); });
}

bool has_factor(const TensorRule& rule, int factor, const Layer& layer) {
  return std::any_of(rule.begin(), rule.end(),
                     [&](const DimRule& dim) { return cut_factor(dim, layer.factors) == factor; });
}

bool is_inner(const Node& node, size_t factor) {
  const std::vector<int>& inner = node.rule.inner;
  return std::find(inner.begin(), inner.end(), static_cast<int>(factor)) != inner.end();
}

bool cuts_inner(const Node& node, const Cuts& cuts) {
  return std::any_of(node.rule.inner.begin(), node.rule.inner.end(), [&](int factor) { return cuts[factor] > 1; });
}

/// The ranks that differ from `rank` only in inner factors, in order.
std::vector<int> sharing_rows(const Node& node, const Cuts& cuts, int rank) {
  const std::vector<int> own = coordinates(rank, cuts);
  std::vector<int> group;
  for (int other = 0; other < num_ranks(cuts); ++other) {
    const std::vector<int> at = coordinates(other, cuts);
    bool same = true;
    for (size_t f = 0; f < cuts.size(); ++f) same = same && (is_inner(node, f) || at[f] == own[f]);
    if (same) group.push_back(other);
  }
  return group;
}

/// Returns whether this rank's part of an output counts. If several ranks have the same part, only the first of them
/// counts. Ranks that differ in a factor that only inputs have hold terms of a sum, so each of them counts.
bool counts(const Node& node, const TensorRule& output, const Layer& layer, const Cuts& cuts, int rank) {
  const std::vector<int> at = coordinates(rank, cuts);
  for (size_t f = 0; f < cuts.size(); ++f) {
    const int factor = static_cast<int>(f);
    if (at[f] == 0 || has_factor(output, factor, layer)) continue;
    if (is_inner(node, f)) return false;
    const bool contracted = std::any_of(node.rule.inputs.begin(), node.rule.inputs.end(),
                                        [&](const TensorRule& input) { return has_factor(input, factor, layer); });
    if (!contracted) return false;
  }
  return true;
}

/// Returns whether this rank is the first of the ranks that have the same shard of a state. Each of these ranks updates
/// its own copy.
bool is_first_copy(const TensorRule& state, const Layer& layer, const Cuts& cuts, int rank) {
  const std::vector<int> at = coordinates(rank, cuts);
  for (size_t f = 0; f < cuts.size(); ++f)
    if (at[f] != 0 && !has_factor(state, static_cast<int>(f), layer)) return false;
  return true;
}

bool can_share(const Node& node, const KernelDef& kernel, const Graph& graph) {
  const InPlace in_place = kernel.in_place;
  if (in_place == InPlace::no) return false;
  check(in_place == InPlace::first_on_first, "ops work in place on their first input alone");
  const Tensor &in = graph.tensors[node.inputs[0]], &out = graph.tensors[node.outputs[0]];
  return num_elements(in.shape) == num_elements(out.shape) && in.dtype == out.dtype;
}

/// Runs a kernel of one node on one rank. Inputs that the kernel updates are changed in `in`.
void run_rank(const Node& node, const KernelDef& kernel, std::vector<Slice>& in, std::vector<Slice>& out,
              const Graph& graph, const RunOptions& options) {
  const StepScalars scalars{.step = kCaseStep};
  KernelCall call{.attrs = node.attrs, .scalars = &scalars, .micro_batch = kCaseMicroBatch, .seed = kCaseSeed};
  call.threads = options.threads;
  if (options.in_place && can_share(node, kernel, graph)) {
    out[0].memory = in[0].memory;
    out[0].arg.data = out[0].memory.data();
    in[0].arg.data = out[0].memory.data();
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (!options.accumulate || (kernel.accumulates >> i & 1) == 0) continue;
    out[i].arg.accumulate = true;
    for (size_t e = 0; e < static_cast<size_t>(out[i].arg.size()); ++e) out[i].set(e, double{kBefore});
  }
  for (const Slice& s : in) call.in.push_back(s.arg);
  for (const Slice& s : out) call.out.push_back(s.arg);
  options.device->prepare(kernel.name, call)();
}

Slice whole_slice(Shape shape, DType dtype) {
  Slice slice;
  slice.arg.dtype = dtype;
  slice.arg.offset.assign(shape.size(), 0);
  slice.arg.global_shape = slice.arg.shape = std::move(shape);
  slice.memory.resize(static_cast<size_t>(slice.arg.size() * byte_size(dtype)));
  slice.arg.data = slice.memory.data();
  return slice;
}

std::vector<Slice> inputs_of_rank(const Graph& graph, const Node& node, const Cuts& cuts, const Values& values,
                                  int rank) {
  std::vector<Slice> in;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    in.push_back(make_slice(graph.tensors[node.inputs[i]], node.rule.inputs[i], graph.layers[node.layer], cuts, rank));
    scatter(values[node.inputs[i]], in.back());
  }
  return in;
}

/// The shapes and types of a rank's slices. Dims of inner factors are whole if the ranks exchange blocks.
std::vector<TensorInfo> infos_of(const Graph& graph, const Node& node, const std::vector<Slice>& in, bool whole_inner) {
  std::vector<TensorInfo> infos;
  for (size_t i = 0; i < in.size(); ++i) {
    const TensorArg& arg = in[i].arg;
    infos.push_back({arg.shape, arg.dtype});
    for (size_t d = 0; d < arg.shape.size() && whole_inner; ++d) {
      const int factor = cut_factor(node.rule.inputs[i][d], graph.layers[node.layer].factors);
      if (factor >= 0 && is_inner(node, static_cast<size_t>(factor))) infos[i].shape[d] = arg.global_shape[d];
    }
  }
  return infos;
}

/// Returns the data that `rank` receives: from an all_gather, the statistics of all parts of its rows; from an
/// all_to_all, the blocks that are meant for it.
Slice gathered_statistics(const Graph& graph, const Node& node, const Cuts& cuts, const Values& values, int rank,
                          const RunOptions& options) {
  const InnerSum& inner = *get_op(node.op).inner_sum;
  const std::vector<int> group = sharing_rows(node, cuts, rank);
  const auto parts = static_cast<int64_t>(group.size());
  const auto own = static_cast<size_t>(std::find(group.begin(), group.end(), rank) - group.begin());
  std::vector<std::byte> all;
  Shape shape;
  DType dtype = DType::f32;
  for (int member : group) {
    std::vector<Slice> in = inputs_of_rank(graph, node, cuts, values, member);
    if (inner.reads > 0) in.resize(inner.reads);
    const std::vector<TensorInfo> infos = infos_of(graph, node, in, inner.block != nullptr);
    shape = inner.block != nullptr ? inner.block(infos, node.attrs, parts) : inner.shape(infos, node.attrs);
    if (inner.block != nullptr) dtype = infos[0].dtype;
    Shape made = shape;
    if (inner.block != nullptr) made.insert(made.begin(), parts);
    std::vector<Slice> out;
    out.push_back(whole_slice(std::move(made), dtype));
    run_rank(node, *inner.stats, in, out, graph, {.threads = options.threads, .device = options.device});
    const std::vector<std::byte>& memory = out[0].memory;
    const size_t size = inner.block != nullptr ? memory.size() / group.size() : memory.size();
    const size_t first = inner.block != nullptr ? own * size : 0;
    all.insert(all.end(), memory.begin() + static_cast<std::ptrdiff_t>(first),
               memory.begin() + static_cast<std::ptrdiff_t>(first + size));
  }
  shape.insert(shape.begin(), parts);
  Slice gathered = whole_slice(shape, dtype);
  check(gathered.memory.size() == all.size(), "each part has as many statistics");
  std::copy(all.begin(), all.end(), gathered.memory.begin());
  return gathered;
}

/// Runs a node on all ranks of a simulated mesh and adds up their outputs.
void run_node(const Graph& graph, const Node& node, const Cuts& cuts, Values& values, const RunOptions& options) {
  const Layer& layer = graph.layers[node.layer];
  const unsigned updates = get_op(node.op).kernel.updates_input;
  Values made(node.outputs.size()), updated(node.inputs.size());
  for (size_t o = 0; o < made.size(); ++o) made[o].resize(num_elements(graph.tensors[node.outputs[o]].shape));
  for (size_t i = 0; i < updated.size(); ++i) updated[i].resize(num_elements(graph.tensors[node.inputs[i]].shape));
  for (int rank = 0; rank < num_ranks(cuts); ++rank) {
    std::vector<Slice> in = inputs_of_rank(graph, node, cuts, values, rank), out;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      out.push_back(make_slice(graph.tensors[node.outputs[o]], node.rule.outputs[o], layer, cuts, rank));
    }
    const bool in_parts = cuts_inner(node, cuts);
    if (in_parts) in.push_back(gathered_statistics(graph, node, cuts, values, rank, options));
    const OpDef& op = get_op(node.op);
    run_rank(node, in_parts ? *op.inner_sum->apply : op.kernel, in, out, graph, options);
    if (in_parts) in.pop_back();
    for (size_t o = 0; o < out.size(); ++o) {
      if (counts(node, node.rule.outputs[o], layer, cuts, rank)) add_to(out[o], made[o]);
    }
    for (size_t i = 0; i < in.size(); ++i) {
      if ((updates >> i & 1) != 0 && is_first_copy(node.rule.inputs[i], layer, cuts, rank)) add_to(in[i], updated[i]);
    }
  }
  for (size_t o = 0; o < made.size(); ++o) values[node.outputs[o]] = std::move(made[o]);
  for (size_t i = 0; i < updated.size(); ++i) {
    if ((updates >> i & 1) != 0) values[node.inputs[i]] = std::move(updated[i]);
  }
}

/// Returns whether the factor is the one that is cut in every dim that contains it.
bool is_major(const Graph& graph, int factor) {
  const auto fits = [&](const TensorRule& rule) {
    return std::all_of(rule.begin(), rule.end(), [&](const DimRule& dim) {
      const bool there = std::find(dim.begin(), dim.end(), factor) != dim.end();
      return !there || cut_factor(dim, graph.layers[0].factors) == factor;
    });
  };
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return std::all_of(node.rule.inputs.begin(), node.rule.inputs.end(), fits) &&
           std::all_of(node.rule.outputs.begin(), node.rule.outputs.end(), fits);
  });
}

}  // namespace

CaseGraph build_case(const OpCase& op_case, bool backward, DType floats) {
  CaseGraph built;
  Graph& graph = built.graph;
  graph.layers.push_back({.name = "layer", .type = op_case.op});
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const CaseInput& in = op_case.inputs[i];
    built.inputs.push_back(static_cast<TensorId>(graph.tensors.size()));
    const bool is_label = !in.differentiable && !in.zeros;  // conditions have the type of what they choose from
    const DType dtype = in.dtype == DType::f32 && !is_label ? floats : in.dtype;
    graph.tensors.push_back({.name = fmt::format("in{}", i), .shape = in.shape, .dtype = dtype});
  }
  LayerBuilder layer(graph, 0);
  if (op_case.build != nullptr) {
    op_case.build(layer, built.inputs, op_case.attrs);
  } else {
    layer.emit(op_case.op, built.inputs, op_case.attrs);
  }
  built.last = static_cast<NodeId>(graph.nodes.size()) - 1;
  built.in_grads.assign(op_case.inputs.size(), -1);
  const Node last = graph.nodes[built.last];
  if (!backward || op_case.fused || get_op(last.op).backward == nullptr) return built;

  built.out_grad = static_cast<TensorId>(graph.tensors.size());
  const Tensor out = graph.tensors[last.outputs[0]];
  graph.tensors.push_back({.name = "dy", .shape = out.shape, .dtype = out.dtype});
  std::vector<TensorId> out_grads(last.outputs.size(), -1);
  out_grads[0] = built.out_grad;
  std::vector<std::string> names;
  for (TensorId input : last.inputs) {
    const bool wanted = input < static_cast<TensorId>(op_case.inputs.size()) && op_case.inputs[input].differentiable;
    names.push_back(wanted ? "grad." + graph.tensors[input].name : "");
  }
  GradBuilder grad(graph, built.last, out_grads, names);
  get_op(last.op).backward(grad);
  for (size_t i = 0; i < last.inputs.size(); ++i) {
    if (last.inputs[i] < static_cast<TensorId>(op_case.inputs.size())) {
      built.in_grads[last.inputs[i]] = grad.in_grads()[i];
    }
  }
  return built;
}

Values initial_values(const OpCase& op_case, const CaseGraph& built) {
  Values values(built.graph.tensors.size());
  for (size_t i = 0; i < op_case.inputs.size(); ++i) values[built.inputs[i]] = case_values(op_case, i);
  for (size_t t = 0; t < built.graph.tensors.size(); ++t) {
    const Tensor& tensor = built.graph.tensors[t];
    if (tensor.kind == TensorKind::state) values[t].assign(num_elements(tensor.shape), tensor.init.value);
  }
  if (built.out_grad >= 0) {
    // A loss has gradient 1 with respect to itself; its backward does not read it.
    const bool loss = built.graph.tensors[built.out_grad].shape == Shape{1};
    auto& dy = values[built.out_grad];
    dy.resize(num_elements(built.graph.tensors[built.out_grad].shape), 1.0);
    for (size_t i = 0; i < dy.size() && !loss; ++i) dy[i] = 2.0 * philox_uniform(kCaseSeed, i, 1) - 1.0;
  }
  for (size_t t = 0; t < values.size(); ++t) {
    const DType dtype = built.graph.tensors[t].dtype;
    if (!is_half(dtype)) continue;
    for (double& v : values[t]) {
      auto rounded = static_cast<float>(v);
      uint16_t half = 0;
      floats_to_halves(dtype, &rounded, 1, &half);
      halves_to_floats(dtype, &half, 1, &rounded);
      v = double{rounded};
    }
  }
  return values;
}

bool can_work_in_place(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const Node& node) { return can_share(node, get_op(node.op).kernel, graph); });
}

bool can_accumulate(const Node& node) { return get_op(node.op).kernel.accumulates != 0; }

Cuts uncut(const Graph& graph) { return Cuts(graph.layers[0].factors.size(), 1); }

std::vector<Cuts> permitted_cuts(const Graph& graph) {
  const std::vector<Factor>& factors = graph.layers[0].factors;
  const auto may_cut = [&](size_t f, int ways) {
    return factors[f].cuttable && factors[f].size % ways == 0 && is_major(graph, static_cast<int>(f));
  };
  std::vector<Cuts> all;
  for (size_t f = 0; f < factors.size(); ++f) {
    for (int ways : {2, 3, 4}) {
      if (!may_cut(f, ways)) continue;
      all.push_back(uncut(graph));
      all.back()[f] = ways;
    }
    for (size_t g = f + 1; g < factors.size(); ++g) {
      if (!may_cut(f, 2) || !may_cut(g, 2)) continue;
      all.push_back(uncut(graph));
      all.back()[f] = all.back()[g] = 2;
    }
  }
  return all;
}

std::string to_string(const Cuts& cuts, const Graph& graph) {
  std::string text;
  for (size_t f = 0; f < cuts.size(); ++f)
    text += fmt::format("{}{}:{}", f > 0 ? " " : "", graph.layers[0].factors[f].name, cuts[f]);
  return text;
}

void run_graph(const Graph& graph, const Cuts& cuts, Values& values, const RunOptions& options) {
  for (const Node& node : graph.nodes) run_node(graph, node, cuts, values, options);
}

void run_reference(const Graph& graph, NodeId last, Values& values) {
  for (NodeId id = 0; id <= last; ++id) {
    const Node& node = graph.nodes[id];
    std::vector<Tensor64> inputs;
    for (TensorId input : node.inputs) inputs.push_back({graph.tensors[input].shape, values[input]});
    const Reference* reference = find_reference(node.op);
    if (reference == nullptr) check(false, "no reference of op " + node.op);
    const std::vector<Tensor64> outputs = reference->run(inputs, node.attrs);
    check(outputs.size() == node.outputs.size(), "the reference makes as many outputs as the op");
    for (size_t o = 0; o < outputs.size(); ++o) values[node.outputs[o]] = outputs[o].values;
  }
}

}  // namespace trainctl
