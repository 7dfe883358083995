// The expressions of a job, ${4*d}: numbers, texts, names, and what is computed from them. Evaluates while it parses;
// recursion is limited by kMaxDepth.
#include "engine/spec/expression.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/base/text.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

constexpr int kMaxDepth = 40;
/// Limit of a text with expressions in it: texts of texts must not grow without bound.
constexpr size_t kMaxText = 65'536;
constexpr std::array<std::string_view, 5> kWords = {"and", "or", "not", "true", "false"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return begins_name(c) || is_digit(c); }

/// True for characters that cannot occur in an expression. An expression without a closing brace ends at the first one.
bool ends_unclosed(char c) { return c == '{' || c == ',' || c == ':' || c == '#' || c == '\n' || c == '\r'; }

bool is_number(const Constant& v) { return std::holds_alternative<int64_t>(v) || std::holds_alternative<double>(v); }
double as_double(const Constant& v) {
  const auto* whole = std::get_if<int64_t>(&v);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(v);
}

/// Parses one expression and computes its value. If `names` is null, only the syntax is checked, and every name has the
/// value 1.
class Parser {
 public:
  Parser(std::string_view text, size_t offset, const Names* names) : text_(text), offset_(offset), names_(names) {}

  Constant parse() {
    skip_spaces();
    if (at_end()) fail(at_, "${} is empty", "e.g. ${4*d}");
    Constant value = any();
    if (!at_end()) unexpected();
    return value;
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth)
        parser.fail(parser.at_, "nested more than " + std::to_string(kMaxDepth) + " levels deep");
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Parser& parser;
  };

  [[noreturn]] void fail(size_t at, const std::string& message, const std::string& hint = {}) const {
    throw ExpressionError{offset_ + at, message, hint};
  }
  [[noreturn]] void unexpected() const {
    if (at_end()) fail(at_, "the expression ends where a value is expected");
    const std::string found = word().empty() ? std::string(1, text_[at_]) : word();
    fail(at_, "expected an operator or the end of the expression, not '" + found + "'", operator_hint(found));
  }
  static std::string operator_hint(const std::string& found) {
    if (found == "=") return "write == for equality";
    if (found == "&" || found == "|") return "write 'and', 'or'";
    if (found == "!") return "write 'not'";
    if (found == "^") return "write a power as a product: d*d";
    return "operators are + - * / // % == != < <= > >= and or not";
  }

  bool at_end() const { return at_ == text_.size(); }
  void skip_spaces() {
    while (!at_end() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  /// Returns the name or keyword at the current position; "" if there is none.
  std::string word() const {
    size_t end = at_;
    if (end < text_.size() && begins_name(text_[end]))
      while (end < text_.size() && continues_name(text_[end])) ++end;
    return std::string(text_.substr(at_, end - at_));
  }
  bool take(std::string_view symbol) {
    if (!text_.substr(at_).starts_with(symbol)) return false;
    at_ += symbol.size();
    skip_spaces();
    return true;
  }
  bool take_word(std::string_view wanted) { return word() == wanted && take(wanted); }

  Constant any() {
    const Deeper deeper(*this);
    const size_t begin = at_;
    Constant left = all();
    while (take_word("or")) {
      const bool decided = truth(left, begin, "or");
      const Quiet quiet(*this, decided);  // what decides nothing may divide by zero
      const size_t right = at_;
      left = truth_of_right(all(), right, "or", decided) || decided;
    }
    return left;
  }

  Constant all() {
    const size_t begin = at_;
    Constant left = negation();
    while (take_word("and")) {
      const bool open = truth(left, begin, "and");
      const Quiet quiet(*this, !open);
      const size_t right = at_;
      left = truth_of_right(negation(), right, "and", !open) && open;
    }
    return left;
  }

  Constant negation() {
    const Deeper deeper(*this);
    if (!take_word("not")) return comparison();
    const size_t at = at_;
    return !truth(negation(), at, "not");
  }

  Constant comparison() {
    Constant left = sum();
    const size_t at = at_;
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (!take(op)) continue;
      const Constant right = sum();
      return names_ == nullptr || quiet_ ? Constant(true) : Constant(compare(left, op, right, at));
    }
    return left;
  }

  Constant sum() {
    Constant left = product();
    while (true) {
      const size_t at = at_;
      if (take("+"))
        left = arithmetic(left, '+', product(), at);
      else if (take("-"))
        left = arithmetic(left, '-', product(), at);
      else
        return left;
    }
  }

  Constant product() {
    Constant left = sign();
    while (true) {
      const size_t at = at_;
      if (take("//"))
        left = arithmetic(left, 'f', sign(), at);
      else if (take("/"))
        left = arithmetic(left, '/', sign(), at);
      else if (text_.substr(at_).starts_with("**"))
        fail(at_, "the operator '**' does not exist", "write a power as a product: d*d");
      else if (take("*"))
        left = arithmetic(left, '*', sign(), at);
      else if (take("%"))
        left = arithmetic(left, '%', sign(), at);
      else
        return left;
    }
  }

  Constant sign() {
    const size_t at = at_;
    if (!take("-")) return primary();
    const Deeper deeper(*this);
    return arithmetic(Constant(int64_t{0}), '-', sign(), at);
  }

  Constant primary() {
    if (at_end()) unexpected();
    const size_t begin = at_;
    const char c = text_[at_];
    if (take("(")) {
      Constant inner = any();
      if (!take(")")) {
        if (!at_end()) unexpected();
        fail(begin, "this '(' is never closed", "close it with ')'");
      }
      return inner;
    }
    if (is_digit(c) || c == '.') return number();
    if (c == '\'') return quoted();
    const std::string name = word();
    if (name.empty()) fail(at_, std::string("expected a number or a name, not '") + c + "'", value_hint(c));
    if (name == "and" || name == "or") fail(at_, "expected a number or a name, not '" + name + "'");
    take(name);
    if (name == "true" || name == "false") return name == "true";
    if (!at_end() && text_[at_] == '(') fail(begin, "expressions have no functions, so '" + name + "(' is not valid");
    if (names_ == nullptr) return int64_t{1};
    const auto known = names_->find(name);
    if (known == names_->end()) unknown(name, begin);
    return known->second;
  }

  static std::string value_hint(char c) { return c == '"' ? "write text in single quotes: 'text'" : ""; }

  [[noreturn]] void unknown(const std::string& name, size_t at) const {
    std::vector<std::string> known;
    for (const auto& [other, value] : *names_) known.push_back(other);
    std::string hint = did_you_mean(name, known);
    if (hint.empty()) hint = known.empty() ? "define it: vars: {" + name + ": 64}" : "defined names: " + join(known);
    throw ExpressionError{offset_ + at, "unknown name '" + name + "'", hint, name};
  }

  /// Reads an integer or a decimal number.
  Constant number() {
    const size_t begin = at_;
    size_t end = at_;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    bool whole = true;
    if (end < text_.size() && text_[end] == '.') {
      whole = false;
      ++end;
      while (end < text_.size() && is_digit(text_[end])) ++end;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
      if (digits < text_.size() && is_digit(text_[digits])) {
        whole = false;
        end = digits;
        while (end < text_.size() && is_digit(text_[end])) ++end;
      }
    }
    const std::string digits(text_.substr(begin, end - begin));
    if (end < text_.size() && continues_name(text_[end]))
      fail(begin, "'" + digits + text_[end] + "' is neither a number nor a name", "write a product as 2*d");
    at_ = end;
    skip_spaces();
    if (whole) {
      const std::optional<int64_t> value = parse_integer(digits);
      if (!value) fail(begin, digits + " does not fit into 64 bits");
      return *value;
    }
    double value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || !std::isfinite(value))
      fail(begin, "'" + digits + "' is not a number");
    return value;
  }

  Constant quoted() {
    const size_t end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) fail(at_, "this quote is never closed", "close it with '");
    std::string text(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    skip_spaces();
    return text;
  }

  bool truth(const Constant& value, size_t at, const std::string& op) const {
    if (names_ == nullptr || quiet_) return true;
    if (const bool* flag = std::get_if<bool>(&value)) return *flag;
    fail(at, "'" + op + "' needs true or false, not " + to_text(value), "compare it: " + to_text(value) + " != 0");
  }
  /// Returns the truth of the right operand of `and` or `or`. With `decided`, the left operand has determined the
  /// result already, and the right one is not evaluated.
  bool truth_of_right(const Constant& value, size_t at, const std::string& op, bool decided) const {
    return !decided && truth(value, at, op);
  }

  bool compare(const Constant& a, const std::string& op, const Constant& b, size_t at) const {
    const bool numbers = is_number(a) && is_number(b);
    if (!numbers && a.index() != b.index())
      fail(at, "cannot compare " + kind_of(a) + " with " + kind_of(b), to_text(a) + " " + op + " " + to_text(b));
    if (!numbers && op != "==" && op != "!=") fail(at, "'" + op + "' needs numbers, not " + kind_of(a));
    int order = 0;
    if (std::holds_alternative<int64_t>(a) && std::holds_alternative<int64_t>(b))
      order = std::get<int64_t>(a) < std::get<int64_t>(b) ? -1 : std::get<int64_t>(a) > std::get<int64_t>(b);
    else if (numbers)
      order = as_double(a) < as_double(b) ? -1 : as_double(a) > as_double(b);
    else
      order = a == b ? 0 : 1;
    if (op == "==") return order == 0;
    if (op == "!=") return order != 0;
    if (op == "<") return order < 0;
    if (op == "<=") return order <= 0;
    return op == ">" ? order > 0 : order >= 0;
  }

  /// Applies an arithmetic operator; the character 'f' stands for the operator //.
  Constant arithmetic(const Constant& a, char op, const Constant& b, size_t at) const {
    if (names_ == nullptr || quiet_) return int64_t{1};
    const std::string sign = op == 'f' ? "//" : std::string(1, op);
    for (const Constant* side : {&a, &b})
      if (!is_number(*side))
        fail(at, "'" + sign + "' needs numbers, not " + kind_of(*side) + " '" + to_text(*side) + "'");
    if ((op == '/' || op == 'f' || op == '%') && as_double(b) == 0) fail(at, "division by zero");
    if (op != '/' && std::holds_alternative<int64_t>(a) && std::holds_alternative<int64_t>(b))
      return of_integers(std::get<int64_t>(a), op, std::get<int64_t>(b), at);
    const double x = as_double(a), y = as_double(b);
    double value = 0;
    switch (op) {
      case '+':
        value = x + y;
        break;
      case '-':
        value = x - y;
        break;
      case '*':
        value = x * y;
        break;
      case '/':
        value = x / y;
        break;
      case 'f':
        value = std::floor(x / y);
        break;
      default:
        value = x - y * std::floor(x / y);
        break;
    }
    if (!std::isfinite(value)) overflow(at);
    return value;
  }

  /// Computes an operation on integers. Reports an overflow at position `at`.
  Constant of_integers(int64_t a, char op, int64_t b, size_t at) const {
    int64_t value = 0;
    switch (op) {
      case '+':
        if (__builtin_add_overflow(a, b, &value)) overflow(at);
        return value;
      case '-':
        if (__builtin_sub_overflow(a, b, &value)) overflow(at);
        return value;
      case '*':
        if (__builtin_mul_overflow(a, b, &value)) overflow(at);
        return value;
      default:
        break;
    }
    if (b == -1) {  // the least int64_t divided by -1 does not fit
      if (op == '%') return int64_t{0};
      if (__builtin_sub_overflow(int64_t{0}, a, &value)) overflow(at);
      return value;
    }
    const int64_t rest = a % b, down = rest != 0 && (rest < 0) != (b < 0) ? 1 : 0;
    return op == 'f' ? a / b - down : rest + down * b;
  }

  [[noreturn]] void overflow(size_t at) const { fail(at, "the result does not fit into 64 bits"); }

  /// While an object of this type exists with `quiet`, values are not computed, so that no value is an error. Used for
  /// the operand of `and`, `or` or a condition that does not influence the result.
  struct Quiet {
    Quiet(Parser& p, bool quiet) : parser(p), before(p.quiet_) { parser.quiet_ = before || quiet; }
    ~Quiet() { parser.quiet_ = before; }
    Quiet(const Quiet&) = delete;
    Parser& parser;
    const bool before;
  };

  const std::string_view text_;
  const size_t offset_;  ///< offset of text_ in the text that the job has
  const Names* names_;
  size_t at_ = 0;
  int depth_ = 0;
  bool quiet_ = false;
};

