// Tests the ops of a plugin on CPUs: every legal cut of their examples against one rank, gradients against differences
// of the forward kernel, and what kernels do to memory.
#include "engine/ops/plugins/check/check_plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/plugins/check/plugin_run.h"
#include "engine/ops/plugins/check/plugin_slopes.h"
#include "engine/ops/plugins/plugin_call.h"
#include "engine/ops/plugins/plugin_rule.h"

namespace trainctl {
namespace {

constexpr double kCutTolerance = 1e-4;  // relative to the largest value; sharded sums have another order
constexpr double kSameTolerance = 1e-5;
constexpr std::byte kNanPoison{0xff}, kOtherPoison{0x4b};

/// The element with the largest error, relative to the largest expected value. The error of a NaN is infinite.
struct PluginDifference {
  double relative = 0;
  size_t element = 0;
};
/// Compares results with the expected values element by element.
PluginDifference difference_of(const std::vector<double>& got, const std::vector<double>& expected) {
  double largest = 1e-30, worst = 0;
  PluginDifference found;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(got[i] - expected[i]);
    if (!(off <= worst)) {
      worst = std::isnan(off) ? INFINITY : off;
      found.element = i;
    }
    largest = std::max(largest, std::fabs(expected[i]));
  }
  found.relative = worst / largest;
  return found;
}

class OpCheck {
 public:
  explicit OpCheck(const PluginOp& op) : op_(op) {}

  PluginOpReport run() {
    for (int32_t e = 0; e < op_.c.num_examples && report_.faults.empty(); ++e) {
      example_ = op_.c.num_examples == 1 ? "" : fmt::format("example {}: ", e);
      try {
        check_example(op_.c.examples[e]);
      } catch (const ShapeError& error) {
        const std::string text = error.what(), name = op_.name + ": ";
        fault(text.starts_with(name) ? text.substr(name.size()) : text);
      } catch (const PluginFailure& error) {
        fault(error.what());
      } catch (const EnvError& error) {
        fault(error.what());
      }
    }
    for (const auto& [letter, ways] : letters_)
      report_.cut_letters.push_back(fmt::format("{} {} ways", letter, join({ways.begin(), ways.end()}, ", ")));
    return std::move(report_);
  }

 private:
  void fault(const std::string& what) {
    const std::string text = example_ + what;
    if (std::ranges::find(report_.faults, text) == report_.faults.end()) report_.faults.push_back(text);
  }

  void check_example(const trainctl_example& example) {
    for (int32_t i = 0; i < op_.c.num_inputs; ++i)
      if (op_.c.inputs[i].kind == TRAINCTL_INDICES && example.indices_below < 1)
        return fault(fmt::format("its example needs indices_below, because {} has indices", plugin_operand(op_, i)));
    const PluginCase built = build_plugin_case(op_, example);
    PluginValues values = plugin_values(built);
    // After a fault the next checks would report its consequences.
    for (const Node* node : nodes(built))
      if (!check_memory(built, *node, values)) return;
    if (built.has_backward()) check_gradients(built, values);
    if (!report_.faults.empty()) return;
    for (const Node* node : nodes(built)) check_promises(built, *node, values);
    if (built.has_backward() && built.out_grads.size() > 1) check_unread_outputs(built, values);
    check_costs(built);
    check_cuts(built, values);
  }

  static std::vector<const Node*> nodes(const PluginCase& built) {
    if (!built.has_backward()) return {&built.forward};
    return {&built.forward, &built.backward};
  }

  /// Runs a node on one rank. Returns false after a fault; otherwise `values` has its results.
  bool check_memory(const PluginCase& built, const Node& node, PluginValues& values) {
    const size_t before = report_.faults.size();
    const PluginRun first = run_whole(built, node, values, {.poison = kNanPoison});
    const PluginRun second = run_whole(built, node, values, {.poison = kOtherPoison});
    for (size_t o = 0; o < node.outputs.size(); ++o) compare_poisons(built, node, o, first, second);
    if (report_.faults.size() > before) return false;
    for (size_t o = 0; o < node.outputs.size(); ++o) values[node.outputs[o]] = first.results[o];
    return true;
  }

