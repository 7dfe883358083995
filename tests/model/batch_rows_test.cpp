// Where the rows of the batch are in each tensor, which layers compute over them, and that no weight depends on them.
#include <doctest/doctest.h>

#include "engine/base/text.h"
#include "tests/model/built.h"

using namespace trainctl;

namespace {

/// "dim 1 of [4, 8, 3]", with "outer" if the batch is behind another dim; data is [8, ..].
std::string place(const Graph& graph, const std::string& name) {
  const Tensor& t = tensor(graph, name);
  if (t.batch.dim < 0) return "nowhere in " + to_string(t.shape);
  const std::string outer = t.batch.outer == 1 ? "" : " outer " + std::to_string(t.batch.outer);
  return "dim " + std::to_string(t.batch.dim) + outer + " of " + to_string(t.shape);
}

const char* const kMoved = R"(network:
  - {name: turned, type: transpose, perm: [1, 0, 2]}
  - {name: merged, type: flatten}
  - {name: split, type: reshape, shape: [-1, 3]}
  - {name: last, type: transpose, perm: [0, 2, 1]}
  - {name: behind, type: flatten}
  - {name: back, type: reshape, shape: [3, -1]}
  - {name: first, type: transpose, perm: [2, 0, 1]}
)";

}  // namespace

TEST_CASE("the rows of the batch are found after transposes and reshapes, for one row as for several") {
  for (const bool one_row : {false, true}) {
    CAPTURE(one_row);
    const Graph graph = build(kMoved + std::string(one_row ? "parallel: {micro_batches: 8}\n" : ""), {.shape = {4, 3}});
    const std::string rows = one_row ? "1" : "8";
    CHECK(place(graph, "data") == "dim 0 of [" + rows + ", 4, 3]");
    CHECK(place(graph, "turned") == "dim 1 of [4, " + rows + ", 3]");
    CHECK(place(graph, "merged") == "dim 1 of [4, " + std::string(one_row ? "3]" : "24]"));
    CHECK(place(graph, "split") == "dim 1 of [4, " + rows + ", 3]");
    CHECK(place(graph, "last") == "dim 2 of [4, 3, " + rows + "]");
    CHECK(place(graph, "first") == "dim 0 of [" + rows + ", 4, 3]");
    for (const char* name : {"turned", "split", "first"}) CHECK(layer(graph, name).mixed_rows == 0);
  }
  CHECK(place(build(kMoved, {.shape = {4, 3}}), "behind") == "dim 1 outer 3 of [4, 24]");
}

TEST_CASE("a gradient has its tensor's rows") {
  const Graph graph = build(R"(network:
  - {name: fc, type: dense, units: 6}
  - {name: turned, type: transpose, perm: [1, 0, 2]}
  - {name: act, type: relu}
loss: mae
)",
                            {.shape = {4, 3}, .label = {24}});
  CHECK(tensor(graph, "grad.turned").batch.dim == 1);
  CHECK(tensor(graph, "grad.fc").batch.dim == 0);
  CHECK(layer(graph, "loss").mixed_rows == 8);  // whose labels are not in the order of the prediction
}

TEST_CASE("layers that compute over the rows of the batch are known, with the rows that they see") {
  const Graph graph = build(R"(network:
  - {name: bn, type: batch_norm}
  - {name: fc, type: dense, units: 12}
  - {name: ln, type: layer_norm}
  - {name: soft, type: softmax, dim: 0}
  - {name: own, type: softmax}
  - {name: mean, type: reduce_mean, dims: [0], keep_dims: true}
  - {name: less, type: add, inputs: [own, mean]}
  - {name: turned, type: transpose, perm: [1, 0]}
  - {name: pairs, type: matmul, inputs: [less, turned]}
  - {name: out, type: dense, units: 1, inputs: less}
loss: mae
parallel: {micro_batches: 2}
)");
  for (const char* name : {"bn", "soft", "mean", "pairs"}) CHECK_MESSAGE(layer(graph, name).mixed_rows == 4, name);
  for (const char* name : {"fc", "ln", "own", "less", "turned", "out", "loss"})
    CHECK_MESSAGE(layer(graph, name).mixed_rows == 0, name);
  CHECK(place(graph, "pairs") == "nowhere in [4, 4]");
  CHECK(place(graph, "mean") == "nowhere in [1, 12]");
  CHECK(place(graph, "less") == "dim 0 of [4, 12]");
}

TEST_CASE("a reshape that splits the rows between dims mixes them") {
  const Graph graph = build(
      "network:\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n"
      "  - {name: r, type: reshape, shape: [12, -1]}\n",
      {.shape = {5, 9}});
  CHECK(place(graph, "r") == "nowhere in [5, 12, 6]");
  CHECK(layer(graph, "r").mixed_rows == 8);
}

TEST_CASE("the shape of a weight or a running statistic cannot depend on the batch") {
  const std::string turned = "network:\n  - {name: t, type: transpose, perm: [1, 0]}\n";
  for (const char* layer : {"dense, units: 3", "dense, units: 3, bias: false", "matmul, units: 3", "layer_norm",
                            "batch_norm", "batch_norm, affine: false", "matmul, units: 3, transpose_b: true"}) {
    const std::vector<std::string> found = problems(turned + "  - {name: w, type: " + layer + "}\n");
    CAPTURE(std::string(layer));
    REQUIRE(found.size() == 1);
    CHECK(found[0].starts_with("4:5 layer w: dim "));
    CHECK(found[0].find(", which is the batch. The shape of a weight cannot depend on the batch") != std::string::npos);
  }
  for (const char* layer : {"layer_norm, affine: false", "softmax", "relu", "dropout"})
    CHECK(problems(turned + "  - {name: w, type: " + layer + "}\n").empty());
  // The batch in a merged dim, and rows that a reshape has split.
  const std::string merged =
      "network:\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n  - {name: m, type: flatten}\n";
  CHECK(problems(merged + "  - {name: w, type: dense, units: 3}\n", {.shape = {4, 3}}).size() == 1);
  CHECK(problems("network:\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n"
                 "  - {name: r, type: reshape, shape: [12, -1]}\n  - {name: w, type: dense, units: 3}\n",
                 {.shape = {5, 9}})
            .size() == 1);
}
