// Parses and writes the tokens of element-wise expressions.
#include "engine/ops/elementwise/expression.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

struct Word {
  std::string_view text;
  ElementwiseOp op;
  int operands;
};

constexpr Word kWords[] = {
    {"+", ElementwiseOp::add, 2},
    {"*", ElementwiseOp::mul, 2},
    {"relu", ElementwiseOp::relu, 1},
    {"sigmoid", ElementwiseOp::sigmoid, 1},
    {"tanh", ElementwiseOp::tanh, 1},
    {"gelu", ElementwiseOp::gelu, 1},
    {"gelu_tanh", ElementwiseOp::gelu_tanh, 1},
    {"relu_grad", ElementwiseOp::relu_grad, 2},
    {"sigmoid_grad", ElementwiseOp::sigmoid_grad, 2},
    {"tanh_grad", ElementwiseOp::tanh_grad, 2},
    {"gelu_grad", ElementwiseOp::gelu_grad, 2},
    {"gelu_tanh_grad", ElementwiseOp::gelu_tanh_grad, 2},
};

/// x, b, :, $ and =: how many values each pops and pushes, and the largest index.
struct Reference {
  char letter;
  ElementwiseOp op;
  int takes, leaves, limit;
};

constexpr Reference kReferences[] = {
    {'x', ElementwiseOp::input, 0, 1, kMostElementwiseInputs},
    {'b', ElementwiseOp::row, 0, 1, kMostElementwiseInputs},
    {':', ElementwiseOp::name, 1, 1, kMostElementwiseNames},
    {'$', ElementwiseOp::named, 0, 1, kMostElementwiseNames},
    {'=', ElementwiseOp::output, 1, 0, kMostElementwiseOutputs},
};

template <class T>
bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

/// The arguments of dropout: p, key, and of several micro-batches the place of the batch.
bool read_dropout(std::string_view text, ElementwiseToken& token) {
  std::vector<std::string_view> words;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    words.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  words.push_back(text);
  if (words.size() != 2 && words.size() != 5) return false;
  if (!read_number(words[0], token.p) || !read_number(words[1], token.key)) return false;
  if (words.size() == 2) return true;
  BatchPlace& batch = token.batch;
  return read_number(words[2], batch.micro_batches) && read_number(words[3], batch.dim) &&
         read_number(words[4], batch.outer) && batch.micro_batches > 0 && batch.dim >= 0 && batch.outer > 0;
}

/// A token, and how many values it pops and pushes.
struct Effect {
  ElementwiseToken token;
  int takes = 0, leaves = 0;
};

std::optional<Effect> read_token(std::string_view text) {
  for (const Word& word : kWords) {
    if (word.text == text) return Effect{{.op = word.op}, word.operands, 1};
  }
  Effect effect;
  if (text.starts_with("dropout(") && text.ends_with(")")) {
    effect = {{.op = ElementwiseOp::dropout}, 1, 1};
    return read_dropout(text.substr(8, text.size() - 9), effect.token) ? std::optional(effect) : std::nullopt;
  }
  for (const Reference& r : kReferences) {
    if (text.empty() || text[0] != r.letter) continue;
    effect = {{.op = r.op}, r.takes, r.leaves};
    const bool good =
        read_number(text.substr(1), effect.token.index) && effect.token.index >= 0 && effect.token.index < r.limit;
    return good ? std::optional(effect) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::vector<ElementwiseToken>> read_expression(std::string_view text) {
  std::vector<ElementwiseToken> tokens;
  int depth = 0;
  bool named[kMostElementwiseNames] = {}, written[kMostElementwiseOutputs] = {};
  if (text.ends_with(' ')) return std::nullopt;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::optional<Effect> effect = read_token(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!effect || effect->takes > depth || tokens.size() == kMostElementwiseTokens) return std::nullopt;
    const ElementwiseToken& token = effect->token;
    if (token.op == ElementwiseOp::named && !named[token.index]) return std::nullopt;
    if (token.op == ElementwiseOp::name) named[token.index] = true;
    if (token.op == ElementwiseOp::output && std::exchange(written[token.index], true)) return std::nullopt;
    depth += effect->leaves - effect->takes;
    if (depth > kMostElementwiseDepth) return std::nullopt;
    tokens.push_back(token);
  }
  return depth == 0 && written[0] ? std::optional(tokens) : std::nullopt;
}

}  // namespace

std::vector<ElementwiseToken> parse_expression(std::string_view text) {
  const auto tokens = read_expression(text);
  check(tokens.has_value(), "not an element-wise expression: '" + std::string(text) + "'");
  return *tokens;
}

bool is_expression(std::string_view text) { return read_expression(text).has_value(); }

}  // namespace trainctl
