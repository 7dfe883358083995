// Tests of hybrid_parallel: which part of each whole tensor a rank holds, after layers, cut weights and collectives.
#include <doctest/doctest.h>

#include "engine/ops/op_def.h"
#include "engine/plan/axes/view_dims.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

/// For each rank of the stage, the offset of its part in the whole tensor: "[4, 16] at [0, 0] [2, 0]".
std::string hybrid_shards(const Planned& p, const std::string& name) {
  const TensorId tensor = p.graph.find_tensor(name).value();
  const Shape& shape = p.graph.tensors[tensor].shape;
  std::string text = to_string(p.plan.hybrid_shards.global_shape(tensor, shape)) + " at";
  for (int rank = 0; rank < p.plan.mesh.size(); ++rank)
    text += " " + to_string(p.plan.hybrid_shards.offset(tensor, shape, rank));
  return text;
}

std::string job(const std::string& network, const std::string& parallel, int ranks) {
  return dataset(8, "[6]", "[6]") + "network:\n" + network + "loss: mse\nlaunch: {ranks: " + std::to_string(ranks) +
         "}\nparallel: {mode: hybrid_parallel" + parallel + "}\n";
}

}  // namespace

TEST_CASE("hybrid_parallel: a rank holds its rows, or all of them with full_batch") {
  const std::string network = "  - {name: d, type: dropout}\n  - {name: fc, type: dense, units: 6}\n";
  const Planned own = planned(job(network, ", micro_batches: 2", 2));
  CHECK(hybrid_shards(own, "data") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_shards(own, "d") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_shards(own, "grad.fc") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_shards(own, "grad.fc.weight") == "[6, 6] at [0, 0] [0, 0]");
  const Planned full = planned(job(network, ", full_batch: true", 2));
  CHECK(hybrid_shards(full, "d") == "[8, 6] at [0, 0] [0, 0]");
}

TEST_CASE("hybrid_parallel: collectives move the parts of rows and features") {
  const Planned p = planned(job(R"(  - {name: rows, type: dense, units: 4}
  - {name: turned, type: all_to_all, split_dim: 1, concat_dim: 0}
  - {name: back, type: all_to_all, split_dim: 0, concat_dim: 1}
  - {name: all, type: all_gather}
  - {name: units, type: dense, units: 5}
  - {name: act, type: relu}
  - {name: sums, type: dense, units: 6, bias: false}
  - {name: scattered, type: reduce_scatter}
)",
                                ", strategies: {units: [[1, 1], [2, 1]], sums: [[1, 1], [1, 2]]}", 2));
  CHECK(hybrid_shards(p, "rows") == "[8, 4] at [0, 0] [4, 0]");
  CHECK(hybrid_shards(p, "turned") == "[8, 4] at [0, 0] [0, 2]");
  CHECK(hybrid_shards(p, "back") == "[8, 4] at [0, 0] [4, 0]");
  CHECK(hybrid_shards(p, "all") == "[8, 4] at [0, 0] [0, 0]");
  CHECK(hybrid_shards(p, "act") == "[8, 10] at [0, 0] [0, 5]");
  CHECK(hybrid_shards(p, "grad.act") == "[8, 10] at [0, 0] [0, 5]");
  CHECK(hybrid_shards(p, "sums") == "[8, 6] at [0, 0] [0, 0]");
  CHECK(hybrid_shards(p, "scattered") == "[8, 6] at [0, 0] [4, 0]");
}

TEST_CASE("hybrid_parallel: groups, roots and parts that are not consecutive") {
  const Planned p = planned(job(R"(  - {name: pairs, type: all_gather, inputs: data, group: [[0, 1], [2, 3]]}
  - {name: crossed, type: all_gather, inputs: data, group: [[0, 2], [1, 3]]}
  - {name: sent, type: broadcast, inputs: data, root: 1, group: [[0, 1], [2, 3]]}
  - {name: summed, type: all_reduce, inputs: data}
  - {name: fc, type: dense, inputs: data, units: 6}
)",
                                "", 4));
  CHECK(hybrid_shards(p, "pairs") == "[8, 6] at [0, 0] [0, 0] [4, 0] [4, 0]");
  CHECK(hybrid_shards(p, "crossed") == "[4, 6] at [0, 0] [0, 0] [0, 0] [0, 0]");
  CHECK(hybrid_shards(p, "sent") == "[8, 6] at [2, 0] [2, 0] [6, 0] [6, 0]");
  CHECK(hybrid_shards(p, "summed") == "[2, 6] at [0, 0] [0, 0] [0, 0] [0, 0]");
}

