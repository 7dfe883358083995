// Tests of jobs whose shapes do not fit: every problem is reported with the layer's line and column.
#include <doctest/doctest.h>

#include "engine/base/text.h"
#include "tests/model/built.h"

using namespace trainctl;
using Lines = std::vector<std::string>;

namespace {

struct Row {
  const char* text;  ///< line 1 is the data set, so this starts at line 2
  Lines problems;
  Data data = {};
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"network:\n  - {name: r, type: reshape, shape: [5, -1]}\n",
       {"3:5 layer r: a sample of [12] has 12 elements, which do not fit shape [5, -1]"}},
      {"network:\n  - {name: t, type: transpose, perm: [0, 2, 1]}\n",
       {"3:5 layer t: transpose: perm [0, 2, 1] must contain each of the 2 dims of [8, 12] exactly once"}},
      {"network:\n  - {name: a, type: dense, units: 3}\n  - {name: b, type: add, inputs: [a, data]}\n",
       {"4:5 layer b: add: shapes [8, 3] and [8, 12] cannot be broadcast: 3 and 12 differ in dim 1 from the last"}},
      {"network:\n  - {name: a, type: dense, units: 3}\n  - {name: b, type: matmul, inputs: [a, data]}\n",
       {"4:5 layer b: matmul: [8, 3] times [8, 12]: the contracted dims are 3 and 8, but must be equal"}},
      {"network:\n  - {name: b, type: matmul, inputs: [data, data], transpose_b: true}\n",
       {"3:5 layer b: a matmul of a tensor with itself is not supported; put a reshape layer before one of the "
        "inputs"}},
      {"network:\n  - {name: w, type: matmul, units: 3,\n     transpose_a: true}\n",
       {"4:19 layer w: transpose_a makes the batch of [8, 12] the contracted dim, so the shape of the weight would "
        "depend on the batch; remove transpose_a, or give a second input in place of units"}},
      {"network:\n  - {name: s, type: softmax, dim: 2}\n",
       {"3:5 layer s: there is no dim 2 in its input [8, 12]; dims are -2 to 1"}},
      {"network:\n  - {name: s, type: reduce_sum, dims: [1, -1]}\n",
       {"3:5 layer s: reduce_sum: dims [1, 1] must be distinct dims of [8, 12]"}},
      {"network:\n  - {name: a, type: dense, units: 3}\n  - {name: b, type: dense, units: 4, share: a}\n",
       {"4:5 layer b: share: the weight of 'a' is [3, 12], but this layer needs [4, 3]"}},
      {"network:\n  - {name: e, type: embedding, vocab: 5, units: 3}\n",
       {"3:5 layer e: embedding expects i32 ids, but got [8, 12] f32"}},
      {"network:\n  - {name: d, type: dense, units: 3}\n",
       {"3:5 layer d: dense expects f32, but got [8, 12] i32"},
       {.integer = true}},
      {"network:\n  - {name: s, type: slice, dim: 1, begin: 9, end: -5}\n",
       {"3:5 layer s: elements 9 to 7 are out of range for dim 1 of its input [8, 12], which has 12"}},
      {"network:\n  - {name: s, type: slice, dim: 2}\n",
       {"3:5 layer s: there is no dim 2 in its input [8, 12]; dims are -2 to 1"}},
      {"network:\n  - {name: s, type: squeeze, dim: 1}\n",
       {"3:5 layer s: dim 1 of its input [8, 12] has size 12, but only a dim of size 1 can be removed"}},
      {"network:\n  - {name: u, type: unsqueeze, dim: 0}\n",
       {"3:5 layer u: a new dim of its input [8, 12] can be at position 1 to 2 or -1 to -2, not at 0"}},
      {"network:\n  - {name: g, type: group_norm, groups: 5}\n",
       {"3:5 layer g: group_norm: the 12 channels in dim 1 of [8, 12] cannot be divided evenly into 5 groups"}},
      {"network:\n  - {name: p, type: position_embedding, max_length: 3}\n",
       {"3:5 layer p: position_embedding: [8, 4, 3] has 4 positions, but max_length is 3"},
       {.shape = {4, 3}}},
      {"network:\n  - {name: h, type: one_hot, classes: 5}\n",
       {"3:5 layer h: one_hot expects i32 ids, but got [8, 12] f32"}},
      {"network:\n  - {name: b, type: batch_norm}\n",
       {"3:5 layer b: batch_norm needs an input [batch, features, ..], but got [8]"},
       {.shape = {}}},
      {"network:\n  - {name: b, type: batch_norm}\nparallel: {micro_batches: 8}\n",
       {"3:5 layer b: batch_norm needs at least 2 values per feature in a micro-batch, but its input [1, 12] has 1, "
        "so its output would be constant; increase dataset.batch, or reduce parallel.micro_batches"}},
      {"network:\n  - {name: g, type: group_norm, groups: 12}\n",
       {"3:5 layer g: group_norm needs at least 2 values per group, but its input [8, 12] has 1, so its output would "
        "be "
        "constant; use it before the layers that reduce images to one pixel, or remove it"}},
      {"network:\n  - {name: p, type: adaptive_avg_pool2d, size: 1}\n  - {name: i, type: instance_norm}\n",
       {"4:5 layer i: instance_norm needs at least 2 values per channel, but its input [8, 3, 1, 1] has 1, so its "
        "output would be constant; use it before the layers that reduce images to one pixel, or remove it"},
       {.shape = {3, 4, 4}}},
      {"network:\n  - {name: a, type: attention, heads: 1, score_bias: input}\n",
       {"3:54 layer a: attention: with score_bias: input the last input is the bias, but there is one input"},
       {.shape = {4, 3}}},
      {"network:\n  - {name: a, type: attention, heads: 1, inputs: [data, data, data, data, data]}\n",
       {"3:5 layer a: attention: 5 inputs are q, k, v, a mask and a bias of the scores; add score_bias: input"},
       {.shape = {4, 3}}},
      {"network:\n  - {name: a, type: attention, heads: 1, score_bias: input, inputs: [data, data]}\n",
       {"3:5 layer a: attention: the bias of the scores is [8, 4, 3], expected [8, 4, 4], or 1 in place of any but the "
        "last"},
       {.shape = {4, 3}}},
      {"network:\n  - {name: s, type: slice, dim: 1, end: 2}\n"
       "  - {name: a, type: attention, heads: 1, alibi: true, inputs: [data, s, s]}\n",
       {"4:49 layer a: attention: alibi needs queries and keys of the same sequence, but there are 4 and 2 rows"},
       {.shape = {4, 3}}},
      {"network:\n  - {name: a, type: dense, units: 3}\nloss: mae\n",
       {"4:7 the prediction is [8, 3], so the label must be [8, 3], but the data set's is [8]"}},
      {"network:\n  - {name: d, type: dense, units: 1000000000}\n  - {name: e, type: dense, units: 1000000000}\n",
       {"4:5 layer e: e.weight would have shape [1000000000, 1000000000]: a tensor can have at most "
        "288230376151711744 elements"}},
      {"network:\n  - {name: r, type: reshape, shape: [1000000000, 1000000000, 1000000000]}\n",
       {"3:5 layer r: a sample of [12] has 12 elements, which do not fit shape [1000000000, 1000000000, 1000000000]"}},
  };
  return table;
}

}  // namespace

TEST_CASE("a layer whose shapes do not fit is named with its position and both shapes") {
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.text));
    CHECK(join(problems(row.text, row.data), "; ") == join(row.problems, "; "));
  }
}

TEST_CASE("all wrong layers are reported, but not those that only read a wrong one") {
  const Lines found = problems(R"(network:
  - {name: a, type: reshape, shape: [5]}
  - {name: b, type: relu}
  - {name: c, type: softmax, dim: 4, inputs: [data]}
loss: mae
)");
  REQUIRE(found.size() == 2);
  CHECK(found[0].starts_with("3:5 layer a"));
  CHECK(found[1].starts_with("5:5 layer c"));
}
