// What an op's infer says of inputs that do not fit: the shapes, and what was expected.
#include <doctest/doctest.h>

#include "engine/ops/op_def.h"
#include "tests/ops_rules/one_node.h"

using namespace trainctl;

namespace {

struct Row {
  Given given;
  const char* message;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{"matmul", {{{2, 3}}, {{4, 5}}}},
       "matmul: [2, 3] times [4, 5]: the contracted dims are 3 and 4, they must be equal"},
      {{"matmul", {{{2, 3}}, {{4, 5}}}, {{"transpose_b", true}}},
       "matmul: [2, 3] times [4, 5] transposed: the contracted dims are 3 and 5, they must be equal"},
      {{"matmul", {{{7, 2, 3}}, {{8, 3, 5}}}},
       "matmul: [7, 2, 3] times [8, 3, 5]: the leading dims [7] and [8] differ"},
      {{"matmul", {{{3}}, {{3, 5}}}}, "matmul needs an input of at least 2 dims, it is given [3]"},
      {{"matmul", {{{2, 3}, DType::i32}, {{3, 5}}}}, "matmul takes f32, it is given [2, 3] i32"},
      {{"matmul", {{{7, 2, 3}}, {{2, 5}}}, {{"transpose_a", true}}},
       "matmul: [7, 2, 3] transposed times [2, 5]: transpose_a of more than 2 dims needs a right side with the same "
       "leading dims"},
      {{"add_bias", {{{2, 3}}, {{4}}}}, "add_bias: the bias is [4], [3] was expected"},
      {{"add", {{{2, 3}}, {{2, 4}}}},
       "add: shapes [2, 3] and [2, 4] do not broadcast: 3 and 4 meet at dim 1 from the last"},
      {{"mul", {{{2, 3}}, {{3, 3}}}},
       "mul: shapes [2, 3] and [3, 3] do not broadcast: 2 and 3 meet at dim 2 from the last"},
      {{"add", {{{2, 3}}}}, "add takes 2 inputs, it is given 1"},
      {{"relu", {{{2}, DType::i32}}}, "relu takes f32, it is given [2] i32"},
      {{"reshape", {{{2, 3}}}, {{"shape", Ints{4}}}}, "reshape: [2, 3] has 6 elements, [4] has 4"},
      {{"transpose", {{{2, 3}}}, {{"perm", Ints{0, 0}}}},
       "transpose: perm [0, 0] must name each of the 2 dims of [2, 3] once"},
      {{"transpose", {{{2, 3}}}, {{"perm", Ints{0}}}},
       "transpose: perm [0] must name each of the 2 dims of [2, 3] once"},
      {{"softmax", {{{2, 3}}}, {{"dim", int64_t{2}}}}, "softmax: there is no dim 2 in [2, 3]"},
      {{"dropout", {{{2}}}, {{"p", 1.0}, {"key", int64_t{0}}}}, "dropout: p is 1, expected 0 <= p < 1"},
      {{"batch_norm_mean", {{{2}}}}, "batch_norm_mean needs an input of at least 2 dims, it is given [2]"},
      {{"layer_norm", {{{2, 3}}, {{2}}, {{3}}}}, "layer_norm: the weight is [2], [3] was expected"},
      {{"embedding", {{{2}}, {{9, 4}}}}, "embedding takes i32 ids, it is given [2] f32"},
      {{"embedding", {{{2}, DType::i32}, {{9}}}}, "embedding needs a table [vocab, units], it is given [9]"},
      {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{1, 1}}}}, "reduce_sum: dims [1, 1] must be different dims of [2, 3]"},
      {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{2}}}}, "reduce_sum: dims [2] must be different dims of [2, 3]"},
      {{"mae", {{{2, 3}}, {{2}}}}, "mae: input 1 is [2], [2, 3] was expected"},
      {{"softmax_cross_entropy", {{{2, 3}}, {{3}, DType::i32}}},
       "softmax_cross_entropy: the label is [3] i32, [2] was expected"},
      {{"softmax_cross_entropy", {{{2, 3}}, {{2}}}}, "softmax_cross_entropy: the label is f32, i32 was expected"},
      {{"reduce_scatter", {{{3}}}, {{"group_size", int64_t{2}}}},
       "reduce_scatter: dim 0 of [3] does not divide by the 2 ranks of a group"},
      {{"all_to_all", {{{4}}}, {{"group_size", int64_t{2}}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}}},
       "all_to_all: there is no dim 1 in [2]"},
  };
  return table;
}

}  // namespace

TEST_CASE("inputs that do not fit are named with what was expected") {
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.given.op));
    CHECK_THROWS_WITH_AS(get_op(row.given.op).infer(row.given.inputs, row.given.attrs), row.message, ShapeError);
  }
}
