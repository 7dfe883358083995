// Each op's shapes and sharding rule, a row a case: op, inputs, attrs -> rule, uncuttable letters, shapes.
#include <doctest/doctest.h>

#include <set>

#include "engine/graph/rule.h"
#include "engine/ops/op_def.h"
#include "tests/ops_rules/one_node.h"

using namespace trainctl;

namespace {

struct Row {
  Given given;
  const char* rule;
  const char* uncuttable;
  std::vector<Shape> shapes;
};

const Attrs kGroup4{{"group", std::vector<Ints>{{0, 1, 2, 3}}}, {"group_size", int64_t{4}}};

Attrs with(Attrs attrs, const char* name, Value value) {
  attrs.set(name, std::move(value));
  return attrs;
}

const std::vector<Row>& rows() {
  static const Attrs ta{{"transpose_a", true}}, tb{{"transpose_b", true}};
  static const std::vector<Row> table = {
      // Shapes alone. Digits of a reshape: a cut of a dim is a cut of its first digit.
      {{"reshape", {{{2, 3, 4}}}, {{"shape", Ints{2, 12}}}}, "abc->a(bc)", "c", {{2, 12}}},
      {{"reshape", {{{2, 12}}}, {{"shape", Ints{2, 3, 4}}}}, "a(bc)->abc", "c", {{2, 3, 4}}},
      {{"reshape", {{{4, 6}}}, {{"shape", Ints{2, 12}}}}, "(ab)c->a(bc)", "bc", {{2, 12}}},
      {{"reshape", {{{5, 6, 4}}}, {{"shape", Ints{5, 8, 3}}}}, "abc->ade", "bcde", {{5, 8, 3}}},
      {{"reshape", {{{2, 1, 3}}}, {{"shape", Ints{2, 3, 1}}}}, "a()b->ab()", "", {{2, 3, 1}}},
      {{"reshape", {{{1, 6}}}, {{"shape", Ints{6}}}}, "()a->a", "", {{6}}},
      {{"reshape", {{{6}}}, {{"shape", Ints{6}}}}, "a->a", "", {{6}}},
      {{"reshape", {{{6, 5}}}, {{"shape", Ints{30}}}}, "ab->(ab)", "b", {{30}}},
      {{"transpose", {{{2, 3, 4}}}, {{"perm", Ints{0, 2, 1}}}}, "abc->acb", "", {{2, 4, 3}}},
      // Products.
      {{"matmul", {{{2, 3}}, {{3, 4}}}}, "mk,kn->mn", "", {{2, 4}}},
      {{"matmul", {{{2, 3}}, {{4, 3}}}, tb}, "mk,nk->mn", "", {{2, 4}}},
      {{"matmul", {{{3, 2}}, {{3, 4}}}, ta}, "km,kn->mn", "", {{2, 4}}},
      {{"matmul", {{{5, 2, 3}}, {{4, 3}}}, tb}, "amk,nk->amn", "", {{5, 2, 4}}},
      {{"matmul", {{{5, 6, 2, 3}}, {{5, 6, 3, 4}}}}, "abmk,abkn->abmn", "", {{5, 6, 2, 4}}},
      {{"matmul", {{{2, 3}}, {{3, 4}}, {{4}}}, {{"bias", true}}}, "mk,kn,n->mn", "", {{2, 4}}},
      {{"add_bias", {{{5, 2, 3}}, {{3}}}}, "abn,n->abn", "", {{5, 2, 3}}},
      // Element by element.
      {{"add", {{{2, 3}}, {{2, 3}}}}, "ab,ab->ab", "", {{2, 3}}},
      {{"add", {{{2, 3}}, {{3}}}}, "ab,b->ab", "", {{2, 3}}},
      {{"add", {{{2, 1}}, {{1, 3}}}}, "a(),()b->ab", "", {{2, 3}}},
      {{"add", {{{2, 1}}, {{2, 1}}}}, "ab,ab->ab", "", {{2, 1}}},
      {{"mul", {{{3}}, {{2, 3}}}}, "b,ab->ab", "", {{2, 3}}},
      {{"relu", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}},
      {{"gelu", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}},
      {{"sigmoid", {{{2, 3}}}}, "ab->ab", "", {{2, 3}}},
      {{"tanh", {{{2}}}}, "a->a", "", {{2}}},
      {{"dropout", {{{2, 3}}}, {{"p", 0.5}, {"key", int64_t{7}}}}, "ab->ab", "", {{2, 3}}},
      // Over a dim.
      {{"softmax", {{{2, 3, 4}}}, {{"dim", int64_t{1}}}}, "abc->abc", "b", {{2, 3, 4}}},
      {{"layer_norm", {{{2, 3, 4}}}}, "abd->abd,ab,ab", "d", {{2, 3, 4}, {2, 3}, {2, 3}}},
      {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}}, "ad,d,d->ad,a,a", "d", {{2, 4}, {2}, {2}}},
      {{"reduce_sum", {{{2, 3, 4}}}, {{"dims", Ints{1}}}}, "abc->ac", "", {{2, 4}}},
      {{"reduce_sum", {{{2, 3, 4}}}, {{"dims", Ints{1, 2}}, {"keep_dims", true}}}, "abc->a()()", "", {{2, 1, 1}}},
      {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{0, 1}}}}, "ab->()", "", {{1}}},
      // Statistics of the batch: partial sums where it is cut.
      {{"batch_norm_mean", {{{2, 3, 4, 5}}}}, "ncab->c", "", {{3}}},
      {{"batch_norm_var", {{{2, 3}}, {{3}}}}, "nc,c->c", "", {{3}}},
      {{"batch_norm_running", {{{3}}, {{3}}, {{3}}, {{3}}}}, "c,c,c,c->", "", {}},
      {{"batch_norm", {{{2, 3}}, {{3}}, {{3}}}}, "nc,c,c->nc", "", {{2, 3}}},
      {{"batch_norm", {{{2, 3, 4}}, {{3}}, {{3}}, {{3}}, {{3}}}}, "nca,c,c,c,c->nca", "", {{2, 3, 4}}},
      // A rank without a row gives 0: the vocabulary is a contraction.
      {{"embedding", {{{2, 3}, DType::i32}, {{9, 4}}}}, "ab,vd->abd", "", {{2, 3, 4}}},
      // Losses: everything is summed.
      {{"mae", {{{2, 3}}, {{2, 3}}}}, "ab,ab->()", "", {{1}}},
      {{"mse", {{{2, 3}}, {{2, 3}}}}, "ab,ab->()", "", {{1}}},
      {{"softmax_cross_entropy", {{{2, 3, 5}}, {{2, 3}, DType::i32}}}, "abc,ab->()", "c", {{1}}},
      // hybrid_parallel: local shapes, nothing is cut.
      {{"all_reduce", {{{8, 3}}}, kGroup4}, "ab->cd", "abcd", {{8, 3}}},
      {{"all_gather", {{{8, 3}}}, kGroup4}, "ab->cd", "abcd", {{32, 3}}},
      {{"reduce_scatter", {{{8, 3}}}, kGroup4}, "ab->cd", "abcd", {{2, 3}}},
      {{"all_to_all", {{{8, 3}}}, with(with(kGroup4, "split_dim", int64_t{0}), "concat_dim", int64_t{1})},
       "ab->cd",
       "abcd",
       {{2, 12}}},
      {{"broadcast", {{{8, 3}}}, with(kGroup4, "root", int64_t{0})}, "ab->cd", "abcd", {{8, 3}}},
  };
  return table;
}

}  // namespace

