// The subset of Jinja that chat templates use, with the results of jinja2 as transformers configures it. A loop's body
// and a macro's have a scope of their own; `if` has none, as in jinja2.
#include "engine/text/jinja/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>

#include "engine/base/error.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/parser.h"

namespace trainctl::jinja {
namespace {

constexpr int64_t kMostSteps = 20'000'000;
constexpr int kDeepestCall = 100;

struct Scope {
  std::shared_ptr<Scope> outer;
  std::map<std::string, Value, std::less<>> values = {};

  Value* find(const std::string& name) {
    for (Scope* scope = this; scope != nullptr; scope = scope->outer.get())
      if (const auto found = scope->values.find(name); found != scope->values.end()) return &found->second;
    return nullptr;
  }
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow : uint8_t { next, break_loop, continue_loop };

class Renderer {
 public:
  Rendered run(const Body& body, const Dict& variables) {
    auto global = std::make_shared<Scope>();
    for (const auto& [name, value] : globals()) global->values[name.text()] = value;
    for (const auto& [name, value] : variables) global->values[name.text()] = value;
    run_body(body, std::make_shared<Scope>(Scope{global}));
    return std::move(out_);
  }

 private:
  [[noreturn]] static void fail(int line, const std::string& what) {
    throw EnvError("line " + std::to_string(line) + ": " + what);
  }

  void write(const std::string& text) {
    require_text_fits(out_.text.size() + text.size());
    out_.text += text;
  }

  // Statements ------------------------------------------------------------------------------------------------------

  Flow run_body(const Body& body, const ScopePtr& scope) {
    for (const auto& statement : body)
      if (const Flow flow = run_statement(*statement, scope); flow != Flow::next) return flow;
    return Flow::next;
  }

  /// Ends templates that would run nearly forever.
  void count_steps(size_t steps) {
    steps_ += static_cast<int64_t>(steps);
    if (steps_ > kMostSteps) throw EnvError("the template needs more than 20,000,000 steps");
  }

  Flow run_statement(const Statement& s, const ScopePtr& scope) {
    count_steps(1);
    switch (s.kind) {
      case StatementKind::text:
        write(s.text);
        return Flow::next;
      case StatementKind::output:
        write(to_text(evaluate(*s.expression, scope)));
        return Flow::next;
      case StatementKind::conditional:
        return run_body(evaluate(*s.expression, scope).truth() ? s.body : s.otherwise, scope);
      case StatementKind::loop:
        return run_loop(s, scope);
      case StatementKind::assign:
        assign(s, evaluate(*s.expression, scope), scope);
        return Flow::next;
      case StatementKind::assign_block:
        scope->values[s.targets[0]] = captured(s.body, std::make_shared<Scope>(Scope{scope}));
        return Flow::next;
      case StatementKind::macro:
        scope->values[s.text] = macro(s, scope);
        return Flow::next;
      case StatementKind::generation: {
        const size_t begin = out_.text.size();
        const Flow flow = run_body(s.body, scope);
        if (captures_ == 0) out_.generated.push_back({begin, out_.text.size()});
        return flow;
      }
      case StatementKind::break_loop:
        return Flow::break_loop;
      default:
        return Flow::continue_loop;
    }
  }

  /// The text that the body writes.
  std::string captured(const Body& body, const ScopePtr& scope) {
    const size_t begin = out_.text.size();
    ++captures_;
    run_body(body, scope);
    --captures_;
    std::string text = out_.text.substr(begin);
    out_.text.resize(begin);
    return text;
  }

  void assign(const Statement& s, Value value, const ScopePtr& scope) {
    if (s.attribute.empty()) return bind(s.targets, std::move(value), *scope, s.line);
    Value* target = scope->find(s.text);
    if (target == nullptr || !target->is_name_space())
      fail(s.line, "'" + s.text + "' is not a namespace, so '" + s.attribute + "' cannot be set");
    target->set(s.attribute, std::move(value));
  }

