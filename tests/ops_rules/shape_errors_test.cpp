// Tests the errors of an op's infer for inputs that do not fit: they name the shapes, and what was expected.
#include <doctest/doctest.h>

#include "tests/ops_rules/one_node.h"

using namespace trainctl;

TEST_CASE("the error for inputs that do not fit names them and what was expected") {
  for (const ShapeErrorCase& row : shape_error_cases()) {
    CAPTURE(std::string(row.given.op));
    CHECK_THROWS_WITH_AS(get_op(row.given.op).infer(row.given.inputs, row.given.attrs), row.message, ShapeError);
  }
}