  /// Checks that results do not depend on the number of threads, and what the flags of the op promise.
  void check_promises(const PluginCase& built, const Node& node, const PluginValues& values) {
    demand_same(built, node, values, {.threads = 3}, "with call->threads = 3");
    const bool is_forward = node.op == op_.name;
    if (is_forward && (op_.c.flags & TRAINCTL_IN_PLACE) != 0)
      demand_same(built, node, values, {.in_place = true}, "with the output in the memory of input 0");
    if (!is_forward && (op_.c.flags & TRAINCTL_ADDS_GRADIENTS) != 0) check_adding(built, values);
  }

  PluginRun run_whole(const PluginCase& built, const Node& node, const PluginValues& values, PluginRunOptions options) {
    return run_cut(built, node, PluginCuts(built.graph.layers[0].factors.size(), 1), values, std::move(options));
  }

  PluginRun run_cut(const PluginCase& built, const Node& node, const PluginCuts& cuts, const PluginValues& values,
                    PluginRunOptions options) {
    PluginRun run = run_plugin_node(built, node, cuts, values, options);
    for (const int ways : cuts) calls_of_run_ *= ways;
    report_.calls += calls_of_run_;
    calls_of_run_ = 1;
    for (const std::string& each : run.faults) fault(function_of(node) + ": " + each);
    return run;
  }

  std::string function_of(const Node& node) const { return node.op == op_.name ? "forward" : "backward"; }

  /// Reports a result that depends on the bytes that were in its memory before the kernel ran.
  void compare_poisons(const PluginCase& built, const Node& node, size_t o, const PluginRun& first,
                       const PluginRun& second) {
    const TensorId tensor = node.outputs[o];
    const std::string name = built.name_of(tensor), what = function_of(node);
    const Shape& shape = built.graph.tensors[tensor].shape;
    size_t stale = 0, nans = 0, first_stale = 0, first_nan = 0;
    for (size_t i = 0; i < first.results[o].size(); ++i) {
      const double a = first.results[o][i], b = second.results[o][i];
      if (std::isnan(a) && std::isnan(b) && nans++ == 0) first_nan = i;
      if (a != b && !(std::isnan(a) && std::isnan(b)) && stale++ == 0) first_stale = i;
    }
    if (stale > 0)
      fault(
          fmt::format("{}: {} elements of {}, the first at {}, depend on what was in its memory before or beside its "
                      "operands, or are not written",
                      what, stale, name, element_text(shape, first_stale)));
    else if (nans > 0)
      fault(fmt::format("{}: {} elements of {}, the first at {}, are NaN", what, nans, name,
                        element_text(shape, first_nan)));
  }

  void demand_same(const PluginCase& built, const Node& node, const PluginValues& values, PluginRunOptions options,
                   const std::string& how) {
    options.place = how;
    const PluginRun run = run_whole(built, node, values, options);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const TensorId tensor = node.outputs[o];
      const PluginDifference off = difference_of(run.results[o], values[tensor]);
      if (!(off.relative <= kSameTolerance))
        fault(fmt::format("{}: {} differs {}: {}", function_of(node), built.name_of(tensor), how,
                          two_values(built, tensor, off.element, run.results[o], values[tensor])));
    }
  }

  static std::string two_values(const PluginCase& built, TensorId tensor, size_t element,
                                const std::vector<double>& got, const std::vector<double>& expected) {
    const std::string value = std::isnan(got[element]) ? "NaN" : fmt::format("{:.6g}", got[element]);
    return fmt::format("element {} is {} instead of {:.6g}", element_text(built.graph.tensors[tensor].shape, element),
                       value, expected[element]);
  }

