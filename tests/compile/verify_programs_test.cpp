// Tests that each fault of a broken program is found, at the rank and the instruction at which it shows.
#include "engine/compile/verify/verify_programs.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/compile/merged_classes.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

Graph mlp() { return mlp_graph(24, 16, {8, 12, 1}); }

/// Programs of 2 stages with 2 ranks each, and 2 micro-batches.
std::vector<Program> verify_programs_pipeline() {
  const Graph graph = mlp();
  return programs_of(graph, data_parallel_plan(graph, 4, 2, 2));
}

std::vector<Program> sharded(int level) {
  const Graph graph = mlp();
  Plan plan = data_parallel_plan(graph, 2, 1, 2);
  plan.optimizer_shard_level = level;
  return programs_of(graph, plan);
}

/// True if a fault at this rank (and instruction, if not -1) contains all of these words.
bool says(const std::vector<ProgramFault>& faults, int rank, int instruction, const std::vector<std::string>& words) {
  for (const ProgramFault& f : faults) {
    if (f.rank != rank || (instruction >= 0 && f.instruction != instruction)) continue;
    const bool all = std::all_of(words.begin(), words.end(),
                                 [&](const std::string& w) { return f.message.find(w) != std::string::npos; });
    if (all) return true;
  }
  return false;
}

std::string verify_programs_text(const std::vector<ProgramFault>& faults) {
  std::string all;
  for (const ProgramFault& f : faults) all += to_string(f) + "\n";
  return all;
}

/// Removes an instruction; waits for it are removed, and indices after it shift.
void drop(Program& p, int index) {
  p.instructions.erase(p.instructions.begin() + index);
  for (Instruction& i : p.instructions) {
    std::erase(i.waits, index);
    for (int& w : i.waits) w -= w > index;
  }
}

int find_kernel(const Program& p, std::string_view op) {
  for (int i : find_all(p, Opcode::kernel)) {
    if (p.instructions[i].op == op) return i;
  }
  return -1;
}

}  // namespace

TEST_CASE("a shard within a host is summed over hosts, once, and before the update") {
  for (const int level : {1, 2, 3}) {
    CAPTURE(level);
    const Graph graph = mlp();
    Plan plan = data_parallel_plan(graph, 4, 1, 2);
    plan.optimizer_shard_level = level;
    plan.shard_axes = Axes{1};  // ranks 0 and 1 on a host, 2 and 3 on another
    const std::vector<Program> good = programs_of(graph, plan);
    REQUIRE_MESSAGE(verify_programs(good).empty(), verify_programs_text(verify_programs(good)));
    const auto is_host_sum = [](const Instruction& i) {
      return i.opcode == Opcode::collective && i.collective == Collective::all_reduce && i.purpose == Purpose::gradient;
    };
    const std::vector<Instruction>& code = good[0].instructions;
    const auto at = static_cast<int>(std::find_if(code.begin(), code.end(), is_host_sum) - code.begin());
    REQUIRE(at < static_cast<int>(code.size()));
    CHECK(good[0].groups[static_cast<size_t>(code[static_cast<size_t>(at)].group)] == std::vector<int>{0, 2});

    std::vector<Program> without = good;
    for (Program& p : without) drop(p, at);
    CHECK(says(verify_programs(without), 0, -1, {"before it is summed over hosts"}));

    std::vector<Program> elsewhere = good;
    for (Program& p : elsewhere) p.instructions[static_cast<size_t>(at)].group = p.buckets[0].shard_group;
    CHECK(says(verify_programs(elsewhere), 0, at, {"over a different group"}));
  }
}

TEST_CASE("the compiler's programs have no faults") {
  CHECK(verify_programs_text(faults_by_both_proofs(verify_programs_pipeline())) == "");
  for (int level = 0; level <= 3; ++level) CHECK(verify_programs_text(faults_by_both_proofs(sharded(level))) == "");
}

TEST_CASE("a dropped recv: the send has no receiver, and a value that never arrived is read") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int recv = find_all(programs[2], Opcode::recv)[0];
  drop(programs[2], recv);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"send layer2", "to rank 2", "no matching recv"}));
  CHECK(says(faults, 2, -1, {"reads layer2"}));
}

TEST_CASE("a dropped send: the receiver waits for a message that never comes") {
  std::vector<Program> programs = verify_programs_pipeline();
  drop(programs[1], find_all(programs[1], Opcode::send)[1]);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 3, find_all(programs[3], Opcode::recv)[1], {"from rank 1", "never sends it"}));
}

