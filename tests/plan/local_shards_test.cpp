// Tests of hybrid_parallel: the shard of each tensor that each rank holds, and the notes about collectives whose groups
// hold equal values.
#include "engine/plan/hybrid/local_shards.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "engine/base/text.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

/// The shard of each rank as text: a block "index/ways" per dim, then "+index/ways" if it is a term of a sum. "-" means
/// that the shard is not traced.
std::vector<std::string> parts(const Planned& p, std::string_view tensor) {
  std::vector<std::string> texts;
  const LocalShards shards = local_shards(p.graph, p.plan, p.spec.parallel.full_batch)[*p.graph.find_tensor(tensor)];
  for (const LocalShard& part : shards.of_rank) {
    std::vector<std::string> words;
    for (const Block& block : part.dims) words.push_back(fmt::format("{}/{}", block.index, block.ways));
    if (part.term.ways > 1) words.push_back(fmt::format("+{}/{}", part.term.index, part.term.ways));
    texts.push_back(part.traced ? join(words, " ") : "-");
  }
  return texts;
}

/// For each rank, whether it holds the same values as rank 0.
std::vector<bool> as_rank_0(const Planned& p, std::string_view tensor) {
  const LocalShards shards = local_shards(p.graph, p.plan, p.spec.parallel.full_batch)[*p.graph.find_tensor(tensor)];
  std::vector<bool> same;
  for (int value : shards.values) same.push_back(value == shards.values[0]);
  return same;
}

