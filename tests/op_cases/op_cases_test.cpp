// Every row of the families' cases on the CPU.
#include "tests/op_cases/op_cases.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/op_cases/op_case_checks.h"

namespace trainctl {

TEST_CASE("an op infers the expected shapes") {
  for (const OpCase& row : op_cases()) {
    const CaseGraph built = build_case(row, false);
    const Node& last = built.graph.nodes[built.last];
    REQUIRE_MESSAGE(last.outputs.size() == row.outputs.size(), row.name());
    for (size_t o = 0; o < row.outputs.size(); ++o) {
      CHECK_MESSAGE(built.graph.tensors[last.outputs[o]].shape == row.outputs[o], row.name());
    }
  }
}

TEST_CASE("a forward kernel gives the result of the naive loop in double") {
  for (const OpCase& row : op_cases()) check_forward(row, {});
}

TEST_CASE("backward kernels give the slopes of finite differences") {
  for (const OpCase& row : op_cases()) check_backward(row, {});
}

TEST_CASE("every cut that the rule permits gives the unsharded result, forward and backward") {
  int cuts_run = 0;
  for (const OpCase& row : op_cases()) cuts_run += check_cuts(row, {});
  if (std::getenv("TRAINCTL_OP_CASES") == nullptr) CHECK(cuts_run > 200);
}

TEST_CASE("a kernel that can accumulate adds to the output's contents") {
  for (const OpCase& row : op_cases()) check_accumulate(row, {});
}

TEST_CASE("an op that may work in place gives the same result there") {
  for (const OpCase& row : op_cases()) check_in_place(row, {});
}

TEST_CASE("two threads give the same result as one") {
  for (const OpCase& row : op_cases()) check_threads(row, {});
}

TEST_CASE("a run twice gives the same bits") {
  for (const OpCase& row : op_cases()) check_same_bits_twice(row, {});
}

}  // namespace trainctl
