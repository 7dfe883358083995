// The sharding rule of a plugin's op, checked against the shapes of its operands.
#include "engine/ops/plugins/plugin_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "engine/ops/expect.h"
#include "engine/ops/plugins/plugin_call.h"

namespace trainctl {
namespace {

/// "" if the text follows the grammar of graph/rule.h, which parse_rule relies on.
std::string syntax_fault(std::string_view text) {
  const size_t arrow = text.find("->");
  if (arrow == std::string_view::npos || text.find("->", arrow + 2) != std::string_view::npos)
    return "it needs one arrow between inputs and outputs";
  bool is_open = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == arrow || c == ',') {
      if (is_open) return "a ( is not closed";
      if (i == arrow) ++i;
    } else if (c == '(' || c == ')') {
      if (is_open == (c == '(')) return "( and ) do not match";
      is_open = c == '(';
    } else if (std::isalpha(static_cast<unsigned char>(c)) == 0) {
      return fmt::format("'{}' is not a letter", c);
    }
  }
  return is_open ? "a ( is not closed" : "";
}

class CheckedRule {
 public:
  CheckedRule(const PluginOp& op, Infos inputs, Infos outputs, RuleText rule)
      : op_(op), inputs_(inputs), outputs_(outputs), rule_(std::move(rule)) {}

  RuleText check() const {
    if (const std::string fault = syntax_fault(rule_.text); !fault.empty()) refuse(fault);
    const RuleLetters letters = parse_rule(rule_.text);
    demand_count(letters.inputs.size(), inputs_.size(), "inputs and parameters");
    demand_count(letters.outputs.size(), outputs_.size(), "outputs");
    for (size_t t = 0; t < inputs_.size() + outputs_.size(); ++t) check_dims(t, dims(letters, t), info(t).shape);
    const std::map<char, int64_t> sizes = plugin_letter_sizes(rule_, inputs_, outputs_);
    for (size_t t = 0; t < inputs_.size() + outputs_.size(); ++t) check_sizes(t, dims(letters, t), sizes);
    for (const char letter : rule_.uncuttable)
      if (!sizes.contains(letter)) refuse(fmt::format("the uncuttable letter '{}' does not occur in it", letter));
    return rule_;
  }

 private:
  [[noreturn]] void refuse(const std::string& fault) const {
    shape_error(
        fmt::format("{}: the sharding rule '{}' of plugin {} is wrong: {}", op_.name, rule_.text, op_.file, fault));
  }
  const TensorInfo& info(size_t t) const { return t < inputs_.size() ? inputs_[t] : outputs_[t - inputs_.size()]; }
  const std::vector<std::string>& dims(const RuleLetters& letters, size_t t) const {
    return t < inputs_.size() ? letters.inputs[t] : letters.outputs[t - inputs_.size()];
  }

  void demand_count(size_t found, size_t wanted, const char* what) const {
    if (found != wanted) refuse(fmt::format("it has {} {}, but the op has {}", found, what, wanted));
  }

  void check_dims(size_t t, const std::vector<std::string>& letters, const Shape& shape) const {
    if (letters.size() != shape.size())
      refuse(fmt::format("it gives {} {} dims, but its shape is {}", plugin_operand(op_, t), letters.size(),
                         to_string(shape)));
    std::set<char> seen;
    for (const std::string& dim : letters)
      for (const char letter : dim)
        if (!seen.insert(letter).second)
          refuse(fmt::format("{} has the letter '{}' twice", plugin_operand(op_, t), letter));
  }

  void check_sizes(size_t t, const std::vector<std::string>& letters, const std::map<char, int64_t>& sizes) const {
    for (size_t d = 0; d < letters.size(); ++d) {
      int64_t product = 1;
      for (const char letter : letters[d]) {
        const auto size = sizes.find(letter);
        if (size == sizes.end()) refuse(fmt::format("no shape determines the size of letter '{}'", letter));
        product *= size->second;
      }
      if (product == info(t).shape[d]) continue;
      const std::string text = letters[d].size() == 1 ? letters[d] : "(" + letters[d] + ")";
      refuse(fmt::format("dim {} of {} {} is '{}', which has the size {} elsewhere", d, plugin_operand(op_, t),
                         to_string(info(t).shape), text, product));
    }
  }

  const PluginOp& op_;
  const Infos inputs_, outputs_;
  const RuleText rule_;
};

}  // namespace

std::string plugin_operand(const PluginOp& op, size_t operand) {
  const auto inputs = static_cast<size_t>(op.c.num_inputs);
  if (operand < inputs) return std::string("input ") + op.c.inputs[operand].name;
  if (operand < op.operands()) return std::string("parameter ") + op.c.parameters[operand - inputs].name;
  return op.c.num_outputs == 1 ? "the output" : "output " + std::to_string(operand - op.operands());
}

std::map<char, int64_t> plugin_letter_sizes(const RuleText& rule, Infos inputs, Infos outputs) {
  const RuleLetters letters = parse_rule(rule.text);
  std::map<char, int64_t> sizes;
  const auto learn = [&](const std::vector<std::string>& dims, const Shape& shape) {
    bool learned = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t rest = shape[d];
      std::string unknown;
      for (const char letter : dims[d]) {
        if (const auto size = sizes.find(letter); size != sizes.end())
          rest /= std::max<int64_t>(1, size->second);
        else
          unknown += letter;
      }
      if (unknown.size() == 1) learned = sizes.emplace(unknown[0], rest).second || learned;
    }
    return learned;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < letters.inputs.size(); ++i) progress = learn(letters.inputs[i], inputs[i].shape) || progress;
    for (size_t o = 0; o < letters.outputs.size(); ++o)
      progress = learn(letters.outputs[o], outputs[o].shape) || progress;
  }
  return sizes;
}

RuleText plugin_rule(const PluginOp& op, Infos inputs, Infos outputs, const Attrs& attrs) {
  RuleText rule;
  if (op.c.make_rule != nullptr) {
    std::array<char, 256> text{};
    PluginCall call(op, attrs);
    call.bind(PluginPass::forward, inputs, outputs);
    call.run(PluginFunction::rule, [&](trainctl_call* c) { return op.c.make_rule(c, text.data(), text.size()); });
    text.back() = '\0';
    rule.text = text.data();
  } else {
    rule.text = op.c.rule;
  }
  if (op.c.uncuttable != nullptr) rule.uncuttable = op.c.uncuttable;
  rule.why_not = op.c.why_uncuttable != nullptr ? op.c.why_uncuttable : "the plugin needs the whole dim on one rank";
  return CheckedRule(op, inputs, outputs, rule).check();
}

}  // namespace trainctl