  static void bind(const std::vector<std::string>& targets, Value value, Scope& scope, int line) {
    if (targets.size() == 1) {
      scope.values[targets[0]] = std::move(value);
      return;
    }
    const List parts = elements(value);
    if (parts.size() != targets.size()) fail(line, fmt::format("{} names for {} values", targets.size(), parts.size()));
    for (size_t i = 0; i < parts.size(); ++i) scope.values[targets[i]] = parts[i];
  }

  Flow run_loop(const Statement& s, const ScopePtr& scope) {
    List list = at_line(s.line, [&] { return elements(evaluate(*s.expression, scope)); });
    if (s.condition) {
      List kept;
      for (Value& element : list) {
        const auto inner = std::make_shared<Scope>(Scope{scope});
        bind(s.targets, element, *inner, s.line);
        if (evaluate(*s.condition, inner).truth()) kept.push_back(std::move(element));
      }
      list = std::move(kept);
    }
    if (list.empty()) return run_body(s.otherwise, scope);
    for (size_t i = 0; i < list.size(); ++i) {
      const auto inner = std::make_shared<Scope>(Scope{scope});
      bind(s.targets, list[i], *inner, s.line);
      inner->values["loop"] = loop_value(list, i);
      if (run_body(s.body, inner) == Flow::break_loop) break;
    }
    return Flow::next;
  }

  static Value loop_value(const List& list, size_t i) {
    const auto at = static_cast<int64_t>(i), count = static_cast<int64_t>(list.size());
    return Dict{{"index", at + 1},
                {"index0", at},
                {"revindex", count - at},
                {"revindex0", count - at - 1},
                {"first", i == 0},
                {"last", i + 1 == list.size()},
                {"length", count},
                {"previtem", i > 0 ? list[i - 1] : Value(Undefined{"previtem"})},
                {"nextitem", i + 1 < list.size() ? list[i + 1] : Value(Undefined{"nextitem"})},
                {"cycle", Function([at](const Arguments& a) -> Value {
                   if (a.values.empty()) throw EnvError("cycle needs values");
                   return a.values[static_cast<size_t>(at) % a.values.size()];
                 })}};
  }

  Value macro(const Statement& s, const ScopePtr& scope) {
    // A macro is in its scope, so it refers to it weakly.
    return Function([this, &s, weak = std::weak_ptr<Scope>(scope)](const Arguments& arguments) -> Value {
      auto inner = std::make_shared<Scope>(Scope{weak.lock()});
      if (arguments.values.size() > s.parameters.size())
        throw EnvError(fmt::format("the macro '{}' takes {} arguments", s.text, s.parameters.size()));
      for (const auto& given : arguments.named)
        if (std::none_of(s.parameters.begin(), s.parameters.end(),
                         [&](const auto& parameter) { return parameter.first == given.first; }))
          throw EnvError(fmt::format("the macro '{}' has no argument '{}'", s.text, given.first));
      for (size_t i = 0; i < s.parameters.size(); ++i) {
        const auto& [name, otherwise] = s.parameters[i];
        const Value* given = arguments.find(i, name);
        inner->values[name] = given != nullptr ? *given
                              : otherwise      ? evaluate(*otherwise, inner)
                                               : Value(Undefined{name});
      }
      const Depth depth(calls_, s.line);
      return captured(s.body, inner);
    });
  }

  struct Depth {
    Depth(int& calls, int line) : count(calls) {
      if (++count > kDeepestCall) fail(line, "macros call each other more than 100 levels deep");
    }
    ~Depth() { --count; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    int& count;
  };

  // Expressions -----------------------------------------------------------------------------------------------------

  /// Adds the line to an error that has none.
  template <class F>
  static std::invoke_result_t<F> at_line(int line, F compute) {
    try {
      return compute();
    } catch (const EnvError& error) {
      if (std::string_view(error.what()).starts_with("line ")) throw;
      fail(line, error.what());
    }
  }

