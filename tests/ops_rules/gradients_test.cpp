// Tests the backward nodes of each op and their rules. The factors over which a gradient is a partial sum follow from
// its rule alone: they are the factors that the node's inputs have and its output lacks. Each gradient row of the
// families' cases states why cutting any factor that the forward rule permits leaves a correct (partial) sum.
#include <doctest/doctest.h>

#include "engine/base/text.h"
#include "tests/ops_rules/one_node.h"

using namespace trainctl;

TEST_CASE("every op's backward nodes have the rule, and so the partial sums, of their table row") {
  for (const GradientCase& row : gradient_cases()) {
    CAPTURE(std::string(row.given.op));
    CAPTURE(std::string(row.why));
    Graph graph = one_node(row.given);
    CHECK(join(backward_of(graph), "; ") == join(row.nodes, "; "));
  }
}

TEST_CASE(
    "a factor that a gradient is summed over is cuttable in the forward rule, or its row says that it is never cut") {
  // A gradient summed over a factor that the forward op needs whole is rare, so its row names it. Collectives are never
  // cut.
  for (const GradientCase& row : gradient_cases()) {
    CAPTURE(std::string(row.given.op));
    Graph graph = one_node(row.given);
    backward_of(graph);
    for (size_t n = 1; n < graph.nodes.size(); ++n) {
      if (get_op(graph.nodes[n].op).collective) continue;
      for (size_t i = 0; i < graph.nodes[n].outputs.size(); ++i) {
        for (char letter : contracted(graph, graph.nodes[n], i)) {
          for (const Factor& factor : graph.layers[0].factors) {
            const bool is_whole = std::string_view(row.whole).find(letter) != std::string_view::npos;
            if (factor.name[0] == letter) CHECK(factor.cuttable != is_whole);
          }
        }
      }
    }
  }
}

TEST_CASE("a gradient that is not needed has no node") {
  Graph graph = one_node({"matmul", {{{2, 3}}, {{3, 4}}}});
  graph.tensors[0].dtype = DType::i32;  // as if it were data
  CHECK(backward_of(graph) == std::vector<std::string>{"matmul_weight_grad mk,mn->kn sums m"});
}
