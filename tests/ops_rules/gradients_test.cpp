// The backward nodes of each op and their rules. What a gradient is a partial sum over follows from
// its rule alone: the factors that the node's inputs have and its output lacks. So for each row the
// reason is given why cutting any factor that the forward rule permits leaves a correct (partial) sum.
#include <doctest/doctest.h>

#include <set>

#include "engine/base/text.h"
#include "tests/ops_rules/one_node.h"

using namespace trainctl;

namespace {

struct Row {
  Given given;
  std::vector<std::string> nodes;
  const char* why;
};

const Attrs kGroup4{{"group", std::vector<Ints>{{0, 1, 2, 3}}}, {"group_size", int64_t{4}}};

const std::vector<Row>& rows() {
  static const Attrs ta{{"transpose_a", true}}, tb{{"transpose_b", true}};
  static const Attrs tab{{"transpose_a", true}, {"transpose_b", true}};
  static const std::vector<Row> table = {
      {{"reshape", {{{2, 3, 4}}}, {{"shape", Ints{2, 12}}}},
       {"reshape a(bc)->abc"},
       "moves elements; a and b are outermost in their dims on both sides, so a block is a block"},
      {{"transpose", {{{2, 3, 4}}}, {{"perm", Ints{2, 0, 1}}}}, {"transpose cab->abc"}, "moves elements"},
      {{"matmul", {{{2, 3}}, {{3, 4}}}},
       {"matmul mn,kn->mk sums n", "matmul_weight_grad mk,mn->kn sums m"},
       "dA sums over n, dB over m; a cut of k cuts both results"},
      {{"matmul", {{{2, 3}}, {{4, 3}}}, tb},
       {"matmul mn,nk->mk sums n", "matmul_weight_grad mk,mn->nk sums m"},
       "the same"},
      {{"matmul", {{{3, 2}}, {{3, 4}}}, ta}, {"matmul kn,mn->km sums n", "matmul km,mn->kn sums m"}, "the same"},
      {{"matmul", {{{3, 2}}, {{4, 3}}}, tab}, {"matmul nk,mn->km sums n", "matmul mn,km->nk sums m"}, "the same"},
      {{"matmul", {{{5, 2, 3}}, {{4, 3}}}, tb},
       {"matmul amn,nk->amk sums n", "matmul_weight_grad amk,amn->nk sums am"},
       "the weight is used for every a and m, so its gradient sums over both"},
      {{"matmul", {{{5, 2, 3}}, {{5, 3, 4}}}},
       {"matmul amn,akn->amk sums n", "matmul amk,amn->akn sums m"},
       "a is in every operand: products of their own"},
      {{"matmul", {{{5, 2, 3}}, {{5, 4, 3}}}, tb},
       {"matmul amn,ank->amk sums n", "matmul amn,amk->ank sums m"},
       "the same"},
      {{"add_bias", {{{5, 2, 3}}, {{3}}}}, {"pass in0", "bias_grad abn->n sums ab"}, "b is added in every row"},
      {{"add", {{{2, 3}}, {{2, 3}}}}, {"pass in0", "pass in1"}, "dy is the gradient of both"},
      {{"add", {{{2, 3}}, {{3}}}}, {"pass in0", "sum_to ab->b sums a"}, "what was repeated over a is summed over a"},
      {{"add", {{{2, 1}}, {{1, 3}}}}, {"sum_to ab->a() sums b", "sum_to ab->()b sums a"}, "the same, dims kept"},
      {{"mul", {{{2, 3}}, {{2, 3}}}}, {"mul ab,ab->ab", "mul ab,ab->ab"}, "element by element"},
      {{"mul", {{{2, 3}}, {{3}}}},
       {"mul ab,b->ab", "mul ab,ab->ab", "sum_to ab->b sums a"},
       "db[b] = sum over a of dy * x; the product itself is whole"},
      {{"relu", {{{2, 3}}}}, {"relu_grad ab,ab->ab"}, "element by element"},
      {{"gelu", {{{2, 3}}}}, {"gelu_grad ab,ab->ab"}, "element by element"},
      {{"sigmoid", {{{2, 3}}}}, {"sigmoid_grad ab,ab->ab"}, "element by element"},
      {{"tanh", {{{2, 3}}}}, {"tanh_grad ab,ab->ab"}, "element by element"},
      {{"dropout", {{{2, 3}}}, {{"p", 0.5}, {"key", int64_t{7}}}}, {"dropout ab->ab"}, "the same mask by global index"},
      {{"softmax", {{{2, 3}}}, {{"dim", int64_t{1}}}},
       {"softmax_grad ab,ab->ab"},
       "the sum over b inside needs the whole row: b is uncuttable"},
      {{"layer_norm", {{{2, 4}}}}, {"layer_norm_grad ad,ad,a,a->ad"}, "sums over d inside; d is uncuttable"},
      {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}},
       {"layer_norm_param_grad ad,ad,a,a->d,d sums a sums a", "layer_norm_grad ad,ad,a,a,d->ad"},
       "gamma and beta are used in every row a"},
      {{"batch_norm", {{{2, 3, 4}}, {{3}}, {{3}}}},
       {"batch_norm_grad_stats nca,nca,c,c->c,c sums na sums na", "batch_norm_grad nca,nca,c,c,c,c->nca"},
       "the sums come out partial over a cut batch; batch_norm_grad reads them whole, so they are reduced between; "
       "then dx is element by element"},
      {{"batch_norm", {{{2, 3}}, {{3}}, {{3}}, {{3}}, {{3}}}},
       {"batch_norm_grad_stats nc,nc,c,c->c,c sums n sums n", "batch_norm_grad nc,nc,c,c,c,c,c->nc"},
       "the same, and the sums are the gradients of beta and gamma"},
      {{"embedding", {{{2, 3}, DType::i32}, {{9, 4}}}},
       {"embedding_grad abd,ab->vd sums ab"},
       "a row adds up over all ids; a rank with some rows keeps those alone, whatever the others do"},
      {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{1}}}},
       {"broadcast_to a->ab"},
       "dy, whole over b because y was reduced, is repeated over b: each block of b gets the same"},
      {{"reduce_sum", {{{2, 3}}}, {{"dims", Ints{0}}, {"keep_dims", true}}}, {"broadcast_to ()b->ab"}, "the same"},
      {{"mae", {{{2, 3}}, {{2, 3}}}}, {"mae_grad ab,ab->ab"}, "element by element; the scale is of the whole batch"},
      {{"mse", {{{2, 3}}, {{2, 3}}}}, {"mse_grad ab,ab->ab"}, "the same"},
      {{"softmax_cross_entropy", {{{2, 5}}, {{2}, DType::i32}}},
       {"softmax_cross_entropy_grad ac,a->ac"},
       "row by row; c is uncuttable"},
      // hybrid_parallel: y_r depends on x_q of the group; with a loss that sums over ranks, dx_q = sum over r of
      // dy_r * dy_r/dx_q. Nothing is cut, so no partial sums are derived.
      {{"all_reduce", {{{8, 3}}}, kGroup4},
       {"all_reduce cd->ab sums cd"},
       "y_r = sum of x: every dy counts for every x"},
      {{"all_gather", {{{8, 3}}}, kGroup4}, {"reduce_scatter cd->ab sums cd"}, "block q of every dy adds up"},
      {{"reduce_scatter", {{{8, 3}}}, kGroup4}, {"all_gather cd->ab sums cd"}, "x_q's block r went to rank r"},
      {{"all_to_all", {{{8, 3}}}, {{"group_size", int64_t{4}}, {"split_dim", int64_t{0}}, {"concat_dim", int64_t{1}}}},
       {"all_to_all cd->ab sums cd"},
       "a permutation of blocks, undone"},
      {{"broadcast", {{{8, 3}}}, kGroup4},
       {"reduce cd->ab sums cd"},
       "every dy counts for the root's x, none for others"},
  };
  return table;
}

}  // namespace

