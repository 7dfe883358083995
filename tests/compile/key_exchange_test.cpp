// Programs of ranks that share the rows of a sequence.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "tests/compile/jobs.h"
#include "tests/compile/merged_classes.h"

using namespace trainctl;

namespace {

Job shared_rows(const std::string& name, const std::string& method, int context,
                std::vector<std::string> overrides = {}, int stages = 1) {
  overrides.push_back("parallel.mode=semi_auto_parallel");
  overrides.push_back(fmt::format("parallel.context={}", context));
  overrides.push_back("parallel.context_method=" + method);
  overrides.push_back(fmt::format("launch.ranks={}", context * stages));
  return job(name, std::move(overrides));
}

int count(const Program& program, Opcode opcode, const std::string& op = "") {
  int n = 0;
  for (const Instruction& i : program.instructions)
    n += i.opcode == opcode && !i.idle && (op.empty() || i.op == op) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("a ring passes each block on n - 1 times, and its gradients n times") {
  const Job j = shared_rows("llama", "ring", 3);  // 2 layers
  for (const Program& p : compile_all(j.graph, j.plan, CostModel())) {
    CHECK(count(p, Opcode::send) == 2 * (2 * 2 + 2 * 2 + 2 * 3));
    CHECK(count(p, Opcode::recv) == count(p, Opcode::send));
  }
}

TEST_CASE("a recv of a ring starts after the kernels before it, so that no message is awaited while they run") {
  const Job j = shared_rows("llama", "ring", 3);
  const RankClasses classes = compile_classes(j.graph, j.plan, CostModel());
  for (const Program& p : classes.programs) {
    const std::vector<RecvStart> starts = starts_of_recvs(p);
    CHECK_FALSE(starts.empty());
    for (const RecvStart& start : starts) CHECK(start.awaited == start.before);
  }
}

TEST_CASE("with balanced rows every rank has as many calls of attention as the others") {
  const Job j = shared_rows("llama", "ring", 3);
  std::set<int> forward, backward;
  for (const Program& p : compile_all(j.graph, j.plan, CostModel())) {
    forward.insert(count(p, Opcode::kernel, "attention"));
    backward.insert(count(p, Opcode::kernel, "attention_grad"));
  }
  // A rank sees 3 of the 4 pairs of pieces of its own block, and 2 of every other block.
  CHECK(forward == std::set<int>{2 * (3 + 2 + 2)});
  CHECK(backward == forward);
}

TEST_CASE("rows that cannot be balanced leave out the blocks that no row sees") {
  const Job j = shared_rows("llama", "ring", 4, {"vars.length=4"});  // 4 rows have no 8 pieces
  std::vector<int> calls;
  for (const Program& p : compile_all(j.graph, j.plan, CostModel()))
    calls.push_back(count(p, Opcode::kernel, "attention"));
  CHECK(calls == std::vector<int>{2, 4, 6, 8});
}

TEST_CASE("the ranks of a balanced ring are one class in each stage") {
  const Job j = shared_rows("llama", "ring", 3, {"parallel.stages=2", "parallel.micro_batches=4"}, 2);
  const RankClasses classes = compile_classes(j.graph, j.plan, CostModel());
  CHECK(classes.programs.size() == 2);
  for (int rank = 0; rank < 6; ++rank) {
    const Program own = compile(j.graph, j.plan, CostModel(), rank), seen = classes.of_rank(rank);
    CHECK(text_of_class(own, j.plan.mesh) == text_of_class(classes.program_of(rank), j.plan.mesh));
    for (size_t i = 0; i < own.instructions.size(); ++i) CHECK(own.instructions[i].peer == seen.instructions[i].peer);
  }
}

TEST_CASE("the ranks of a ring with a window are one class if they see the same blocks, and verified together") {
  const Job few = shared_rows("llama", "ring", 3, {"modules.block.attn.window=3"});
  CHECK(compile_classes(few.graph, few.plan, CostModel()).programs.size() == 3);
  const int ranks = 16;  // 32 pieces of 2 rows, of which a row sees its own and the one before it
  const Job j = shared_rows("llama", "ring", ranks, {"modules.block.attn.window=2", "vars.length=64"});
  const RankClasses classes = compile_classes(j.graph, j.plan, CostModel());
  CHECK(classes.programs.size() <= 4);
  for (int rank = 0; rank < ranks; ++rank) {
    const Program own = compile(j.graph, j.plan, CostModel(), rank), seen = classes.of_rank(rank);
    CHECK(text_of_class(own, j.plan.mesh) == text_of_class(classes.program_of(rank), j.plan.mesh));
    for (size_t i = 0; i < own.instructions.size(); ++i) CHECK(own.instructions[i].peer == seen.instructions[i].peer);
  }
}

TEST_CASE("gathered keys do not outlive their kernel") {
  const Job gathers = shared_rows("llama", "gather", 3), rings = shared_rows("llama", "ring", 3);
  const auto gathered = [](const Job& j) {
    int n = 0;
    for (const Instruction& i : compile_all(j.graph, j.plan, CostModel())[0].instructions)
      n +=
          i.opcode == Opcode::collective && i.collective == Collective::all_gather && i.purpose == Purpose::redistribute
              ? 1
              : 0;
    return n;
  };
  CHECK(gathered(gathers) == 2 * (2 + 2));  // k and v of 2 layers, in both passes
  CHECK(gathered(rings) == 0);
}
