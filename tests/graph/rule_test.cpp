// Sharding rules as text: reading, the factor that a cut takes, printing.
#include "engine/graph/rule.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"

using namespace trainctl;
using Dims = std::vector<std::string>;

TEST_CASE("a rule's dims are letters, or several letters in brackets") {
  const RuleLetters rule = parse_rule("n(chw),kd->n()d");
  REQUIRE(rule.inputs.size() == 2);
  CHECK(rule.inputs[0] == Dims{"n", "chw"});
  CHECK(rule.inputs[1] == Dims{"k", "d"});
  REQUIRE(rule.outputs.size() == 1);
  CHECK(rule.outputs[0] == Dims{"n", "", "d"});
}

TEST_CASE("an empty side of a rule has no tensors, an empty place between commas is a scalar") {
  CHECK(parse_rule("c,c->").outputs.empty());
  CHECK(parse_rule("->a").inputs.empty());
  const RuleLetters scalar = parse_rule("a,,b->a");
  REQUIRE(scalar.inputs.size() == 3);
  CHECK(scalar.inputs[1].empty());
}

TEST_CASE("a rule that is not in the grammar is our bug") {
  CHECK_THROWS_AS(parse_rule("mk,kn"), InternalError);
  CHECK_THROWS_AS(parse_rule("m(k,kn->mn"), InternalError);
  CHECK_THROWS_AS(parse_rule("m k->m"), InternalError);
  CHECK_THROWS_AS(parse_rule("m(k.)->m"), InternalError);
}

TEST_CASE("a dim of several factors is cut at its first factor of size > 1") {
  const std::vector<Factor> factors = {{"a", 1}, {"b", 4}, {"c", 3}};
  CHECK(cut_factor({0, 1, 2}, factors) == 1);
  CHECK(cut_factor({2, 1}, factors) == 2);
  CHECK(cut_factor({0}, factors) == -1);
  CHECK(cut_factor({}, factors) == -1);
}

TEST_CASE("a rule is printed as it was written") {
  const std::vector<Factor> factors = {{"n", 2}, {"c", 3}, {"h", 4}};
  const Rule rule{{{{0}, {1}, {2}}, {{2}}}, {{{0}, {1, 2}}, {{}}}};
  CHECK(to_string(rule, factors) == "nch,h->n(ch),()");
}

TEST_CASE("a shape is printed as a list") {
  CHECK(to_string(Shape{2, 3}) == "[2, 3]");
  CHECK(to_string(Shape{}) == "[]");
}