/// Calls `plain` for text between expressions and `expression` for each; "$${" is plain "${".
template <class Plain, class Expression>
void for_each_part(std::string_view text, Plain plain, Expression expression) {
  size_t done = 0;
  for (size_t at = text.find("${"); at != std::string_view::npos; at = text.find("${", at)) {
    if (at > done && text[at - 1] == '$') {
      plain(text.substr(done, at - 1 - done));
      plain("${");
      done = at += 2;
      continue;
    }
    const size_t length = expression_length(text.substr(at));
    if (length == 0 && text.find('}', at) != std::string_view::npos)
      throw ExpressionError{at,
                            "this '${' does not start a valid expression: expressions contain no '{', ',', ':' "
                            "or '#'",
                            "an expression is a name of `vars`, or ${ a + b }; to use an environment variable: "
                            "trainctl run job.yaml dataset.batch=$BATCH; write $${ for a literal ${"};
    if (length == 0)
      throw ExpressionError{at, "this '${' is never closed", "close it with '}', or write $${ for a literal ${"};
    plain(text.substr(done, at - done));
    expression(text.substr(at + 2, length - 3), at, length);
    done = at += length;
  }
  plain(text.substr(done));
}

}  // namespace

std::string to_text(const Constant& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return std::visit(
      [](const auto& v) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>)
          return v;
        else
          return to_string(Value(v));
      },
      value);
}

