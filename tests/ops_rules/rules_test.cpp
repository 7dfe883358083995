// Tests the shapes and the sharding rule of each op, with the rule rows of the families' cases.
#include <doctest/doctest.h>

#include "engine/graph/rule.h"
#include "tests/ops_rules/one_node.h"

using namespace trainctl;

TEST_CASE("every op has the rule and the shapes of its table row") {
  for (const RuleCase& row : rule_cases()) {
    CAPTURE(std::string(row.given.op));
    CAPTURE(std::string(row.rule));
    const OpDef& op = get_op(row.given.op);
    const RuleText rule = op.rule(row.given.inputs, row.given.attrs);
    CHECK(rule.text == row.rule);
    CHECK(rule.uncuttable == row.uncuttable);
    CHECK(rule.inner == row.inner);
    CHECK((rule.inner.empty() || op.inner_sum));
    CHECK((rule.uncuttable.empty() || !rule.why_not.empty()));
    std::vector<Shape> shapes;
    for (const TensorInfo& out : op.infer(row.given.inputs, row.given.attrs)) shapes.push_back(out.shape);
    CHECK(shapes == row.shapes);
    CHECK_NOTHROW(verify_graph(one_node(row.given)));
  }
}

TEST_CASE("moving data keeps its dtype") {
  const std::vector<TensorInfo> ids = {{{2, 3}, DType::i32}};
  CHECK(get_op("reshape").infer(ids, {{"shape", Ints{6}}})[0].dtype == DType::i32);
  CHECK(get_op("transpose").infer(ids, {{"perm", Ints{1, 0}}})[0].dtype == DType::i32);
}

TEST_CASE("a product costs two operations per term, and each operand's bytes once") {
  const std::vector<TensorInfo> in = {{{5, 2, 3}}, {{3, 4}}}, out = {{{5, 2, 4}}};
  const Cost cost = kernel_cost(get_op("matmul").kernel, in, out, {});
  CHECK(cost.flops == 2.0 * 5 * 2 * 3 * 4);
  CHECK(cost.bytes == 4.0 * (30 + 12 + 40));
  const std::vector<TensorInfo> grads = {{{5, 2, 3}}, {{5, 2, 4}}}, weight = {{{4, 3}}};
  CHECK(kernel_cost(get_op("matmul_weight_grad").kernel, grads, weight, {}).flops == 2.0 * 5 * 2 * 3 * 4);
}

TEST_CASE("the cost of every op is finite and not negative") {
  for (const RuleCase& row : rule_cases()) {
    CAPTURE(std::string(row.given.op));
    const OpDef& op = get_op(row.given.op);
    const std::vector<TensorInfo> outputs = op.infer(row.given.inputs, row.given.attrs);
    const Cost cost = kernel_cost(op.kernel, row.given.inputs, outputs, row.given.attrs);
    CHECK(cost.flops >= 0);
    CHECK(cost.bytes > 0);
  }
}
