// hybrid_parallel: which part of each whole tensor a rank holds, after layers, cut weights and collectives.
#include <doctest/doctest.h>

#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

/// For each rank of the stage the offset of its part in the whole: "[4, 16] at [0, 0] [2, 0]".
std::string hybrid_parts(const Planned& p, const std::string& name) {
  const TensorId tensor = p.graph.find_tensor(name).value();
  const Shape& shape = p.graph.tensors[tensor].shape;
  std::string text = to_string(p.plan.hybrid_parts.global_shape(tensor, shape)) + " at";
  for (int rank = 0; rank < p.plan.mesh.size(); ++rank)
    text += " " + to_string(p.plan.hybrid_parts.offset(tensor, shape, rank));
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
  CHECK(hybrid_parts(own, "data") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_parts(own, "d") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_parts(own, "grad.fc") == "[4, 6] at [0, 0] [2, 0]");
  CHECK(hybrid_parts(own, "grad.fc.weight") == "[6, 6] at [0, 0] [0, 0]");
  const Planned full = planned(job(network, ", full_batch: true", 2));
  CHECK(hybrid_parts(full, "d") == "[8, 6] at [0, 0] [0, 0]");
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
  CHECK(hybrid_parts(p, "rows") == "[8, 4] at [0, 0] [4, 0]");
  CHECK(hybrid_parts(p, "turned") == "[8, 4] at [0, 0] [0, 2]");
  CHECK(hybrid_parts(p, "back") == "[8, 4] at [0, 0] [4, 0]");
  CHECK(hybrid_parts(p, "all") == "[8, 4] at [0, 0] [0, 0]");
  CHECK(hybrid_parts(p, "act") == "[8, 10] at [0, 0] [0, 5]");
  CHECK(hybrid_parts(p, "grad.act") == "[8, 10] at [0, 0] [0, 5]");
  CHECK(hybrid_parts(p, "sums") == "[8, 6] at [0, 0] [0, 0]");
  CHECK(hybrid_parts(p, "scattered") == "[8, 6] at [0, 0] [4, 0]");
}

TEST_CASE("hybrid_parallel: groups, roots and parts that are not consecutive") {
  const Planned p = planned(job(R"(  - {name: pairs, type: all_gather, inputs: data, group: [[0, 1], [2, 3]]}
  - {name: crossed, type: all_gather, inputs: data, group: [[0, 2], [1, 3]]}
  - {name: told, type: broadcast, inputs: data, root: 1, group: [[0, 1], [2, 3]]}
  - {name: summed, type: all_reduce, inputs: data}
  - {name: fc, type: dense, inputs: data, units: 6}
)",
                                "", 4));
  CHECK(hybrid_parts(p, "pairs") == "[8, 6] at [0, 0] [0, 0] [4, 0] [4, 0]");
  CHECK(hybrid_parts(p, "crossed") == "[4, 6] at [0, 0] [0, 0] [0, 0] [0, 0]");
  CHECK(hybrid_parts(p, "told") == "[8, 6] at [2, 0] [2, 0] [6, 0] [6, 0]");
  CHECK(hybrid_parts(p, "summed") == "[2, 6] at [0, 0] [0, 0] [0, 0] [0, 0]");
}
