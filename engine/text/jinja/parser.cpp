// Parses the text of a template into a tree. Precedence is that of jinja2: or, and, not, comparisons, + -, ~, * / // %,
// unary, **, then filters and tests.
#include "engine/text/jinja/parser.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "engine/base/error.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/lexer.h"

namespace trainctl::jinja {
namespace {

constexpr int kDeepest = 100;  // levels of nesting

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body parse_all() {
    Body body = parse_body({});
    if (peek().kind != TokenKind::end) fail("unexpected '" + peek().text + "'");
    return body;
  }

 private:
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token next() {
    Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw EnvError("line " + std::to_string(peek().line) + ": " + what);
  }
  bool is_symbol(std::string_view symbol) const { return peek().kind == TokenKind::symbol && peek().text == symbol; }
  bool is_name(std::string_view name) const { return peek().kind == TokenKind::name && peek().text == name; }
  bool take_symbol(std::string_view symbol) {
    if (!is_symbol(symbol)) return false;
    next();
    return true;
  }
  bool take_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  void expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) fail("expected '" + std::string(symbol) + "'" + found());
  }
  std::string expect_any_name() {
    if (peek().kind != TokenKind::name) fail("expected a name" + found());
    return next().text;
  }
  std::string found() const { return peek().text.empty() ? "" : ", found '" + peek().text + "'"; }
  void expect(TokenKind kind, const char* what) {
    if (peek().kind != kind) fail(std::string("expected ") + what + found());
    next();
  }

  /// Limits the depth of recursion.
  struct Level {
    explicit Level(Parser& parser) : depth(parser.depth_) {
      if (++depth > kDeepest) parser.fail("it is nested more than 100 levels deep");
    }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int& depth;
  };

  ExpressionPtr make(ExpressionKind kind, std::string text = {}) const {
    auto made = std::make_unique<Expression>();
    made->kind = kind;
    made->line = peek().line;
    made->text = std::move(text);
    return made;
  }
  template <class... Parts>
  ExpressionPtr make_of(ExpressionKind kind, std::string text, Parts... parts) const {
    auto made = make(kind, std::move(text));
    (made->parts.push_back(std::move(parts)), ...);
    return made;
  }
  ExpressionPtr constant(Value value) const {
    auto made = make(ExpressionKind::constant);
    made->value = std::move(value);
    return made;
  }

  // Statements ------------------------------------------------------------------------------------------------------

  /// Parses statements up to a block whose name is one of `ends`; that name is then the next token.
  Body parse_body(const std::set<std::string>& ends) {
    const Level level(*this);
    Body body;
    while (peek().kind != TokenKind::end) {
      if (peek().kind == TokenKind::block_begin && ends.contains(peek(1).text)) return body;
      auto statement = parse_statement();
      body.push_back(std::move(statement));
    }
    if (!ends.empty()) fail("'" + *ends.rbegin() + "' is missing");
    return body;
  }

  std::unique_ptr<Statement> statement(StatementKind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = peek().line;
    return made;
  }

  std::unique_ptr<Statement> parse_statement() {
    if (peek().kind == TokenKind::text) {
      auto made = statement(StatementKind::text);
      made->text = next().text;
      return made;
    }
    if (peek().kind == TokenKind::output_begin) {
      next();
      auto made = statement(StatementKind::output);
      made->expression = parse_tuple();
      expect(TokenKind::output_end, "}}");
      return made;
    }
    expect(TokenKind::block_begin, "a statement");
    const std::string name = expect_any_name();
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") {
      auto made = statement(name == "break" ? StatementKind::break_loop : StatementKind::continue_loop);
      if (loops_ == 0) fail("'" + name + "' is outside of a loop");
      end_block();
      return made;
    }
    fail("the statement '" + name +
         "' is not supported; supported are if, for, set, macro, generation, break and continue");
  }

  void end_block() { expect(TokenKind::block_end, "%}"); }
  void take_end(std::string_view name) {
    next();
    if (!take_name(name)) fail("expected '" + std::string(name) + "'" + found());
  }

  /// Parses what follows `if` or `elif`.
  std::unique_ptr<Statement> parse_if() {
    const Level level(*this);
    auto made = statement(StatementKind::conditional);
    made->expression = parse_tuple();
    end_block();
    made->body = parse_body({"elif", "else", "endif"});
    next();
    const std::string name = next().text;
    if (name == "elif") {
      auto other = parse_if();
      made->otherwise.push_back(std::move(other));
      return made;
    }
    end_block();
    if (name == "else") {
      made->otherwise = parse_body({"endif"});
      take_end("endif");
      end_block();
    }
    return made;
  }

  std::unique_ptr<Statement> parse_for() {
    auto made = statement(StatementKind::loop);
    made->targets = parse_targets();
    if (!take_name("in")) fail("expected 'in'" + found());
    made->expression = parse_or_expression();
    if (is_symbol(",")) {
      auto list = make(ExpressionKind::list);
      list->parts.push_back(std::move(made->expression));
      while (take_symbol(",")) list->parts.push_back(parse_or_expression());
      made->expression = std::move(list);
    }
    if (take_name("if")) made->condition = parse_expression();
    if (is_name("recursive")) fail("'recursive' loops are not supported");
    end_block();
    ++loops_;
    made->body = parse_body({"else", "endfor"});
    --loops_;
    next();
    if (take_name("else")) {
      end_block();
      made->otherwise = parse_body({"endfor"});
      take_end("endfor");
    } else {
      next();
    }
    end_block();
    return made;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> targets;
    const bool has_parentheses = take_symbol("(");
    do targets.push_back(expect_any_name());
    while (take_symbol(","));
    if (has_parentheses) expect_symbol(")");
    return targets;
  }

  std::unique_ptr<Statement> parse_set() {
    auto made = statement(StatementKind::assign);
    if (peek(1).kind == TokenKind::symbol && peek(1).text == ".") {
      made->text = expect_any_name();
      next();
      made->attribute = expect_any_name();
    } else {
      made->targets = parse_targets();
    }
    if (take_symbol("=")) {
      made->expression = parse_tuple();
      end_block();
      return made;
    }
    if (made->targets.size() != 1) fail("a set block has one name");
    if (is_symbol("|")) fail("filters of a set block are not supported");
    end_block();
    made->kind = StatementKind::assign_block;
    made->body = parse_body({"endset"});
    take_end("endset");
    end_block();
    return made;
  }

  std::unique_ptr<Statement> parse_macro() {
    auto made = statement(StatementKind::macro);
    made->text = expect_any_name();
    expect_symbol("(");
    while (!take_symbol(")")) {
      std::string name = expect_any_name();
      auto otherwise = take_symbol("=") ? parse_expression() : nullptr;
      made->parameters.emplace_back(std::move(name), std::move(otherwise));
      if (!is_symbol(")")) expect_symbol(",");
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    made->body = parse_body({"endmacro"});
    loops_ = loops;
    take_end("endmacro");
    if (peek().kind == TokenKind::name) next();
    end_block();
    return made;
  }

  std::unique_ptr<Statement> parse_generation() {
    auto made = statement(StatementKind::generation);
    end_block();
    made->body = parse_body({"endgeneration"});
    take_end("endgeneration");
    end_block();
    return made;
  }

  // Expressions -----------------------------------------------------------------------------------------------------

  /// Parses an expression, or several expressions with commas between them, which form a tuple.
  ExpressionPtr parse_tuple() {
    auto first = parse_expression();
    if (!is_symbol(",")) return first;
    auto list = make(ExpressionKind::list);
    list->parts.push_back(std::move(first));
    while (take_symbol(",")) {
      if (peek().kind == TokenKind::block_end || peek().kind == TokenKind::output_end || is_symbol(")")) break;
      list->parts.push_back(parse_expression());
    }
    return list;
  }

  ExpressionPtr parse_expression() {
    const Level level(*this);
    auto value = parse_or_expression();
    while (take_name("if")) {
      auto condition = parse_or_expression();
      auto otherwise = take_name("else") ? parse_expression() : nullptr;
      value = make_of(ExpressionKind::conditional, "", std::move(condition), std::move(value), std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr parse_or_expression() {
    auto left = parse_and();
    while (take_name("or")) left = make_of(ExpressionKind::binary, "or", std::move(left), parse_and());
    return left;
  }

  ExpressionPtr parse_and() {
    auto left = parse_not();
    while (take_name("and")) left = make_of(ExpressionKind::binary, "and", std::move(left), parse_not());
    return left;
  }

  ExpressionPtr parse_not() {
    const Level level(*this);
    if (take_name("not")) return make_of(ExpressionKind::unary, "not", parse_not());
    return parse_comparison();
  }

  ExpressionPtr parse_comparison() {
    auto left = parse_sum();
    std::unique_ptr<Expression> all;
    for (;;) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
        if (op.empty() && is_symbol(symbol)) op = next().text;
      if (op.empty() && take_name("in")) op = "in";
      if (op.empty() && is_name("not") && peek(1).kind == TokenKind::name && peek(1).text == "in") {
        next();
        next();
        op = "not in";
      }
      if (op.empty()) break;
      if (!all) {
        all = make(ExpressionKind::comparison);
        all->parts.push_back(std::move(left));
      }
      all->operators.push_back(op);
      all->parts.push_back(parse_sum());
    }
    return all ? std::move(all) : std::move(left);
  }

  template <class Next>
  ExpressionPtr parse_binary(std::initializer_list<const char*> symbols, Next parse_operand) {
    auto left = parse_operand();
    for (;;) {
      const auto found = std::find_if(symbols.begin(), symbols.end(), [&](const char* s) { return is_symbol(s); });
      if (found == symbols.end()) return left;
      next();
      left = make_of(ExpressionKind::binary, *found, std::move(left), parse_operand());
    }
  }
  ExpressionPtr parse_sum() {
    return parse_binary({"+", "-"}, [&] { return parse_concatenation(); });
  }
  ExpressionPtr parse_concatenation() {
    return parse_binary({"~"}, [&] { return parse_product(); });
  }
  ExpressionPtr parse_product() {
    return parse_binary({"*", "/", "//", "%"}, [&] { return parse_power(); });
  }
  ExpressionPtr parse_power() {
    return parse_binary({"**"}, [&] { return parse_unary(true); });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const Level level(*this);
    ExpressionPtr value;
    if (is_symbol("-") || is_symbol("+"))
      value = [&] {
        std::string sign = next().text;
        return make_of(ExpressionKind::unary, std::move(sign), parse_unary(false));
      }();
    else
      value = parse_postfix(parse_primary());
    return with_filters ? parse_filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr parse_primary() {
    const Token token = peek();
    if (token.kind == TokenKind::name) {
      next();
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant({});
      return make(ExpressionKind::name, token.text);
    }
    if (token.kind == TokenKind::string) {
      std::string text;
      while (peek().kind == TokenKind::string) text += next().text;
      return constant(std::move(text));
    }
    if (token.kind == TokenKind::integer) return constant(static_cast<int64_t>(std::stoll(next().text)));
    if (token.kind == TokenKind::real) return constant(std::strtod(next().text.c_str(), nullptr));
    if (take_symbol("(")) return parse_parentheses();
    if (take_symbol("[")) return parse_list();
    if (take_symbol("{")) return parse_dict();
    fail("expected a value" + found());
  }

  ExpressionPtr parse_parentheses() {
    if (take_symbol(")")) return make(ExpressionKind::list);
    auto value = parse_tuple();
    expect_symbol(")");
    return value;
  }

  ExpressionPtr parse_list() {
    auto list = make(ExpressionKind::list);
    while (!take_symbol("]")) {
      list->parts.push_back(parse_expression());
      if (!is_symbol("]")) expect_symbol(",");
    }
    return list;
  }

  ExpressionPtr parse_dict() {
    auto dict = make(ExpressionKind::dict);
    while (!take_symbol("}")) {
      dict->parts.push_back(parse_expression());
      expect_symbol(":");
      dict->parts.push_back(parse_expression());
      if (!is_symbol("}")) expect_symbol(",");
    }
    return dict;
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
    for (;;) {
      if (take_symbol(".")) {
        std::string name = peek().kind == TokenKind::integer ? next().text : expect_any_name();
        value = make_of(ExpressionKind::attribute, std::move(name), std::move(value));
      } else if (take_symbol("[")) {
        value = parse_subscript(std::move(value));
      } else if (take_symbol("(")) {
        auto call = make_of(ExpressionKind::call, "", std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr value) {
    const auto bound = [&]() -> ExpressionPtr {
      return is_symbol(":") || is_symbol("]") ? nullptr : parse_expression();
    };
    auto first = bound();
    if (take_symbol("]")) {
      if (!first) fail("an index is missing");
      return make_of(ExpressionKind::item, "", std::move(value), std::move(first));
    }
    expect_symbol(":");
    auto second = bound();
    auto third = take_symbol(":") ? bound() : nullptr;
    expect_symbol("]");
    return make_of(ExpressionKind::slice, "", std::move(value), std::move(first), std::move(second), std::move(third));
  }

  /// Parses the arguments of a call, after its opening parenthesis.
  void parse_arguments(Expression& call) {
    while (!take_symbol(")")) {
      if (is_symbol("*") || is_symbol("**")) fail("'*' in a call is not supported");
      if (peek().kind == TokenKind::name && peek(1).kind == TokenKind::symbol && peek(1).text == "=") {
        std::string name = next().text;
        next();
        auto value = parse_expression();
        call.named_arguments.emplace_back(std::move(name), std::move(value));
      } else {
        call.arguments.push_back(parse_expression());
      }
      if (!is_symbol(")")) expect_symbol(",");
    }
  }

  ExpressionPtr parse_filters(ExpressionPtr value) {
    for (;;) {
      if (take_symbol("|")) {
        const std::string name = expect_any_name();
        if (!has_filter(name)) fail("the filter '" + name + "' is not supported");
        value = make_of(ExpressionKind::filter, name, std::move(value));
        if (take_symbol("(")) parse_arguments(*value);
      } else if (take_name("is")) {
        value = parse_test(std::move(value));
      } else if (is_symbol("(")) {
        next();
        auto call = make_of(ExpressionKind::call, "", std::move(value));
        parse_arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_test(ExpressionPtr value) {
    const bool negates = take_name("not");
    const std::string name = expect_any_name();
    if (!has_test(name)) fail("the test '" + name + "' is not supported");
    auto test = make_of(ExpressionKind::test, name, std::move(value));
    static const std::set<std::string> kEnds = {"else", "or", "and", "is", "if", "not", "in"};
    const Token& token = peek();
    if (take_symbol("("))
      parse_arguments(*test);
    else if ((token.kind == TokenKind::name && !kEnds.contains(token.text)) || token.kind == TokenKind::string ||
             token.kind == TokenKind::integer || token.kind == TokenKind::real || is_symbol("[") || is_symbol("{"))
      test->arguments.push_back(parse_postfix(parse_primary()));
    if (negates) return make_of(ExpressionKind::unary, "not", std::move(test));
    return test;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(tokenize_template(source)).parse_all(); }

}  // namespace trainctl::jinja