Planned hybrid(const std::string& network, const std::string& parallel, int ranks = 2) {
  return planned(
      dataset(8, "[4]", "[1]") + "network:\n" + network +
      fmt::format("loss: mse\nlaunch: {{ranks: {}}}\nparallel: {{mode: hybrid_parallel{}}}\n", ranks, parallel));
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("each rank holds its rows of the batch, or all of them under full_batch") {
  const std::string network = "  - {name: a, type: dense, units: 1}\n";
  const Planned rows = hybrid(network, ""), all = hybrid(network, ", full_batch: true");
  CHECK(parts(rows, "data") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(parts(rows, "a") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(parts(rows, "a.weight") == Texts{"0/1 0/1", "0/1 0/1"});
  CHECK(as_rank_0(rows, "a") == std::vector<bool>{true, false});
  CHECK(parts(all, "a") == Texts{"0/1 0/1", "0/1 0/1"});
  CHECK(as_rank_0(all, "a") == std::vector<bool>{true, true});
  CHECK(rows.plan.notes.empty());
  CHECK(all.plan.notes.empty());
}

TEST_CASE("sharding a weight by units yields columns, by the contraction it yields terms, whose sum is whole") {
  const Planned p = hybrid(
      "  - {name: a, type: dense, units: 3}\n  - {name: r, type: relu}\n"
      "  - {name: b, type: dense, units: 4, bias: false}\n  - {name: s, type: all_reduce}\n"
      "  - {name: c, type: dense, units: 1}\n",
      ", full_batch: true, strategies: {a: [[1, 1], [2, 1], [2]], b: [[1, 1], [1, 2]]}");
  CHECK(parts(p, "a.weight") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(parts(p, "r") == Texts{"0/1 0/2", "0/1 1/2"});
  CHECK(parts(p, "b") == Texts{"0/1 0/1 +0/2", "0/1 0/1 +1/2"});
  CHECK(parts(p, "s") == Texts{"0/1 0/1", "0/1 0/1"});
  CHECK(as_rank_0(p, "s") == std::vector<bool>{true, true});
  CHECK(p.plan.notes.empty());
}

TEST_CASE("all_to_all turns rows into columns, all_gather makes rows whole, and reduce_scatter yields rows") {
  const Planned p = hybrid(
      "  - {name: t, type: all_to_all, split_dim: 1, concat_dim: 0}\n"
      "  - {name: u, type: all_to_all, split_dim: 0, concat_dim: 1}\n"
      "  - {name: g, type: all_gather}\n"
      "  - {name: s, type: reduce_scatter}\n"
      "  - {name: a, type: dense, units: 1}\n",
      "");
  CHECK(parts(p, "t") == Texts{"0/1 0/2", "0/1 1/2"});
  CHECK(parts(p, "u") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(parts(p, "g") == Texts{"0/1 0/1", "0/1 0/1"});
  CHECK(parts(p, "s") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(as_rank_0(p, "t") == std::vector<bool>{true, false});
  CHECK(as_rank_0(p, "g") == std::vector<bool>{true, true});
  CHECK(as_rank_0(p, "s") == std::vector<bool>{true, false});
  CHECK(p.plan.notes == Texts{"s: the ranks of its group {0,1} have equal values of g; the sum counts them 2 times"});
}

TEST_CASE("a sum of different rows is not a part of a tensor, and gets no note") {
  const Planned p = hybrid("  - {name: s, type: all_reduce}\n  - {name: a, type: dense, units: 1}\n", "");
  CHECK(parts(p, "s") == Texts{"-", "-"});
  CHECK(as_rank_0(p, "a") == std::vector<bool>{true, true});
  CHECK(p.plan.notes.empty());
}

TEST_CASE("a sum over ranks with equal values gets a note that says how often it counts them") {
  const std::string network = "  - {name: a, type: dense, units: 1}\n  - {name: s, type: all_reduce}\n";
  CHECK(hybrid(network, ", full_batch: true", 4).plan.notes ==
        Texts{"s: the ranks of its group {0,1,2,3} have equal values of a; the sum counts them 4 times"});
  CHECK(hybrid(network, "", 4).plan.notes.empty());
}

TEST_CASE("a group of different terms yields their sum, and a group of equal terms gets a note") {
  const auto with_groups = [](const std::string& groups) {
    return hybrid(
        "  - {name: a, type: dense, units: 2}\n  - {name: b, type: dense, units: 1, bias: false}\n"
        "  - {name: s, type: all_reduce, group: " +
            groups + "}\n",
        ", full_batch: true, strategies: {a: [[1, 1], [2, 1], [2]], b: [[1, 1], [1, 2]]}", 4);
  };
  const Planned right = with_groups("[[0, 2], [1, 3]]"), wrong = with_groups("[[0, 1], [2, 3]]");
  CHECK(right.plan.notes.empty());
  CHECK(parts(right, "s") == Texts(4, "0/1 0/1"));
  CHECK(wrong.plan.notes == Texts{"s: the ranks of its group {0,1} have equal values of b; the sum counts them 2 "
                                  "times (likewise in 1 other group)"});
}

TEST_CASE("gathers of equal shards, and broadcasts to ranks that already have the values, get a note") {
  const std::string head = dataset(8, "[4]", "[1]") + "network:\n";
  const std::string tail = "launch: {ranks: 2}\nparallel: {mode: hybrid_parallel, full_batch: true}\n";
  CHECK(planned(head + "  - {name: g, type: all_gather}\n" + tail).plan.notes ==
        Texts{"g: the ranks of its group {0,1} have equal values of data; the result contains them 2 times"});
  CHECK(
      planned(head + "  - {name: t, type: all_to_all, split_dim: 1, concat_dim: 0}\n" + tail).plan.notes ==
      Texts{"t: the ranks of its group {0,1} have equal values of data; each result contains the same block of data 2 "
            "times"});
  CHECK(planned(head + "  - {name: c, type: broadcast}\n" + tail).plan.notes ==
        Texts{"c: the ranks of its group {0,1} have equal values of data; the collective has no effect there"});
  CHECK(planned(head + "  - {name: c, type: broadcast}\n" + tail, {"parallel.full_batch=false"}).plan.notes.empty());
}

TEST_CASE("one row per rank is traced through views that move the dim of the rows") {
  const Planned p =
      planned(dataset(2, "[4]", "[4]") +
              "network:\n  - {name: a, type: dense, units: 4}\n  - {name: u, type: unsqueeze, dim: 1}\n"
              "  - {name: f, type: flatten}\n  - {name: r, type: reshape, shape: [2, 2]}\n"
              "  - {name: t, type: transpose, perm: [1, 0, 2]}\n  - {name: m, type: flatten}\n"
              "  - {name: b, type: reshape, shape: [-1, 2]}\n  - {name: back, type: transpose, perm: [1, 0, 2]}\n"
              "  - {name: out, type: flatten}\nloss: mse\nlaunch: {ranks: 2}\nparallel: {mode: hybrid_parallel}\n");
  CHECK(parts(p, "u") == Texts{"0/2 0/1 0/1", "1/2 0/1 0/1"});
  CHECK(parts(p, "f") == Texts{"0/2 0/1", "1/2 0/1"});
  CHECK(parts(p, "r") == Texts{"0/2 0/1 0/1", "1/2 0/1 0/1"});
  CHECK(parts(p, "t") == Texts{"0/1 0/2 0/1", "0/1 1/2 0/1"});
  CHECK(parts(p, "m") == Texts{"0/1 0/2", "0/1 1/2"});
  CHECK(parts(p, "b") == Texts{"0/1 0/2 0/1", "0/1 1/2 0/1"});
  CHECK(parts(p, "out") == Texts{"0/2 0/1", "1/2 0/1"});
}