  Value evaluate(const Expression& e, const ScopePtr& scope) {
    count_steps(1);
    switch (e.kind) {
      case ExpressionKind::constant:
        return e.value;
      case ExpressionKind::name: {
        const Value* found = scope->find(e.text);
        return found != nullptr ? *found : Value(Undefined{e.text});
      }
      case ExpressionKind::list: {
        List list;
        for (const auto& part : e.parts) list.push_back(evaluate(*part, scope));
        return list;
      }
      case ExpressionKind::dict: {
        Value dict{Dict{}};
        for (size_t i = 0; i < e.parts.size(); i += 2)
          dict.set(evaluate(*e.parts[i], scope), evaluate(*e.parts[i + 1], scope));
        return dict;
      }
      case ExpressionKind::attribute:
        return attribute(e, scope);
      case ExpressionKind::conditional:
        if (evaluate(*e.parts[0], scope).truth()) return evaluate(*e.parts[1], scope);
        return e.parts[2] ? evaluate(*e.parts[2], scope) : Value(Undefined{"the value of an if without else"});
      case ExpressionKind::binary:
        return binary(e, scope);
      default:
        return at_line(e.line, [&] { return evaluate_operation(e, scope); });
    }
  }

  Value evaluate_operation(const Expression& e, const ScopePtr& scope) {
    const Value first = evaluate(*e.parts[0], scope);
    switch (e.kind) {
      case ExpressionKind::item: {
        const Value key = evaluate(*e.parts[1], scope);
        const Value found = item_of(defined(first, e.line), key);
        return found.is_undefined() && key.is_text() ? method_of(first, key.text()) : found;
      }
      case ExpressionKind::slice: {
        const auto bound = [&](size_t i) { return e.parts[i] ? evaluate(*e.parts[i], scope) : Value(); };
        const Value start = bound(1), stop = bound(2), step = bound(3);
        for (const Value* value : {&start, &stop, &step})
          if (!value->is_none() && !value->is_integer()) throw EnvError("a slice needs integers");
        return slice(defined(first, e.line), start, stop, step);
      }
      case ExpressionKind::call:
        if (!first.is_function()) throw EnvError(uncallable(*e.parts[0], first));
        return first.function()(arguments_of(e, scope));
      case ExpressionKind::filter:
        return apply_filter(e.text, first, arguments_of(e, scope));
      case ExpressionKind::test:
        return apply_test(e.text, first, arguments_of(e, scope));
      case ExpressionKind::unary:
        if (e.text == "not") return !first.truth();
        if (!first.is_number()) throw EnvError(fmt::format("'{}' needs a number, not {}", e.text, first.type_name()));
        if (e.text == "+") return first;
        return first.is_integer() ? Value(-first.integer()) : Value(-first.number());
      default:
        return compare(e, first, scope);
    }
  }

  static std::string uncallable(const Expression& callee, const Value& value) {
    if (value.is_undefined() && callee.kind == ExpressionKind::attribute)
      return "the method '" + callee.text + "' is not supported";
    if (value.is_undefined()) return "the function '" + callee.text + "' is not supported";
    return fmt::format("a value of type {} cannot be called", value.type_name());
  }

  Value attribute(const Expression& e, const ScopePtr& scope) {
    const Value value = evaluate(*e.parts[0], scope);
    defined(value, e.line);
    if (const Value method = method_of(value, e.text); !method.is_undefined()) return method;
    return item_of(value, e.text);
  }

  static const Value& defined(const Value& value, int line) {
    if (value.is_undefined()) fail(line, "'" + value.undefined_name() + "' is not defined");
    return value;
  }

  Arguments arguments_of(const Expression& e, const ScopePtr& scope) {
    Arguments arguments;
    for (const auto& argument : e.arguments) arguments.values.push_back(evaluate(*argument, scope));
    for (const auto& [name, argument] : e.named_arguments)
      arguments.named.emplace_back(name, evaluate(*argument, scope));
    return arguments;
  }

