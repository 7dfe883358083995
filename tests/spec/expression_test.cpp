// The expressions of a job: values, and where an error is.
#include "engine/spec/expression.h"

#include <doctest/doctest.h>

using namespace trainctl;

namespace {

const Names kNames = {
    {"d", int64_t{768}}, {"heads", int64_t{12}}, {"rate", 0.5}, {"act", std::string("gelu")}, {"on", true}};

std::string value(const std::string& expression) { return to_text(expand_text("${" + expression + "}", kNames)); }

/// "2: there is no 'x' here": where in the expression, from 0, and what.
std::string error(const std::string& text) {
  try {
    expand_text(text, kNames);
  } catch (const ExpressionError& e) {
    return std::to_string(e.at) + ": " + e.message;
  }
  return "no error";
}

}  // namespace

TEST_CASE("integers stay integers, but for / which gives a float") {
  CHECK(value("4*d") == "3072");
  CHECK(value("d//heads") == "64");
  CHECK(value("d/heads") == "64.0");
  CHECK(value("d - 2*heads + 1") == "745");
  CHECK(value("2*(d + heads)") == "1560");
  CHECK(value("rate*2") == "1.0");
  CHECK(std::holds_alternative<int64_t>(expand_text("${d}", kNames)));
  CHECK(std::holds_alternative<double>(expand_text("${1e3}", kNames)));
}

TEST_CASE("// and % round down, as in Python") {
  CHECK(value("7//2") == "3");
  CHECK(value("-7//2") == "-4");
  CHECK(value("-7 % 3") == "2");
  CHECK(value("7 % -3") == "-2");
  CHECK(value("7.5 // 2") == "3.0");
  CHECK(value("-7.5 % 2") == "0.5");
}

TEST_CASE("operators of one level are evaluated from left to right, and a sign binds tightest") {
  CHECK(value("10 - 3 - 2") == "5");
  CHECK(value("100 // 7 * 7") == "98");
  CHECK(value("-2 * -3") == "6");
  CHECK(value("1 + 2 * 3 % 4") == "3");
}

TEST_CASE("conditions compare numbers and texts, and `and`, `or`, `not` join them") {
  CHECK(value("heads == 12") == "true");
  CHECK(value("heads == 12.0") == "true");
  CHECK(value("act != 'gelu'") == "false");
  CHECK(value("d >= 768 and not act == 'relu'") == "true");
  CHECK(value("heads < 4 or on") == "true");
  CHECK(value("not on") == "false");
}

TEST_CASE("an operand that does not affect the result is not computed, so it may divide by zero") {
  CHECK(value("on or d // 0 == 1") == "true");
  CHECK(value("not on and d // 0 == 1") == "false");
}

TEST_CASE("a text around expressions is text, and $${ is a literal ${") {
  CHECK(to_text(expand_text("h${heads}.${act}", kNames)) == "h12.gelu");
  CHECK(to_text(expand_text("$${HOME} costs 5$", kNames)) == "${HOME} costs 5$");
  CHECK(std::holds_alternative<std::string>(expand_text("1${heads}", kNames)));
  CHECK(escape_expressions("a ${b} $5") == "a $${b} $5");
  CHECK(to_text(expand_text(escape_expressions("${x} $${y}"), {})) == "${x} $${y}");
}

TEST_CASE("an error says where in the text it is") {
  CHECK(error("${4*dd}") == "4: unknown name 'dd'");
  CHECK(error("x ${d // (heads - 12)}") == "6: division by zero");
  CHECK(error("${d % 0}") == "4: division by zero");
  CHECK(error("a ${d") == "2: this '${' is never closed");
  CHECK(error("${}") == "2: ${} is empty");
  CHECK(error("${d d}") == "4: expected an operator or the end of the expression, not 'd'");
  CHECK(error("${(d}") == "2: this '(' is never closed");
  CHECK(error("${d)}") == "3: expected an operator or the end of the expression, not ')'");
  CHECK(error("${d +}") == "5: the expression ends where a value is expected");
  CHECK(error("${2d}") == "2: '2d' is neither a number nor a name");
  CHECK(error("${act * 2}") == "6: '*' needs numbers, not text 'gelu'");
  CHECK(error("${act < 'x'}") == "6: '<' needs numbers, not text");
  CHECK(error("${act == 2}") == "6: cannot compare text with a number");
  CHECK(error("${d and on}") == "2: 'and' needs true or false, not 768");
  CHECK(error("${d ** 2}") == "4: the operator '**' does not exist");
  CHECK(error("${max(d)}") == "2: expressions have no functions, so 'max(' is not valid");
  CHECK(error("${act == 'gelu}") == "9: this quote is never closed");
}

TEST_CASE("a result that does not fit in 64 bits is an error, never another number") {
  CHECK(value("9223372036854775807") == "9223372036854775807");
  CHECK(error("${9223372036854775808}") == "2: 9223372036854775808 does not fit into 64 bits");
  CHECK(error("${9223372036854775807 + 1}") == "22: the result does not fit into 64 bits");
  CHECK(error("${d * 9223372036854775807}") == "4: the result does not fit into 64 bits");
  CHECK(error("${(-9223372036854775807 - 1) // -1}") == "29: the result does not fit into 64 bits");
  CHECK(value("(-9223372036854775807 - 1) % -1") == "0");
  CHECK(error("${1e308 * 10}") == "8: the result does not fit into 64 bits");
}

TEST_CASE("nesting is limited, and long chains are not") {
  const std::string deep = "${" + std::string(5000, '(') + "1" + std::string(5000, ')') + "}";
  CHECK(error(deep).find("nested more than 40 levels deep") != std::string::npos);
  CHECK(error("${" + std::string(5000, '-') + "1}").find("nested more than") != std::string::npos);
  std::string nots = "${";
  for (int i = 0; i < 5000; ++i) nots += "not ";
  CHECK(error(nots + "on}").find("nested more than") != std::string::npos);
  std::string chain = "${1";
  for (int i = 0; i < 5000; ++i) chain += "+1";
  CHECK(to_text(expand_text(chain + "}", {})) == "5001");
}

TEST_CASE("a text of texts cannot grow without bound") {
  const Names names = {{"a", std::string(40'000, 'x')}};
  CHECK_THROWS_AS(expand_text("${a}${a}", names), ExpressionError);
}

TEST_CASE("names of vars are words, but not those of the language") {
  CHECK(is_var_name("d_model2"));
  CHECK(is_var_name("_x"));
  CHECK_FALSE(is_var_name("2d"));
  CHECK_FALSE(is_var_name("and"));
  CHECK_FALSE(is_var_name("d-model"));
  CHECK_FALSE(is_var_name(""));
}