  void check_adding(const PluginCase& built, const PluginValues& values) {
    const Node& node = built.backward;
    const PluginRun run = run_whole(built, node, values, {.adds = true, .place = "with adds"});
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const TensorId tensor = node.outputs[o];
      std::vector<double> expected = values[tensor];
      for (double& value : expected) value += double{kPluginBefore};
      const PluginDifference off = difference_of(run.results[o], expected);
      if (!(off.relative <= kSameTolerance))
        fault(fmt::format("backward: with adds = 1 and {} in its memory, {}: {}", kPluginBefore, built.name_of(tensor),
                          two_values(built, tensor, off.element, run.results[o], expected)));
    }
  }

  void check_gradients(const PluginCase& built, const PluginValues& values) {
    for (size_t i = 0; i < built.in_grads.size(); ++i) {
      if (built.in_grads[i] < 0) continue;
      check_alone(built, values, i);
      const auto run_forward = [&](const PluginValues& moved) {
        ++report_.calls;
        const PluginCuts whole(built.graph.layers[0].factors.size(), 1);
        return run_plugin_node(built, built.forward, whole, moved, {}).results;
      };
      const PluginSlopes slopes = compare_slopes(built, values, i, run_forward);
      report_.slopes += slopes.compared;
      if (!slopes.fault.empty()) fault("backward: " + slopes.fault);
    }
  }

  /// Checks that gradient i does not change if no other gradient is wanted: the first layer of a network needs only the
  /// gradients of parameters.
  void check_alone(const PluginCase& built, const PluginValues& values, size_t i) {
    const auto wanted = std::ranges::count_if(built.in_grads, [](TensorId id) { return id >= 0; });
    if (wanted < 2) return;
    const PluginCase alone = build_plugin_case(op_, *built.example, 1U << i);
    PluginValues same(alone.graph.tensors.size());
    std::copy_n(values.begin(), static_cast<size_t>(built.out_grads.back()) + 1, same.begin());
    const PluginRun run =
        run_whole(alone, alone.backward, same, {.place = "only " + built.name_of(built.in_grads[i]) + " is wanted"});
    const TensorId tensor = built.in_grads[i];
    const PluginDifference off = difference_of(run.results[0], values[tensor]);
    if (!(off.relative <= kSameTolerance))
      fault(fmt::format("backward: {} differs if no other gradient is wanted: {}", built.name_of(tensor),
                        two_values(built, tensor, off.element, run.results[0], values[tensor])));
  }

  /// An output that nothing reads has no gradient, which counts as 0.
  void check_unread_outputs(const PluginCase& built, const PluginValues& values) {
    for (size_t o = 0; o < built.out_grads.size(); ++o) {
      const PluginCase alone = build_plugin_case(op_, *built.example, ~0U, 1U << o);
      if (!alone.has_backward()) continue;
      PluginValues zeros = values;
      for (size_t other = 0; other < built.out_grads.size(); ++other)
        if (other != o) std::ranges::fill(zeros[built.out_grads[other]], 0.0);
      const std::string how = "with a gradient of " + plugin_operand(op_, op_.operands() + o) + " alone";
      PluginValues expected = values;
      const PluginRun with_zeros = run_whole(built, built.backward, zeros, {.place = how});
      for (size_t k = 0; k < with_zeros.results.size(); ++k)
        expected[built.backward.outputs[k]] = with_zeros.results[k];
      demand_same(alone, alone.backward, expected, {}, how);
    }
  }

  void check_costs(const PluginCase& built) const {
    for (const Node* node : nodes(built)) {
      const auto infos = [&](const std::vector<TensorId>& tensors) {
        std::vector<TensorInfo> all;
        for (const TensorId id : tensors) all.push_back({built.graph.tensors[id].shape, built.graph.tensors[id].dtype});
        return all;
      };
      const OpDef& op = node->op == op_.name ? op_.op : op_.gradient;
      kernel_cost(op.kernel, infos(node->inputs), infos(node->outputs), node->attrs);
    }
  }

  /// Checks shardings: each letter 2, 3 and 4 ways, then pairs of letters that passed alone, 2 ways each.
  void check_cuts(const PluginCase& built, const PluginValues& values) {
    const std::vector<Factor>& factors = built.graph.layers[0].factors;
    std::vector<size_t> right;
    for (size_t f = 0; f < factors.size(); ++f) {
      if (!factors[f].cuttable || !is_major(built, f)) continue;
      bool was_cut = false, is_right = true;
      for (const int ways : {2, 3, 4}) {
        if (factors[f].size % ways != 0) continue;
        was_cut = true;
        letters_[factors[f].name].insert(std::to_string(ways));
        PluginCuts cuts(factors.size(), 1);
        cuts[f] = ways;
        is_right = is_right && check_cut(built, values, cuts);
      }
      if (!was_cut)
        report_.notes.push_back(fmt::format("{}letter '{}' was not cut, because its size {} is no multiple of 2 or 3",
                                            example_, factors[f].name, factors[f].size));
      else if (is_right)
        right.push_back(f);
    }
    for (size_t a = 0; a < right.size(); ++a)
      for (size_t b = a + 1; b < right.size(); ++b) {
        if (factors[right[a]].size % 2 != 0 || factors[right[b]].size % 2 != 0) continue;
        PluginCuts cuts(factors.size(), 1);
        cuts[right[a]] = cuts[right[b]] = 2;
        check_cut(built, values, cuts);
      }
  }

  /// True if the factor is the one that a cut divides in every dim that contains it.
  static bool is_major(const PluginCase& built, size_t f) {
    const std::vector<Factor>& factors = built.graph.layers[0].factors;
    const auto fits = [&](const TensorRule& rule) {
      return std::ranges::all_of(rule, [&](const DimRule& dim) {
        return std::ranges::find(dim, static_cast<int>(f)) == dim.end() ||
               cut_factor(dim, factors) == static_cast<int>(f);
      });
    };
    return std::ranges::all_of(built.forward.rule.inputs, fits) &&
           std::ranges::all_of(built.forward.rule.outputs, fits);
  }

  bool check_cut(const PluginCase& built, const PluginValues& values, const PluginCuts& cuts) {
    ++report_.cuts;
    const std::string place = cut_text(built, cuts);
    bool is_right = true;
    for (const Node* node : nodes(built)) {
      if (!is_right) break;  // the gradients follow the same rule, so they would be wrong too
      const PluginRun run = run_cut(built, *node, cuts, values, {.place = place});
      for (size_t o = 0; o < node->outputs.size(); ++o) {
        const TensorId tensor = node->outputs[o];
        const PluginDifference off = difference_of(run.results[o], values[tensor]);
        if (off.relative <= kCutTolerance) continue;
        is_right = false;
        fault(fmt::format("the rule '{}' is wrong, or {} is: {}, {} is not that of one rank: {}; {}",
                          to_string(built.forward.rule, built.graph.layers[0].factors), function_of(*node), place,
                          built.name_of(tensor), two_values(built, tensor, off.element, run.results[o], values[tensor]),
                          combination(built, *node, o, cuts)));
      }
    }
    return is_right;
  }

  /// "with letter 'n' (dim 1 of input x, dim 0 of parameter a) cut 2 ways"
  std::string cut_text(const PluginCase& built, const PluginCuts& cuts) const {
    std::vector<std::string> words;
    for (size_t f = 0; f < cuts.size(); ++f)
      if (cuts[f] > 1)
        words.push_back(fmt::format("letter '{}' ({}) cut {} ways", built.graph.layers[0].factors[f].name,
                                    join(dims_with(built, f)), cuts[f]));
    return "with " + join(words, " and ");
  }

  std::vector<std::string> dims_with(const PluginCase& built, size_t f) const {
    std::vector<std::string> dims;
    const auto add = [&](const std::vector<TensorRule>& rules, size_t first) {
      for (size_t t = 0; t < rules.size(); ++t)
        for (size_t d = 0; d < rules[t].size(); ++d)
          if (cut_factor(rules[t][d], built.graph.layers[0].factors) == static_cast<int>(f))
            dims.push_back(fmt::format("dim {} of {}", d, plugin_operand(op_, first + t)));
    };
    add(built.forward.rule.inputs, 0);
    add(built.forward.rule.outputs, op_.operands());
    return dims;
  }

  /// Says how the rule combines the results of the ranks.
  std::string combination(const PluginCase& built, const Node& node, size_t o, const PluginCuts& cuts) const {
    std::vector<std::string> words;
    const std::vector<Factor>& factors = built.graph.layers[0].factors;
    for (size_t f = 0; f < cuts.size(); ++f) {
      if (cuts[f] == 1) continue;
      const TensorRule& rule = node.rule.outputs[o];
      const bool has = std::ranges::any_of(
          rule, [&](const DimRule& dim) { return cut_factor(dim, factors) == static_cast<int>(f); });
      words.push_back(
          has ? fmt::format("by '{}' the ranks compute parts of it", factors[f].name)
              : fmt::format("over '{}', which it lacks, the results of the ranks are added up", factors[f].name));
    }
    return join(words, "; ") +
           (node.op == op_.name ? ". If it needs the whole dim on one rank, name the letter in uncuttable" : "");
  }

  const PluginOp& op_;
  std::string example_;
  int64_t calls_of_run_ = 1;
  std::map<std::string, std::set<std::string>> letters_;
  PluginOpReport report_;
};

}  // namespace

PluginOpReport check_plugin_op(const PluginOp& op) { return OpCheck(op).run(); }

}  // namespace trainctl