  Value compare(const Expression& e, Value left, const ScopePtr& scope) {
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = evaluate(*e.parts[i + 1], scope);
      const std::string& op = e.operators[i];
      const bool holds = op == "=="       ? left == right
                         : op == "!="     ? !(left == right)
                         : op == "in"     ? contains(right, left)
                         : op == "not in" ? !contains(right, left)
                         : op == "<"      ? less(left, right)
                         : op == ">"      ? less(right, left)
                         : op == "<="     ? !less(right, left)
                                          : !less(left, right);
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  Value binary(const Expression& e, const ScopePtr& scope) {
    const Value left = evaluate(*e.parts[0], scope);
    if (e.text == "and") return left.truth() ? evaluate(*e.parts[1], scope) : left;
    if (e.text == "or") return left.truth() ? left : evaluate(*e.parts[1], scope);
    const Value right = evaluate(*e.parts[1], scope);
    return at_line(e.line, [&]() -> Value {
      if (e.text == "~" || (e.text == "+" && left.is_text() && right.is_text())) {
        std::string both = to_text(left) + to_text(right);
        require_text_fits(both.size());
        count_steps(both.size() / 64);
        return both;
      }
      if (e.text == "+" && left.is_list() && right.is_list()) {
        count_steps(left.list().size() + right.list().size());
        List both = left.list();
        both.insert(both.end(), right.list().begin(), right.list().end());
        return both;
      }
      if (e.text == "*" && left.is_text() && right.is_integer()) return repeated(left.text(), right.integer());
      if (!left.is_number() || !right.is_number()) throw EnvError(operands_text(e, left, right));
      return left.is_integer() && right.is_integer() ? of_integers(e.text, left.integer(), right.integer())
                                                     : of_numbers(e.text, left.number(), right.number());
    });
  }

  static std::string operands_text(const Expression& e, const Value& left, const Value& right) {
    for (const Value* value : {&left, &right})
      if (value->is_undefined()) return fmt::format("'{}' is applied to an undefined value", e.text);
    return fmt::format("'{}' cannot be applied to {} and {}", e.text, left.type_name(), right.type_name());
  }

  static std::string repeated(const std::string& text, int64_t times) {
    if (times > 0 && text.size() > kMostText / static_cast<size_t>(times))
      throw EnvError("a string is larger than 256 MiB");
    std::string result;
    for (int64_t i = 0; i < times; ++i) result += text;
    return result;
  }

  static Value of_integers(const std::string& op, int64_t a, int64_t b) {
    constexpr int64_t kMost = int64_t{1} << 31;
    if (std::abs(a) > kMost || std::abs(b) > kMost)
      return of_numbers(op, static_cast<double>(a), static_cast<double>(b));
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (b == 0 && op != "**") throw EnvError("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    const int64_t quotient = op == "**" ? 0 : a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
    if (op == "//") return quotient;
    if (op == "%") return a - quotient * b;
    const double power = std::pow(static_cast<double>(a), static_cast<double>(b));
    return b >= 0 && std::abs(power) < 9e15 ? Value(static_cast<int64_t>(power)) : Value(power);
  }

  static Value of_numbers(const std::string& op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "**") return std::pow(a, b);
    if (b == 0) throw EnvError("division by zero");
    if (op == "/") return a / b;
    const double quotient = std::floor(a / b);
    return op == "//" ? quotient : a - quotient * b;
  }

  Rendered out_;
  int captures_ = 0, calls_ = 0;
  int64_t steps_ = 0;
};

bool has_generation_in(const Body& body) {
  for (const auto& statement : body)
    if (statement->kind == StatementKind::generation || has_generation_in(statement->body) ||
        has_generation_in(statement->otherwise))
      return true;
  return false;
}

}  // namespace

Template::Template(std::string_view source)
    : body_(std::make_shared<const Body>(parse(source))), has_generation_(has_generation_in(*body_)) {}

Rendered Template::render(const Dict& variables) const { return Renderer().run(*body_, variables); }

}  // namespace trainctl::jinja