TEST_CASE("hybrid_parallel: one row per rank keeps its place through every view, and so does its gradient") {
  const std::string rows = "  - {name: fc, type: dense, units: 6}\n", out = "  - {name: out, type: dense, units: 6}\n";
  const auto planned_on_8 = [&](const std::string& layers) { return planned(job(rows + layers + out, "", 8)); };
  const auto at_rank_7 = [](const Planned& p, const std::string& name) {
    const std::string text = hybrid_shards(p, name);
    return text.substr(0, text.find(" at")) + text.substr(text.rfind(" ["));
  };
  for (const char* const name : {"v", "grad.v"}) {
    CAPTURE(name);
    CHECK(at_rank_7(planned_on_8("  - {name: v, type: unsqueeze, dim: 1}\n  - {type: flatten}\n"), name) ==
          "[8, 1, 6] [7, 0, 0]");
    CHECK(at_rank_7(planned_on_8("  - {type: unsqueeze, dim: 1}\n  - {name: v, type: flatten}\n"), name) ==
          "[8, 6] [7, 0]");
    CHECK(at_rank_7(planned_on_8("  - {type: unsqueeze, dim: 1}\n  - {name: v, type: squeeze, dim: 1}\n"), name) ==
          "[8, 6] [7, 0]");
    CHECK(at_rank_7(planned_on_8("  - {name: v, type: reshape, shape: [1, 2, 1, 3]}\n  - {type: flatten}\n"), name) ==
          "[8, 1, 2, 1, 3] [7, 0, 0, 0, 0]");
    // The rows are the second dim, and become the outer part of the features.
    CHECK(at_rank_7(planned_on_8("  - {type: reshape, shape: [2, 3]}\n  - {name: t, type: transpose, perm: [1, 0, 2]}\n"
                                 "  - {name: v, type: flatten}\n  - {type: tanh}\n"
                                 "  - {type: reshape, shape: [-1, 3]}\n  - {type: transpose, perm: [1, 0, 2]}\n"
                                 "  - {type: flatten}\n"),
                    name) == "[2, 24] [0, 21]");
  }
}

TEST_CASE("hybrid_parallel: slices and pads compute a rank's shard, wherever it is in the tensor") {
  const Planned p = planned(job(R"(  - {name: cut, type: dense, units: 4}
  - {name: part, type: slice, dim: 1, begin: 1, end: 3}
  - {name: wide, type: pad, dims: [1], before: [1], after: [0]}
  - {name: out, type: dense, units: 6}
)",
                                ", strategies: {cut: [[1, 1], [2, 1]]}", 2));
  CHECK(hybrid_shards(p, "cut") == "[8, 8] at [0, 0] [4, 4]");
  CHECK(hybrid_shards(p, "part") == "[8, 2] at [0, 0] [4, 0]");
  for (const Node& node : p.graph.nodes) {
    if (node.op == "slice" || node.op == "pad") CHECK(get_op(node.op).attrs_name_places);
  }
}

TEST_CASE("a dim leads to the dim of a view that has the same product of sizes before it") {
  const auto leads = [](const Shape& from, const Shape& to) { return dims_through_view(from, to); };
  CHECK(leads({2, 3, 4}, {2, 12}) == std::vector<int>{0, 1, -1});
  CHECK(leads({2, 12}, {2, 3, 4}) == std::vector<int>{0, 1});
  CHECK(leads({6, 4}, {8, 3}) == std::vector<int>{0, -1});
  CHECK(leads({1, 1, 8}, {1, 8}) == std::vector<int>{0, 1, 1});
  CHECK(leads({1, 8}, {1, 1, 8}) == std::vector<int>{0, 2});
  CHECK(leads({1, 4, 1, 8}, {1, 4, 8}) == std::vector<int>{0, 1, 2, 2});
  CHECK(leads({4, 1}, {4, 1, 1}) == std::vector<int>{0, 1});
  CHECK(leads({4, 1, 1}, {4, 1}) == std::vector<int>{0, 1, 1});
  CHECK(leads({4, 1}, {4}) == std::vector<int>{0, -1});
}
