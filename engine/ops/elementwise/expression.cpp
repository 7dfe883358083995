// Parses and writes the tokens of element-wise expressions.
#include "engine/ops/elementwise/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
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
    {"-", ElementwiseOp::sub, 2},
    {"*", ElementwiseOp::mul, 2},
    {"/", ElementwiseOp::div, 2},
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
    {"where", ElementwiseOp::where, 3},
};

/// A token that refers to an operand or a name by index (x, b, l, m, :, $ and =): the number of values that it pops and
/// pushes, and the largest index.
struct Reference {
  char letter;
  ElementwiseOp op;
  int takes, leaves, limit;
};

constexpr Reference kReferences[] = {
    {'x', ElementwiseOp::input, 0, 1, kMostElementwiseInputs},
    {'b', ElementwiseOp::row, 0, 1, kMostElementwiseInputs},
    {'l', ElementwiseOp::product_nr, 0, 1, kMostElementwiseInputs - 1},
    {'m', ElementwiseOp::product_rn, 0, 1, kMostElementwiseInputs - 1},
    {':', ElementwiseOp::name, 1, 1, kMostElementwiseNames},
    {'$', ElementwiseOp::named, 0, 1, kMostElementwiseNames},
    {'=', ElementwiseOp::output, 1, 0, kMostElementwiseOutputs},
};

template <class T>
bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    words.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  words.push_back(text);
  return words;
}

/// Reads the arguments of dropout: p, key, and the place of the batch if there are several micro-batches.
bool read_dropout(std::string_view text, ElementwiseToken& token) {
  const std::vector<std::string_view> words = split_at_commas(text);
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

/// Reads exactly `count` numbers; returns whether `text` consists of them.
bool read_parameters(std::string_view text, size_t count, UnaryParameters& to) {
  if (count == 0) return text.empty();
  const std::vector<std::string_view> words = split_at_commas(text);
  return words.size() == count && read_number(words[0], to.a) && (count < 2 || read_number(words[1], to.b));
}

size_t number_of_parameters(const UnaryDef& def) {
  return static_cast<size_t>(std::count_if(std::begin(def.parameters), std::end(def.parameters),
                                           [](const auto& parameter) { return parameter.name != nullptr; }));
}

/// A function of one number or its gradient, masked_fill, or dropout: name, or name(arguments).
std::optional<Effect> read_function(std::string_view text) {
  const size_t bracket = text.find('(');
  const std::string_view name = text.substr(0, bracket);
  std::string_view arguments;
  if (bracket != std::string_view::npos) {
    if (!text.ends_with(')')) return std::nullopt;
    arguments = text.substr(bracket + 1, text.size() - bracket - 2);
  }
  Effect effect{{.op = ElementwiseOp::dropout}, 1, 1};
  if (name == "dropout") return read_dropout(arguments, effect.token) ? std::optional(effect) : std::nullopt;
  size_t parameters = 2;
  if (name == "masked_fill") {
    effect = {{.op = ElementwiseOp::masked_fill}, 2, 1};
  } else {
    const auto* def = std::find_if(std::begin(kUnary), std::end(kUnary),
                                   [&](const UnaryDef& each) { return name == each.name || name == each.grad_name; });
    if (def == std::end(kUnary)) return std::nullopt;
    effect = {{.op = ElementwiseOp::unary}, 1, 1};
    if (name != def->name) effect = {{.op = ElementwiseOp::unary_grad}, 2, 1};
    effect.token.function = static_cast<Unary>(def - std::begin(kUnary));
    parameters = number_of_parameters(*def);
  }
  return read_parameters(arguments, parameters, effect.token.parameters) ? std::optional(effect) : std::nullopt;
}

/// Reads one token; nothing if the text is not a token, or its index is beyond the limit.
std::optional<Effect> read_token(std::string_view text) {
  for (const Word& word : kWords) {
    if (word.text == text) return Effect{{.op = word.op}, word.operands, 1};
  }
  if (const auto function = read_function(text)) return function;
  Effect effect;
  for (const Reference& r : kReferences) {
    if (text.empty() || text[0] != r.letter) continue;
    effect = {{.op = r.op}, r.takes, r.leaves};
    const bool good =
        read_number(text.substr(1), effect.token.index) && effect.token.index >= 0 && effect.token.index < r.limit;
    return good ? std::optional(effect) : std::nullopt;
  }
  return std::nullopt;
}

/// True if the expression has products, or few inputs.
bool inputs_fit(const std::vector<ElementwiseToken>& tokens) {
  const auto has_product = [](const ElementwiseToken& t) { return is_product(t.op); };
  const auto is_late = [](const ElementwiseToken& t) {
    return (t.op == ElementwiseOp::input || t.op == ElementwiseOp::row) && t.index >= kMostWithoutProducts;
  };
  return std::any_of(tokens.begin(), tokens.end(), has_product) || std::none_of(tokens.begin(), tokens.end(), is_late);
}

/// Reads an expression; nothing if it is not valid or exceeds a limit (see expression.h).
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
  return depth == 0 && written[0] && inputs_fit(tokens) ? std::optional(tokens) : std::nullopt;
}

}  // namespace

std::vector<ElementwiseToken> parse_expression(std::string_view text) {
  const auto tokens = read_expression(text);
  check(tokens.has_value(), "not an element-wise expression: '" + std::string(text) + "'");
  return *tokens;
}

std::string unary_token(Unary function, bool grad, const Attrs& attrs) {
  const UnaryDef& def = unary_def(function);
  const UnaryParameters values = unary_parameters(function, attrs);
  const std::string name = grad ? def.grad_name : def.name;
  switch (number_of_parameters(def)) {
    case 0:
      return name;
    case 1:
      return fmt::format("{}({})", name, values.a);
    default:
      return fmt::format("{}({},{})", name, values.a, values.b);
  }
}

bool is_expression(std::string_view text) { return read_expression(text).has_value(); }

}  // namespace trainctl
