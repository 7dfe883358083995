// Tests where the rows of the batch are in each tensor, which layers use them, and that no weight depends on them.
#include <doctest/doctest.h>

#include "engine/base/text.h"
#include "tests/model/built.h"

using namespace trainctl;

namespace {

/// The dim of the batch as text, such as "dim 1 of [4, 8, 3]", with "outer" if the batch is merged behind another dim.
/// The data are [8, ..].
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
  - {name: rms, type: rms_norm}
  - {name: gn, type: group_norm, groups: 3}
  - {name: soft, type: softmax, dim: 0}
  - {name: own, type: softmax}
  - {name: mean, type: reduce_mean, dims: [0], keep_dims: true}
  - {name: most, type: reduce_max, dims: [0], inputs: own}
  - {name: top, type: reduce_max, dims: [-1], inputs: own}
  - {name: less, type: add, inputs: [own, mean]}
  - {name: turned, type: transpose, perm: [1, 0]}
  - {name: pairs, type: matmul, inputs: [less, turned]}
  - {name: out, type: dense, units: 1, inputs: less}
loss: mae
parallel: {micro_batches: 2}
)");
  for (const char* name : {"bn", "soft", "mean", "most", "pairs"})
    CHECK_MESSAGE(layer(graph, name).mixed_rows == 4, name);
  for (const char* name : {"fc", "ln", "rms", "gn", "own", "top", "less", "turned", "out", "loss"})
    CHECK_MESSAGE(layer(graph, name).mixed_rows == 0, name);
  CHECK(place(graph, "pairs") == "nowhere in [4, 4]");
  CHECK(place(graph, "mean") == "nowhere in [1, 12]");
  CHECK(place(graph, "most") == "nowhere in [12]");
  CHECK(place(graph, "top") == "dim 0 of [4]");
  CHECK(place(graph, "less") == "dim 0 of [4, 12]");
}

TEST_CASE("norms of groups, and of channels of other dims, mix rows if the rows are in the dims that they sum over") {
  const Graph graph = build(R"(network:
  - {name: last, type: batch_norm, dim: -1}
  - {name: turned, type: transpose, perm: [1, 0, 2]}
  - {name: gn, type: group_norm, groups: 2, affine: false}
  - {name: rms, type: rms_norm}
)",
                            {.shape = {4, 3}});
  for (const char* name : {"last", "gn"}) CHECK_MESSAGE(layer(graph, name).mixed_rows == 8, name);
  CHECK(layer(graph, "rms").mixed_rows == 0);
  CHECK(place(graph, "rms") == "dim 1 of [4, 8, 3]");
}

TEST_CASE("slices, paddings, views and positions keep the rows of the batch where they are") {
  const Graph graph = build(R"(network:
  - {name: position, type: position_embedding, max_length: 9}
  - {name: part, type: slice, dim: 1, begin: 1, end: 3}
  - {name: wide, type: pad, dims: [1, -1], before: [1, 0], after: [0, 2]}
  - {name: turned, type: transpose, perm: [1, 0, 2]}
  - {name: of_turned, type: slice, dim: 0, end: 2}
  - {name: more, type: unsqueeze, dim: -2}
  - {name: fewer, type: squeeze, dim: 2}
)",
                            {.shape = {4, 3}});
  CHECK(place(graph, "position") == "dim 0 of [8, 4, 3]");
  CHECK(place(graph, "part") == "dim 0 of [8, 2, 3]");
  CHECK(place(graph, "wide") == "dim 0 of [8, 3, 5]");
  CHECK(place(graph, "of_turned") == "dim 1 of [2, 8, 5]");
  CHECK(place(graph, "more") == "dim 1 of [2, 8, 1, 5]");
  CHECK(place(graph, "fewer") == "dim 1 of [2, 8, 5]");
  for (const Layer& layer : graph.layers) CHECK_MESSAGE(layer.mixed_rows == 0, layer.name);
  CHECK(place(build("network: [{name: hot, type: one_hot, classes: 5}]\n", {.shape = {4}, .integer = true}), "hot") ==
        "dim 0 of [8, 4, 5]");
}

TEST_CASE("the batch is not sliced, padded, removed or numbered") {
  for (const char* layer : {"slice, dim: 0, end: 2", "pad, dims: [1, 0], after: [1, 1]", "squeeze, dim: -2",
                            "position_embedding, max_length: 9"}) {
    const std::vector<std::string> found = problems("network:\n  - {name: w, type: " + std::string(layer) + "}\n");
    CAPTURE(std::string(layer));
    REQUIRE(found.size() == 1);
    CHECK(found[0] ==
          "3:5 layer w: dim 0 of its input [8, 12] is the batch, of which a layer processes only one micro-batch at "
          "a time");
  }
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
  for (const char* layer :
       {"dense, units: 3", "dense, units: 3, bias: false", "matmul, units: 3", "layer_norm", "rms_norm",
        "group_norm, groups: 2", "batch_norm", "batch_norm, affine: false", "matmul, units: 3, transpose_b: true"}) {
    const std::vector<std::string> found = problems(turned + "  - {name: w, type: " + layer + "}\n");
    CAPTURE(std::string(layer));
    REQUIRE(found.size() == 1);
    CHECK(found[0].starts_with("4:5 layer w: dim "));
    CHECK(found[0].find(", which is the batch. The shape of a weight cannot depend on the batch") != std::string::npos);
  }
  for (const char* layer : {"layer_norm, affine: false", "softmax", "relu", "dropout"})
    CHECK(problems(turned + "  - {name: w, type: " + layer + "}\n").empty());
  // The batch is in a merged dim, and a reshape splits its rows.
  const std::string merged =
      "network:\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n  - {name: m, type: flatten}\n";
  CHECK(problems(merged + "  - {name: w, type: dense, units: 3}\n", {.shape = {4, 3}}).size() == 1);
  CHECK(problems("network:\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n"
                 "  - {name: r, type: reshape, shape: [12, -1]}\n  - {name: w, type: dense, units: 3}\n",
                 {.shape = {5, 9}})
            .size() == 1);
}