TEST_CASE("a recv of a different size than was sent") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int recv = find_all(programs[3], Opcode::recv)[0];
  programs[3].instructions[recv].outputs[0].shape[0] /= 2;
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 3, recv, {"from rank 1", "bytes instead of"}));
}

TEST_CASE("sends in a different order than recvs") {
  std::vector<Program> programs = verify_programs_pipeline();
  const std::vector<int> sends = find_all(programs[0], Opcode::send);
  std::swap(programs[0].instructions[sends[0]].micro_batch, programs[0].instructions[sends[1]].micro_batch);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(
      says(faults, 2, find_all(programs[2], Opcode::recv)[0], {"of micro-batch 0", "it receives", "of micro-batch 1"}));
}

TEST_CASE("swapped collectives: one rank issues them in a different order") {
  std::vector<Program> programs = sharded(3);
  const std::vector<int> all = find_all(programs[1], Opcode::collective);
  int other = 1;
  while (programs[1].instructions[all[other]].name == programs[1].instructions[all[0]].name) ++other;
  std::swap(programs[1].instructions[all[0]].name, programs[1].instructions[all[other]].name);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 1, all[0], {"number 0 of group {0,1}", "rank 0 issues"}));
}

TEST_CASE("a collective of a different size on one rank") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int reduce = find_all(programs[1], Opcode::collective)[0];
  Instruction& code = programs[1].instructions[reduce];
  for (Operand* o : {&code.inputs[0], &code.outputs[0]}) o->shape = {o->shape[0] - 1};
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 1, reduce, {"all_reduce grad.bucket", "group {0,1}", "rank 0 issues"}));
}

TEST_CASE("a collective that one rank does not issue") {
  std::vector<Program> programs = verify_programs_pipeline();
  drop(programs[3], find_all(programs[3], Opcode::collective).back());
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"all_reduce loss", "rank 3 never issues it"}));
}

TEST_CASE("a read before the write") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int load = find_all(programs[0], Opcode::load)[0];
  drop(programs[0], load);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"reads data before anything has been written there"}));
}

TEST_CASE("a missing wait: the comm stream sums gradients that are still being computed") {
  std::vector<Program> programs = verify_programs_pipeline();
  int reduce = -1;
  for (int i : find_all(programs[0], Opcode::collective)) {
    if (programs[0].instructions[i].purpose == Purpose::gradient) reduce = i;
  }
  REQUIRE(!programs[0].instructions[reduce].waits.empty());
  programs[0].instructions[reduce].waits.clear();
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, reduce, {"all_reduce grad.bucket", "comm stream", "without waiting for instruction"}));
}

TEST_CASE("every wait that the compiler lists is needed") {
  const std::vector<Program> programs = verify_programs_pipeline();
  for (size_t r = 0; r < programs.size(); ++r) {
    for (size_t i = 0; i < programs[r].instructions.size(); ++i) {
      const Instruction& code = programs[r].instructions[i];
      for (size_t w = 0; w < code.waits.size(); ++w) {
        if (programs[r].instructions[code.waits[w]].opcode == Opcode::send)
          continue;  // these also limit the sends in flight
        std::vector<Program> broken = programs;
        broken[r].instructions[i].waits.erase(broken[r].instructions[i].waits.begin() + static_cast<std::ptrdiff_t>(w));
        INFO("rank " << r << " instruction " << i << " " << code.name << " wait " << code.waits[w]);
        CHECK(says(faults_by_both_proofs(broken), static_cast<int>(r), -1, {"without waiting for instruction"}));
      }
    }
  }
}

TEST_CASE("a sent buffer that is written before the send has been waited for") {
  std::vector<Program> programs = verify_programs_pipeline();
  Program& p = programs[0];
  const int send = find_all(p, Opcode::send)[0];
  for (Instruction& i : p.instructions) std::erase(i.waits, send);
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"without waiting for instruction " + std::to_string(send), "still sends the same bytes"}));
}

TEST_CASE("overlapping buffers: a value is overwritten before it is read") {
  std::vector<Program> programs = verify_programs_pipeline();
  Program& p = programs[0];
  // The data of the first micro-batch, which the weight gradient needs again, is moved onto relu1's output.
  const std::vector<int> fused = find_all(p, Opcode::kernel, "relu1");
  const int64_t onto = p.instructions[fused[0]].outputs[0].offset;
  const int64_t from = p.instructions[find_all(p, Opcode::load)[0]].outputs[0].offset;
  REQUIRE(onto != from);
  for (Instruction& i : p.instructions) {
    i.launch = -1;
    for (auto* operands : {&i.inputs, &i.outputs}) {
      for (Operand& o : *operands) {
        if (o.tensor == "data" && i.micro_batch == 0 && o.offset == from) o.offset = onto;
      }
    }
  }
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"reads data", "relu1", "to the same place"}));
}

