// Reading and printing sharding rules; the grammar is in rule.h. An empty side has no tensors.
#include "engine/graph/rule.h"

#include <cctype>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// "n(ch)" -> {"n", "ch"}.
std::vector<std::string> parse_tensor(std::string_view text) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '(') {
      check(std::isalpha(static_cast<unsigned char>(text[i])), "a dim of a rule is a letter or (letters)");
      dims.emplace_back(1, text[i]);
      continue;
    }
    const size_t close = text.find(')', i);
    check(close != std::string_view::npos, "a rule has an unclosed (");
    dims.emplace_back(text.substr(i + 1, close - i - 1));
    for (char letter : dims.back()) {
      check(std::isalpha(static_cast<unsigned char>(letter)), "a rule can have only letters between ( and )");
    }
    i = close;
  }
  return dims;
}

std::vector<std::vector<std::string>> parse_side(std::string_view text) {
  std::vector<std::vector<std::string>> tensors;
  if (text.empty()) return tensors;
  while (true) {
    const size_t comma = text.find(',');
    tensors.push_back(parse_tensor(text.substr(0, comma)));
    if (comma == std::string_view::npos) return tensors;
    text.remove_prefix(comma + 1);
  }
}

std::string side_text(const std::vector<TensorRule>& tensors, const std::vector<Factor>& factors) {
  std::string text;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (t > 0) text += ',';
    for (const DimRule& dim : tensors[t]) {
      if (dim.size() != 1) text += '(';
      for (int factor : dim) text += factors.at(factor).name;
      if (dim.size() != 1) text += ')';
    }
  }
  return text;
}

}  // namespace

RuleLetters parse_rule(std::string_view text) {
  const size_t arrow = text.find("->");
  check(arrow != std::string_view::npos, "a rule needs an arrow: mk,kn->mn");
  return {parse_side(text.substr(0, arrow)), parse_side(text.substr(arrow + 2))};
}

int cut_factor(const DimRule& dim, const std::vector<Factor>& factors) {
  for (int factor : dim) {
    if (factors.at(factor).size > 1) return factor;
  }
  return -1;
}

std::string to_string(const Rule& rule, const std::vector<Factor>& factors) {
  return side_text(rule.inputs, factors) + "->" + side_text(rule.outputs, factors);
}

}  // namespace trainctl
