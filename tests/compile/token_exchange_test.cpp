// Programs of ranks that exchange tokens for their experts.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/compile/compile.h"
#include "engine/graph/counted_rows.h"
#include "tests/compile/jobs.h"

using namespace trainctl;

namespace {

struct TokenExchanges {
  int all = 0, counted = 0, reversed = 0;
};

TokenExchanges token_exchanges_of(const Program& program) {
  TokenExchanges n;
  for (const Instruction& i : program.instructions) {
    if (i.opcode != Opcode::collective || i.collective != Collective::all_to_all) continue;
    ++n.all;
    n.counted += i.attrs.has(kRowElements) ? 1 : 0;
    n.reversed += i.attrs.flag(kReversed) ? 1 : 0;
  }
  return n;
}

Job exchanging(std::vector<std::string> overrides = {}) {
  for (const char* more :
       {"parallel.mode=semi_auto_parallel", "launch.ranks=4", "parallel.expert=4", "parallel.expert_method=all_to_all"})
    overrides.emplace_back(more);
  return job("moe", std::move(overrides));
}

}  // namespace

TEST_CASE("tokens, their gradients and the results are exchanged, and only the rows that are used") {
  const Job j = exchanging();  // 2 layers
  for (const Program& p : compile_all(j.graph, j.plan, CostModel())) {
    const TokenExchanges n = token_exchanges_of(p);
    // ids, weights, x and y; then dy, dx and the gradient of the weights. Ids have padding and are sent as a whole.
    CHECK(n.all == 2 * (4 + 3));
    CHECK(n.counted == 2 * (3 + 3));
    CHECK(n.reversed == 2 * (1 + 2));
  }
}

TEST_CASE(
    "on GPUs rows are counted between slow links, and the host reads the counts, and else whole blocks are sent") {
  Machine slow = *find_machine("h100x8");
  for (LinkLevel& level : slow.links) level.bandwidth = {1e6};
  const Job j = exchanging({"launch.device=cuda"});
  for (const bool is_slow : {true, false}) {
    const CostModel cost(std::make_shared<const Machine>(is_slow ? slow : *find_machine("h100x8")), Precision::fp32);
    for (const Program& p : compile_all(j.graph, j.plan, cost)) {
      const TokenExchanges n = token_exchanges_of(p);
      CHECK(n.all == 2 * (4 + 3));
      CHECK(n.counted == (is_slow ? 2 * (3 + 3) : 0));
      const auto read = std::count_if(p.instructions.begin(), p.instructions.end(),
                                      [](const Instruction& i) { return i.attrs.flag(kHostReads); });
      CHECK(read == (is_slow ? 2 : 0));
    }
  }
}

TEST_CASE("a shared expert runs between the messages and the experts, in both directions") {
  const Job j = exchanging();
  for (const Program& p : compile_all(j.graph, j.plan, CostModel())) {
    const auto place = [&](const std::string& name, Phase phase, const std::string& op = "") {
      for (size_t i = 0; i < p.instructions.size(); ++i) {
        const Instruction& now = p.instructions[i];
        if (now.phase == phase && now.name.starts_with(name) && (op.empty() || now.op == op))
          return static_cast<int>(i);
      }
      return -1;
    };
    const int sent = place("all_to_all moe_b.x", Phase::forward), shared = place("shared_b.gate", Phase::forward),
              experts = place("moe_b", Phase::forward, "experts");
    CHECK(sent >= 0);
    CHECK(sent < shared);
    CHECK(shared < experts);
    const int dy = place("all_to_all moe_b.dy", Phase::backward), of_shared = place("shared_b.down", Phase::backward),
              gradient = place("moe_b", Phase::backward, "experts_grad");
    CHECK(dy >= 0);
    CHECK(dy < of_shared);
    CHECK(of_shared < gradient);
  }
}

TEST_CASE("a layer that is recomputed sends its tokens again") {
  const Job j = exchanging({"parallel.recompute=['moe_?']"});
  for (const Program& p : compile_all(j.graph, j.plan, CostModel()))
    CHECK(token_exchanges_of(p).all >= 2 * (4 + 3 + 3));
}