std::string kind_of(const Constant& value) {
  if (std::holds_alternative<bool>(value)) return "true or false";
  return std::holds_alternative<std::string>(value) ? "text" : "a number";
}

Constant constant_of(const std::string& scalar) {
  if (scalar == "true" || scalar == "True" || scalar == "TRUE") return true;
  if (scalar == "false" || scalar == "False" || scalar == "FALSE") return false;
  if (const std::optional<int64_t> whole = parse_integer(scalar)) return *whole;
  if (const std::optional<double> number = parse_number(scalar)) return *number;
  return scalar;
}

bool is_var_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && begins_name(name[0]) &&
         std::all_of(name.begin(), name.end(), continues_name) &&
         std::find(kWords.begin(), kWords.end(), name) == kWords.end();
}

std::string var_name_pattern() {
  std::string words;
  for (const std::string_view word : kWords) words += (words.empty() ? "" : "|") + std::string(word);
  return "^(?!(" + words + ")$)[A-Za-z_][A-Za-z0-9_]{0,99}$";
}

bool has_expression(std::string_view text) {
  for (size_t at = text.find("${"); at != std::string_view::npos; at = text.find("${", at + 2))
    if (at == 0 || text[at - 1] != '$') return true;
  return false;
}

Constant expand_text(std::string_view text, const Names& names) {
  std::string expanded;
  std::optional<Constant> whole;
  for_each_part(
      text, [&](std::string_view part) { expanded += part; },
      [&](std::string_view expression, size_t at, size_t length) {
        Constant value = Parser(expression, at + 2, &names).parse();
        expanded += to_text(value);
        if (expanded.size() > kMaxText)
          throw ExpressionError{at, "the text is longer than " + std::to_string(kMaxText) + " bytes", ""};
        if (length == text.size()) whole = std::move(value);
      });
  return whole ? *whole : Constant(std::move(expanded));
}

Constant evaluate(std::string_view expression, const Names& names) { return Parser(expression, 0, &names).parse(); }

void check_expression(std::string_view expression) { Parser(expression, 0, nullptr).parse(); }

void check_syntax(std::string_view text) {
  for_each_part(
      text, [](std::string_view) {},
      [](std::string_view expression, size_t at, size_t) { Parser(expression, at + 2, nullptr).parse(); });
}

std::string escape_expressions(std::string_view text) {
  std::string escaped;
  size_t done = 0;
  for (size_t at = text.find("${"); at != std::string_view::npos; at = text.find("${", at + 2)) {
    escaped += std::string(text.substr(done, at - done)) + "$";
    done = at;
  }
  return escaped + std::string(text.substr(done));
}

size_t expression_length(std::string_view text) {
  if (!text.starts_with("${")) return 0;
  for (size_t i = 2; i < text.size() && !ends_unclosed(text[i]); ++i)
    if (text[i] == '}') return i + 1;
  return 0;
}

}  // namespace trainctl
