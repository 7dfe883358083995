// Runs a node of a plugin on simulated ranks.
#include "engine/ops/plugins/check/plugin_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/error.h"
#include "engine/ops/plugins/plugin_call.h"

namespace trainctl {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr uint64_t kCheckSeed = 77;

int ranks_of(const PluginCuts& cuts) { return std::accumulate(cuts.begin(), cuts.end(), 1, std::multiplies<>()); }

/// A rank's block index in each factor; the last factor is the fastest.
std::vector<int> blocks_of(int rank, const PluginCuts& cuts) {
  std::vector<int> at(cuts.size());
  for (size_t f = cuts.size(); f-- > 0;) {
    at[f] = rank % cuts[f];
    rank /= cuts[f];
  }
  return at;
}

/// One operand of one rank: its elements between guard bytes.
class GuardedOperand {
 public:
  GuardedOperand(const Tensor& tensor, const TensorRule& rule, const Layer& layer, const PluginCuts& cuts,
                 const std::vector<int>& at, std::byte fill)
      : guard_(~fill) {
    arg.dtype = tensor.dtype;
    arg.global_shape = arg.shape = tensor.shape;
    arg.offset.assign(tensor.shape.size(), 0);
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      const int factor = cut_factor(rule[d], layer.factors);
      if (factor < 0) continue;
      arg.shape[d] /= cuts[static_cast<size_t>(factor)];
      arg.offset[d] = arg.shape[d] * at[static_cast<size_t>(factor)];
    }
    bytes_ = static_cast<size_t>(arg.size()) * sizeof(float);
    memory_.assign(bytes_ + 2 * kGuardBytes, guard_);
    std::fill_n(memory_.begin() + kGuardBytes, bytes_, fill);
    arg.data = memory_.data() + kGuardBytes;
  }

  double get(size_t i) const {
    return arg.dtype == DType::i32 ? double(arg.as<int32_t>()[i]) : double{arg.as<float>()[i]};
  }
  void set(size_t i, double value) {
    if (arg.dtype == DType::i32)
      arg.as<int32_t>()[i] = static_cast<int32_t>(value);
    else
      arg.as<float>()[i] = static_cast<float>(value);
  }

  /// Calls f(index here, index in the whole tensor).
  template <class F>
  void for_each(F f) const {
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

  /// Says which guard bytes were overwritten ("after the end"); "" if they are intact.
  std::string damage() const {
    const auto changed = [&](std::byte byte) { return byte != guard_; };
    const auto end = memory_.begin() + static_cast<std::ptrdiff_t>(kGuardBytes + bytes_);
    if (std::any_of(end, memory_.end(), changed)) return "after the end";
    return std::any_of(memory_.begin(), memory_.begin() + kGuardBytes, changed) ? "before the beginning" : "";
  }
  void keep() { kept_ = memory_; }
  bool is_as_kept() const { return kept_ == memory_; }

  TensorArg arg;

 private:
  const std::byte guard_;  ///< differs with the poison, so that a kernel which reads it has other results
  size_t bytes_ = 0;
  std::vector<std::byte> memory_, kept_;
};

class NodeOnRanks {
 public:
  NodeOnRanks(const PluginCase& built, const Node& node, const PluginCuts& cuts, const PluginValues& values,
              const PluginRunOptions& options)
      : built_(built), node_(node), layer_(built.graph.layers[0]), cuts_(cuts), values_(values), options_(options) {}

  PluginRun run() {
    for (const TensorId output : node_.outputs)
      run_.results.emplace_back(static_cast<size_t>(num_elements(built_.graph.tensors[output].shape)));
    for (int rank = 0; rank < ranks_of(cuts_); ++rank) run_rank(rank);
    return std::move(run_);
  }

 private:
  std::vector<GuardedOperand> operands(const std::vector<TensorId>& tensors, const std::vector<TensorRule>& rules,
                                       const std::vector<int>& at) const {
    std::vector<GuardedOperand> all;
    all.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      all.emplace_back(built_.graph.tensors[tensors[i]], rules[i], layer_, cuts_, at, options_.poison);
    return all;
  }