TEST_CASE("an operand outside the arena, or half in a bucket") {
  std::vector<Program> programs = verify_programs_pipeline();
  Program& p = programs[1];
  const int load = find_all(p, Opcode::load)[0];
  Operand& out = p.instructions[load].outputs[0];
  const int64_t place = out.offset;
  out.offset = p.arena_bytes - 64;
  CHECK(says(faults_by_both_proofs(programs), 1, load, {"load data", "is not in the arena of"}));
  out.offset = p.buckets[0].weights_offset + 512;
  CHECK(says(faults_by_both_proofs(programs), 1, load, {"load data", "is only partly in weights.bucket"}));
  out.offset = place + 4;
  CHECK(says(faults_by_both_proofs(programs), 1, load, {"multiple of 64"}));
}

TEST_CASE("a weight that is read from another parameter's place") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int matmul = find_all(programs[0], Opcode::kernel, "relu1")[0];
  programs[0].instructions[matmul].inputs[1].offset += 4;
  CHECK(says(faults_by_both_proofs(programs), 0, matmul, {"layer1.weight", "is not at the place of layer1.weight"}));
}

TEST_CASE("a gradient that is reduced twice") {
  std::vector<Program> programs = verify_programs_pipeline();
  for (int rank : {0, 1}) {
    Program& p = programs[rank];
    int reduce = -1;
    for (int i : find_all(p, Opcode::collective)) {
      if (p.instructions[i].purpose == Purpose::gradient) reduce = i;
    }
    const Instruction again = p.instructions[reduce];
    p.instructions.insert(p.instructions.begin() + reduce + 1, again);
    for (size_t i = reduce + 2; i < p.instructions.size(); ++i) {
      for (int& w : p.instructions[i].waits) w += w > reduce;
    }
  }
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, -1, {"all_reduce grad.bucket", "is reduced twice in one step"}));
  CHECK(says(faults, 1, -1, {"is reduced twice in one step"}));
}

TEST_CASE("a gradient that is never reduced, on all ranks alike") {
  for (int level = 0; level <= 3; ++level) {
    std::vector<Program> programs = sharded(level);
    for (Program& p : programs) {
      for (int i : find_all(p, Opcode::collective)) {
        if (p.instructions[i].purpose == Purpose::gradient) {
          drop(p, i);
          break;
        }
      }
    }
    const auto faults = faults_by_both_proofs(programs);
    INFO(verify_programs_text(faults));
    CHECK(says(faults, 0, -1, {"grad.bucket", "reduced"}));
  }
}

TEST_CASE("a parameter that is updated twice, or never") {
  std::vector<Program> programs = verify_programs_pipeline();
  Program& p = programs[2];
  const int update = find_kernel(p, "sgd_update");
  const Instruction code = p.instructions[update];
  p.instructions.push_back(code);
  CHECK(says(faults_by_both_proofs(programs), 2, -1, {"update bucket", "is updated twice in one step"}));
  p.instructions.pop_back();
  drop(p, update);
  CHECK(says(faults_by_both_proofs(programs), 2, -1, {"bucket", "is never updated"}));
}

TEST_CASE("a weight that is read after its update") {
  for (int level = 0; level <= 3; ++level) {
    std::vector<Program> programs = sharded(level);
    Program& p = programs[0];
    const int reader = level == 3 ? find_all(p, Opcode::collective, "all_gather weights.bucket0")[0]
                                  : find_all(p, Opcode::kernel, "relu1")[0];
    p.instructions.push_back(Instruction(p.instructions[static_cast<size_t>(reader)]));
    p.instructions.back().launch = -1;
    const auto faults = faults_by_both_proofs(programs);
    INFO(verify_programs_text(faults));
    CHECK(
        says(faults, 0, static_cast<int>(p.instructions.size()) - 1, {"reads weights of bucket0 after their update"}));
  }
}

TEST_CASE("weights that are not gathered after a sharded update") {
  std::vector<Program> programs = sharded(1);
  for (Program& p : programs) drop(p, find_all(p, Opcode::collective, "all_gather weights.bucket0")[0]);
  CHECK(says(faults_by_both_proofs(programs), 0, -1,
             {"the weights of bucket0 are gathered 0 times in a step, not once"}));
}

TEST_CASE("weights that are read between steps, but gathered only at the start of the next") {
  std::vector<Program> programs = sharded(1);
  for (Program& p : programs) move_instruction(p, find_all(p, Opcode::collective, "all_gather weights.bucket0")[0], 0);
  CHECK(says(faults_by_both_proofs(programs), 0, 0, {"leaves old weights in bucket0 at the end of the step"}));
}

