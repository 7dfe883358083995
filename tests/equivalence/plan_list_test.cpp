// Prints the table of plans for programs that are not written in C++, as one JSON object per line.
//
//   test_equivalence --no-skip -tc="the table of plans*"      tests/hosts/equivalence.py
#include <doctest/doctest.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/equivalence/plan_cases.h"

using namespace trainctl;

TEST_CASE("the table of plans as JSON lines" * doctest::skip()) {
  for (const PlanCase& plan : plan_cases()) {
    const nlohmann::ordered_json json = {
        {"name", plan.name},           {"job", plan.job},
        {"same", plan.same},           {"plan", plan.plan},
        {"tolerance", plan.tolerance}, {"reference", plan.reference ? plan.reference : plan.job}};
    std::cout << json.dump() << "\n";
  }
  CHECK(!plan_cases().empty());
}