TEST_CASE("every op has the rule and the shapes of its table row") {
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.given.op));
    CAPTURE(std::string(row.rule));
    const OpDef& op = get_op(row.given.op);
    const RuleText rule = op.rule(row.given.inputs, row.given.attrs);
    CHECK(rule.text == row.rule);
    CHECK(rule.uncuttable == row.uncuttable);
    CHECK((rule.uncuttable.empty() || !rule.why_not.empty()));
    std::vector<Shape> shapes;
    for (const TensorInfo& out : op.infer(row.given.inputs, row.given.attrs)) shapes.push_back(out.shape);
    CHECK(shapes == row.shapes);
    CHECK_NOTHROW(verify_graph(one_node(row.given)));
  }
}

TEST_CASE("every op that has a rule stands in the table") {
  std::set<std::string> seen;
  for (const Row& row : rows()) seen.insert(row.given.op);
  for (const OpDef* op : all_ops()) {
    CAPTURE(std::string(op->name));
    const bool backward_alone = op->rule == nullptr || std::string(op->name).ends_with("_grad");
    CHECK((backward_alone || seen.contains(op->name)));
  }
}

TEST_CASE("moving data keeps its dtype") {
  const std::vector<TensorInfo> ids = {{{2, 3}, DType::i32}};
  CHECK(get_op("reshape").infer(ids, {{"shape", Ints{6}}})[0].dtype == DType::i32);
  CHECK(get_op("transpose").infer(ids, {{"perm", Ints{1, 0}}})[0].dtype == DType::i32);
}

TEST_CASE("a product costs two operations a term, and each operand's bytes once") {
  const std::vector<TensorInfo> in = {{{5, 2, 3}}, {{3, 4}}}, out = {{{5, 2, 4}}};
  const Cost cost = get_op("matmul").cost(in, out, {});
  CHECK(cost.flops == 2.0 * 5 * 2 * 3 * 4);
  CHECK(cost.bytes == 4.0 * (30 + 12 + 40));
  const std::vector<TensorInfo> grads = {{{5, 2, 3}}, {{5, 2, 4}}}, weight = {{{4, 3}}};
  CHECK(get_op("matmul_weight_grad").cost(grads, weight, {}).flops == 2.0 * 5 * 2 * 3 * 4);
}

TEST_CASE("the cost of every op is finite and not negative") {
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.given.op));
    const OpDef& op = get_op(row.given.op);
    const Cost cost = op.cost(row.given.inputs, op.infer(row.given.inputs, row.given.attrs), row.given.attrs);
    CHECK(cost.flops >= 0);
    CHECK(cost.bytes > 0);
  }
}