TEST_CASE("every op's backward nodes have the rule, and so the partial sums, of their table row") {
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.given.op));
    CAPTURE(std::string(row.why));
    Graph graph = one_node(row.given);
    CHECK(join(backward_of(graph), "; ") == join(row.nodes, "; "));
  }
}

TEST_CASE("a factor that a gradient is summed over is cuttable in the forward rule, or cut by nobody") {
  // Sums over an uncuttable factor happen inside a kernel; only collectives (never cut) may have them here.
  for (const Row& row : rows()) {
    CAPTURE(std::string(row.given.op));
    Graph graph = one_node(row.given);
    backward_of(graph);
    for (size_t n = 1; n < graph.nodes.size(); ++n) {
      if (get_op(graph.nodes[n].op).collective) continue;
      for (size_t i = 0; i < graph.nodes[n].outputs.size(); ++i) {
        for (char letter : contracted(graph, graph.nodes[n], i)) {
          for (const Factor& factor : graph.layers[0].factors) {
            if (factor.name[0] == letter) CHECK(factor.cuttable);
          }
        }
      }
    }
  }
}

TEST_CASE("every op with a backward stands in the table, and every backward op is emitted by one") {
  std::set<std::string> forward, emitted;
  for (const Row& row : rows()) {
    forward.insert(row.given.op);
    for (const std::string& node : row.nodes) emitted.insert(node.substr(0, node.find(' ')));
  }
  for (const OpDef* op : all_ops()) {
    CAPTURE(std::string(op->name));
    if (op->backward != nullptr) CHECK(forward.contains(op->name));
    const bool statistics = std::string(op->name).starts_with("batch_norm_") && op->rule != nullptr;
    if (op->backward == nullptr && !statistics) CHECK(emitted.contains(op->name));
  }
}

TEST_CASE("a gradient that nobody needs has no node") {
  Graph graph = one_node({"matmul", {{{2, 3}}, {{3, 4}}}});
  graph.tensors[0].dtype = DType::i32;  // as if it were data
  CHECK(backward_of(graph) == std::vector<std::string>{"matmul_weight_grad mk,mn->kn sums m"});
}
