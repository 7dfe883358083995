// Runs every row of the families' cases on the CPU.
#include "tests/op_cases/op_cases.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/op_cases/op_case_checks.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

/// Returns the rows of the families in TRAINCTL_OP_CASES. If a check tests nothing on any of them, the test case is
/// skipped.
template <class Concerns>
std::vector<OpCase> rows_that(Concerns concerns) {
  std::vector<OpCase> rows = op_cases();
  std::erase_if(rows, [&](const OpCase& row) { return !concerns(row); });
  if (rows.empty()) skip_test("TRAINCTL_OP_CASES names no family with rows for this case");
  return rows;
}

std::vector<OpCase> all_rows() {
  return rows_that([](const OpCase&) { return true; });
}

}  // namespace

TEST_CASE("an op infers the expected shapes") {
  for (const OpCase& row : all_rows()) {
    const CaseGraph built = build_case(row, false);
    const Node& last = built.graph.nodes[built.last];
    REQUIRE_MESSAGE(last.outputs.size() == row.outputs.size(), row.name());
    for (size_t o = 0; o < row.outputs.size(); ++o) {
      CHECK_MESSAGE(built.graph.tensors[last.outputs[o]].shape == row.outputs[o], row.name());
    }
  }
}

TEST_CASE("a forward kernel gives the result of the naive loop in double") {
  for (const OpCase& row : all_rows()) check_forward(row, {});
}

TEST_CASE("backward kernels give the slopes of finite differences") {
  for (const OpCase& row : rows_that(has_backward)) check_backward(row, {});
}

TEST_CASE("every cut that the rule permits gives the unsharded result, forward and backward") {
  int cuts_run = 0;
  for (const OpCase& row : rows_that(has_cuts)) cuts_run += check_cuts(row, {});
  if (std::getenv("TRAINCTL_OP_CASES") == nullptr) CHECK(cuts_run > 200);
}

TEST_CASE("a kernel that can accumulate adds to the output's contents") {
  for (const OpCase& row : rows_that(has_accumulation)) check_accumulate(row, {});
}

TEST_CASE("an op that may work in place gives the same result there") {
  for (const OpCase& row : rows_that(has_in_place)) check_in_place(row, {});
}

TEST_CASE("two threads give the same bits as one, but for convolutions") {
  for (const OpCase& row : all_rows()) check_threads(row, {});
}

TEST_CASE("a run twice gives the same bits") {
  for (const OpCase& row : all_rows()) check_same_bits_twice(row, {});
}

}  // namespace trainctl