TEST_CASE("a contribution that overwrites the ones before it") {
  std::vector<Program> programs = verify_programs_pipeline();
  const int second = find_all(programs[0], Opcode::kernel, "layer1.weight.backward")[1];
  programs[0].instructions[second].outputs[0].accumulate = false;
  CHECK(says(faults_by_both_proofs(programs), 0, second,
             {"overwrites the accumulated contributions to grad.layer1.weight"}));
}

TEST_CASE("deadlock: each of two ranks receives before it sends") {
  std::vector<Program> programs = verify_programs_pipeline();
  // Rank 0 waits for the gradient of micro-batch 0 before it has sent any activation.
  Program& p = programs[0];
  const int recv = find_all(p, Opcode::recv)[0], send = find_all(p, Opcode::send)[0];
  Instruction early = p.instructions[recv];
  early.waits.clear();
  p.instructions[recv].opcode = Opcode::wait;
  p.instructions[recv].outputs.clear();
  p.instructions.insert(p.instructions.begin() + send, early);
  for (size_t i = send + 1; i < p.instructions.size(); ++i) {
    for (int& w : p.instructions[i].waits) w += w >= send;
  }
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, send, {"deadlock when run in list order", "recv grad.", "waits for rank 2"}));
  CHECK(says(faults, 2, -1, {"deadlock", "recv layer2", "waits for rank 0"}));
}

TEST_CASE("a wait for a later instruction") {
  std::vector<Program> programs = verify_programs_pipeline();
  programs[0].instructions[2].waits.push_back(5);
  CHECK(says(faults_by_both_proofs(programs), 0, 2, {"waits for instruction 5, which is not earlier"}));
}

TEST_CASE("deadlock: two ranks issue collectives of two groups in different orders") {
  // Ranks 0 and 1 share the groups {0,1} and {0,1,2}: within each group all members agree.
  std::vector<Program> programs(3);
  const auto all_reduce = [](int group, const std::string& name) {
    Instruction i;
    i.opcode = Opcode::collective;
    i.name = name;
    i.group = group;
    i.stream = Stream::comm;
    i.purpose = Purpose::loss;
    Operand o;
    o.tensor = "loss";
    o.offset = 64;
    o.shape = o.global_shape = {1};
    o.global_offset = {0};
    i.inputs = i.outputs = {o};
    return i;
  };
  for (int r = 0; r < 3; ++r) {
    Program& p = programs[r];
    p.rank = r;
    p.arena_bytes = 128;
    p.memory.buffers = 128;
    p.loss_offset = 64;
    p.groups = {{0, 1, 2}};
    Instruction zero = all_reduce(0, "zero");
    zero.opcode = Opcode::kernel;
    zero.op = "zero";
    zero.inputs.clear();
    zero.stream = Stream::compute;
    p.instructions = {zero};
    if (r < 2) p.groups.push_back({0, 1});
    const Instruction all = all_reduce(0, "all"), pair = all_reduce(1, "pair");
    if (r == 0) p.instructions.insert(p.instructions.end(), {all, pair});
    if (r == 1) p.instructions.insert(p.instructions.end(), {pair, all});
    if (r == 2) p.instructions.push_back(all);
    p.instructions[1].waits = {0};
  }
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 0, 1, {"deadlock", "all waits for rank 1 (at instruction 1, pair)"}));
  CHECK(says(faults, 1, 1, {"deadlock", "pair waits for rank 0 (at instruction 1, all)"}));
}

TEST_CASE("a recv after the instructions that need it") {
  std::vector<Program> programs = verify_programs_pipeline();
  Program& p = programs[2];
  const int recv = find_all(p, Opcode::recv)[0], send = find_all(p, Opcode::send)[0];
  std::rotate(p.instructions.begin() + recv, p.instructions.begin() + recv + 1, p.instructions.begin() + send + 1);
  for (Instruction& i : p.instructions) i.waits.clear();
  const auto faults = faults_by_both_proofs(programs);
  INFO(verify_programs_text(faults));
  CHECK(says(faults, 2, -1, {"reads layer2 before anything has been written there"}));
}

TEST_CASE("a group that one of its members does not have") {
  std::vector<Program> programs = verify_programs_pipeline();
  programs[0].groups.push_back({0, 3});
  CHECK(says(faults_by_both_proofs(programs), 0, -1, {"group {0,3}: rank 3 is a member but does not list the group"}));
  programs[0].groups.back() = {1, 3};
  CHECK(says(faults_by_both_proofs(programs), 0, -1, {"a group does not have this rank in it"}));
}