  /// Runs the kernel on one rank's parts, and adds its outputs to the whole results.
  void run_rank(int rank) {
    const std::vector<int> at = blocks_of(rank, cuts_);
    std::vector<GuardedOperand> in = operands(node_.inputs, node_.rule.inputs, at);
    std::vector<GuardedOperand> out = operands(node_.outputs, node_.rule.outputs, at);
    for (size_t i = 0; i < in.size(); ++i) {
      const std::vector<double>& whole = values_[node_.inputs[i]];
      check(!whole.empty(), "a node reads a tensor that has values");
      in[i].for_each([&](size_t here, size_t w) { in[i].set(here, whole[w]); });
      in[i].keep();
    }
    if (options_.in_place) out[0].for_each([&](size_t here, size_t) { out[0].set(here, in[0].get(here)); });
    if (options_.adds)
      for (GuardedOperand& each : out) {
        each.arg.accumulate = true;
        each.for_each([&](size_t here, size_t) { each.set(here, double{kPluginBefore}); });
      }
    call_kernel(in, out);
    collect_faults(in, out);
    for (size_t o = 0; o < out.size(); ++o)
      if (counts_on(at, node_.rule.outputs[o]))
        out[o].for_each([&](size_t here, size_t w) { run_.results[o][w] += out[o].get(here); });
  }

  void call_kernel(const std::vector<GuardedOperand>& in, const std::vector<GuardedOperand>& out) const {
    std::vector<TensorArg> ins, outs;
    for (const GuardedOperand& each : in) ins.push_back(each.arg);
    for (const GuardedOperand& each : out) outs.push_back(each.arg);
    if (options_.in_place) ins[0].data = outs[0].data;
    PluginCall call(*built_.op, node_.attrs);
    const bool is_forward = node_.op == built_.op->name;
    if (is_forward)
      call.bind_forward(ins, outs);
    else
      call.bind_backward(ins, outs);
    call.call().threads = options_.threads;
    call.call().seed = kCheckSeed;
    call.set_place(options_.place);
    call.run(is_forward ? PluginFunction::forward : PluginFunction::backward,
             is_forward ? built_.op->c.forward : built_.op->c.backward);
  }

  void collect_faults(const std::vector<GuardedOperand>& in, const std::vector<GuardedOperand>& out) {
    const auto add = [&](const std::string& fault) {
      if (std::ranges::find(run_.faults, fault) == run_.faults.end()) run_.faults.push_back(fault);
    };
    for (size_t o = 0; o < out.size(); ++o)
      if (const std::string where = out[o].damage(); !where.empty())
        add(fmt::format("it writes {} of {}, which has the shape {} on the rank", where,
                        built_.name_of(node_.outputs[o]), to_string(out[o].arg.shape)));
    for (size_t i = 0; i < in.size(); ++i)
      if (!in[i].is_as_kept() && !(options_.in_place && i == 0))
        add(fmt::format("it changes {}, which it may only read", built_.name_of(node_.inputs[i])));
  }

  static bool has(const TensorRule& rule, size_t factor, const Layer& layer) {
    return std::ranges::any_of(
        rule, [&](const DimRule& dim) { return cut_factor(dim, layer.factors) == static_cast<int>(factor); });
  }

  /// True if the output of this rank is added to the whole result. Ranks that differ in a letter that only inputs have
  /// hold terms of a sum, so all of them count. If ranks hold equal copies, only the first counts.
  bool counts_on(const std::vector<int>& at, const TensorRule& output) const {
    for (size_t f = 0; f < at.size(); ++f) {
      if (at[f] == 0 || has(output, f, layer_)) continue;
      if (!std::ranges::any_of(node_.rule.inputs, [&](const TensorRule& rule) { return has(rule, f, layer_); }))
        return false;
    }
    return true;
  }

  const PluginCase& built_;
  const Node& node_;
  const Layer& layer_;
  const PluginCuts& cuts_;
  const PluginValues& values_;
  const PluginRunOptions& options_;
  PluginRun run_;
};

}  // namespace

PluginRun run_plugin_node(const PluginCase& built, const Node& node, const PluginCuts& cuts, const PluginValues& values,
                          const PluginRunOptions& options) {
  return NodeOnRanks(built, node, cuts, values, options).run();
}

std::string element_text(const Shape& shape, size_t element) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = static_cast<int64_t>(element) % shape[d];
    element /= static_cast<size_t>(shape[d]);
  }
  return to_string(index);
}

}  // namespace trainctl
