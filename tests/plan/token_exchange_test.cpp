// Tests of plans of experts whose ranks also divide the tokens and exchange them.
#include "engine/plan/token_exchange.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/ops/moe/expert_load.h"
#include "tests/jobs/jobs.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

Planned mixture(std::vector<std::string> overrides) {
  overrides.push_back("parallel.mode=semi_auto_parallel");
  return planned(job_text("moe"), overrides);
}

/// The node that computes the experts of a layer, and its layouts.
struct ExpertNode {
  const Planned& p;
  const Node& node;

  ExpertNode(const Planned& of, const std::string& layer)
      : p(of), node(of.graph.nodes[static_cast<size_t>(expert_call(of.graph, id_of(of, layer)).node)]) {}

  static LayerId id_of(const Planned& p, const std::string& name) {
    const auto found = std::find_if(p.graph.layers.begin(), p.graph.layers.end(),
                                    [&](const Layer& layer) { return layer.name == name; });
    return static_cast<LayerId>(found - p.graph.layers.begin());
  }
  Layout in(int i) const { return input_layout(p.graph, p.plan, node, i); }
  Layout out(int i) const { return output_layout(p.graph, p.plan, node, i); }
};

bool has_note(const Planned& p, const std::string& text) {
  return std::any_of(p.plan.notes.begin(), p.plan.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("all_to_all cuts the tokens over all ranks, and the experts over some of the same axes") {
  const Planned p = mixture({"launch.ranks=4", "parallel.expert=2", "parallel.expert_method=all_to_all"});
  CHECK(p.cuts("moe_a") == "[[4, 1, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]");
  const ExpertNode experts(p, "moe_a");
  CHECK(token_exchange_axes(p.graph, p.plan, experts.node) == experts.in(3).dims[0]);
  CHECK_FALSE(experts.out(0).is_partial());
  CHECK(experts.out(0).dims == experts.in(0).dims);
  // A rank keeps the rows of its own experts, from the tokens of all ranks that share them.
  CHECK(p.plan.mesh.ways(experts.out(1).dims[0]) == 2);
  CHECK(p.plan.mesh.ways(experts.out(1).dims[2]) == 2);
  CHECK(has_note(p, "a token is sent to the ranks of its experts"));
}

TEST_CASE("cuts of tokens and experts that need more ranks than there are share axes") {
  const Planned p =
      mixture({"launch.ranks=4", "parallel.strategies={moe_b: [[2, 2, 1], [1, 1], [4, 1, 1, 1], [4, 1, 1]]}"});
  const ExpertNode experts(p, "moe_b");
  CHECK(p.plan.mesh.ways(token_exchange_axes(p.graph, p.plan, experts.node)) == 4);
  CHECK(p.plan.mesh.ways(experts.in(0).dims[0]) == 2);
  CHECK(p.plan.mesh.ways(experts.in(0).dims[1]) == 2);
}

TEST_CASE("without an exchange the ranks that share experts have the same tokens") {
  const Planned p = mixture({"launch.ranks=4", "parallel.expert=2", "parallel.expert_method=gather"});
  CHECK(p.cuts("moe_a") == "[[2, 1, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]");
  const ExpertNode experts(p, "moe_a");
  CHECK(token_exchange_axes(p.graph, p.plan, experts.node).empty());
  CHECK(p.plan.mesh.ways(experts.out(0).partial) == 2);
}

TEST_CASE("a block has room for all tokens on CPUs, and for the capacity on GPUs") {
  TokenBlockQuery query{.tokens = 100, .top_k = 2, .ranks = 8, .capacity = 2, .has_room_for_all = true};
  CHECK(token_blocks(query).rows == 100);
  CHECK(token_blocks(query).expected_share == doctest::Approx(1 - 7.0 / 8 * 7.0 / 8));
  query.has_room_for_all = false;
  CHECK(token_blocks(query).rows == 50);
  CHECK(token_blocks(query).expected_share == doctest::Approx(2 * (1 - 7.0 / 8 * 7.0 / 8)));
  query.top_k = 8;  // a token has one row for a rank, however many of its experts are there
  CHECK(token_blocks(query).rows == 100);
}

TEST_CASE("GPUs count rows only if the time for the rows that are not used is longer than the wait of the hosts") {
  const Planned p = mixture({"launch.ranks=4", "parallel.expert=4", "parallel.expert_method=all_to_all"});
  const Axes axes = token_exchange_axes(p.graph, p.plan, ExpertNode(p, "moe_a").node);
  Machine machine = *find_machine("h100x8");
  const auto moves = [&](double bytes_per_second, const TokenBlocks& blocks, int64_t row_bytes) {
    for (LinkLevel& level : machine.links) level.bandwidth = {bytes_per_second};
    const CostModel cost(std::make_shared<const Machine>(machine), Precision::bf16);
    return moves_rows(blocks, row_bytes, cost, p.plan.mesh, axes);
  };
  const TokenBlocks half{.tokens = 1000, .rows = 1000, .expected_share = 0.5};
  CHECK(moves(1e9, half, 4096));
  CHECK_FALSE(moves(1e9, half, 4));
  CHECK_FALSE(moves(1e12, half, 4096));
  CHECK_FALSE(moves(1e9, {.tokens = 1000, .rows = 1000, .expected_share = 1}, 4096));
  CHECK(moves_rows(half, 4, CostModel(), p.plan.mesh, axes));  // CPUs always do
}
