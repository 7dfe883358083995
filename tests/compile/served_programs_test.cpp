// Tests of programs of workers and servers: sound ones are proved, and programs that are broken on purpose are refused.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/compile/lower/buckets.h"
#include "engine/compile/verify/verify_programs.h"
#include "tests/compile/merged_classes.h"
#include "tests/compile/sketch.h"

using namespace trainctl;

namespace {

Plan served_plan(const Graph& graph, int workers, int servers, int micro_batches = 1) {
  Plan plan = data_parallel_plan(graph, workers, 1, micro_batches);
  plan.mode = ParallelMode::parameter_server;
  plan.servers = servers;
  return plan;
}

/// The programs of 2 workers (ranks 0 and 1) and 2 servers (ranks 2 and 3). The first layer is cut over both servers,
/// the other layers are whole on one server.
std::vector<Program> served() {
  const Graph graph = mlp_graph(24, 64, {48, 8, 1});
  return programs_of(graph, served_plan(graph, 2, 2));
}

std::string served_programs_text(const std::vector<ProgramFault>& faults) {
  std::string all;
  for (const ProgramFault& f : faults) all += to_string(f) + "\n";
  return all;
}

bool says(const std::vector<ProgramFault>& faults, int rank, const std::string& words) {
  return std::any_of(faults.begin(), faults.end(), [&](const ProgramFault& f) {
    return f.rank == rank && f.message.find(words) != std::string::npos;
  });
}

/// The first instruction of this opcode and purpose.
int find_first(const Program& p, Opcode opcode, Purpose purpose) {
  for (int i : find_all(p, opcode))
    if (p.instructions[static_cast<size_t>(i)].purpose == purpose) return i;
  return -1;
}

/// The first message that is added to the existing contents of its destination.
int find_sum(const Program& p) {
  for (int i : find_all(p, Opcode::recv))
    if (p.instructions[static_cast<size_t>(i)].outputs[0].accumulate) return i;
  return -1;
}

int find_named(const Program& p, const std::string& start) {
  for (size_t i = 0; i < p.instructions.size(); ++i)
    if (p.instructions[i].name.starts_with(start)) return static_cast<int>(i);
  return -1;
}

}  // namespace

TEST_CASE("the programs of workers and servers have no faults, for any counts of them") {
  const Graph graph = mlp_graph(24, 64, {48, 8, 1});
  for (int workers : {1, 2, 3, 4, 6, 8}) {
    for (int servers : {1, 2, 3, 4, 7}) {
      for (int micro_batches : {1, 2}) {
        for (double clip : {0.0, 0.5}) {
          JobSpec spec;
          spec.optimizer.clip_norm = clip;
          CAPTURE(workers);
          CAPTURE(servers);
          const std::vector<Program> programs =
              programs_of(graph, served_plan(graph, workers, servers, micro_batches), spec);
          CHECK(programs.size() == static_cast<size_t>(workers + servers));
          CHECK(served_programs_text(faults_by_both_proofs(programs)) == "");
        }
      }
    }
  }
}

TEST_CASE("large layers are cut over all servers and small ones go to the server that has least") {
  const Graph graph = mlp_graph(24, 512, {256, 256, 100, 30, 1});
  for (int servers : {1, 2, 3, 4}) {
    CAPTURE(servers);
    const Plan plan = served_plan(graph, 4, servers);
    std::vector<int64_t> stored(static_cast<size_t>(servers));
    int64_t all = 0;
    for (const BucketPlan& bucket : plan_buckets(graph, plan)) {
      REQUIRE(bucket.is_served());
      CHECK(bucket.elements % static_cast<int64_t>(bucket.servers.size()) == 0);
      all += bucket.elements;
      for (int server : bucket.servers)
        stored[static_cast<size_t>(server)] += bucket.elements / static_cast<int64_t>(bucket.servers.size());
    }
    for (int64_t elements : stored) CHECK(static_cast<double>(elements) < 1.05 * static_cast<double>(all) / servers);
  }
}

TEST_CASE("a layer's gradients are pushed before the backward pass of the layers below it") {
  const Program worker = served()[0];
  const int push = find_first(worker, Opcode::send, Purpose::gradient);
  int later = 0;
  for (size_t i = static_cast<size_t>(push) + 1; i < worker.instructions.size(); ++i)
    later += worker.instructions[i].op == "matmul_weight_grad" ? 1 : 0;
  CHECK(later == 2);  // of the two layers below
}

TEST_CASE("weights are pulled in the order in which the forward pass needs them") {
  const Program worker = served()[0];
  const int last_pull = find_all(worker, Opcode::recv).back();
  CHECK(worker.instructions[static_cast<size_t>(last_pull)].outputs[0].tensor ==
        "weights.bucket0");  // the last layer's
  int before = 0;
  for (int i = 0; i < last_pull; ++i) before += worker.instructions[static_cast<size_t>(i)].op == "matmul" ? 1 : 0;
  CHECK(before == 2);  // the layers before it compute while it is under way
}

TEST_CASE("verify: a worker that reads weights before it has pulled them is a fault") {
  std::vector<Program> programs = served();
  const int pull = find_first(programs[0], Opcode::recv, Purpose::weights);
  move_instruction(programs[0], pull, find_first(programs[0], Opcode::send, Purpose::gradient) - 1);
  const auto faults = faults_by_both_proofs(programs);
  INFO(served_programs_text(faults));
  CHECK(says(faults, 0, "before anything has been written there"));
}

TEST_CASE("verify: pushing gradients before their last contribution is a fault") {
  std::vector<Program> programs = served();
  const int push = find_first(programs[1], Opcode::send, Purpose::gradient);
  move_instruction(programs[1], push, find_all(programs[1], Opcode::load).back() + 1);
  const auto faults = faults_by_both_proofs(programs);
  INFO(served_programs_text(faults));
  CHECK(says(faults, 1, "after it was pushed"));
}

TEST_CASE("verify: a push of a part that its server does not own is a fault") {
  std::vector<Program> programs = served();
  for (Instruction& i : programs[0].instructions) {
    if (i.opcode != Opcode::send || i.inputs[0].tensor != "grad.bucket2") continue;
    i.inputs[0].global_offset[0] = 0;  // for both servers
    i.inputs[0].offset = programs[0].buckets[2].gradients_offset;
  }
  const auto faults = faults_by_both_proofs(programs);
  INFO(served_programs_text(faults));
  CHECK(says(faults, 0, "where rank 3 stores"));
}

TEST_CASE("verify: a gradient that a server does not add is a fault") {
  std::vector<Program> programs = served();
  Instruction& first =
      programs[2].instructions[static_cast<size_t>(find_first(programs[2], Opcode::recv, Purpose::gradient))];
  Instruction& add = programs[2].instructions[static_cast<size_t>(find_sum(programs[2]))];
  SUBCASE("in part") {
    add.outputs[0].shape[0] /= 2;
    const auto faults = faults_by_both_proofs(programs);
    INFO(served_programs_text(faults));
    CHECK(says(faults, 2, "are not added"));
  }
  SUBCASE("over the others") {
    add.outputs[0].accumulate = false;
    const auto faults = faults_by_both_proofs(programs);
    INFO(served_programs_text(faults));
    CHECK(says(faults, 2, "overwrites earlier gradients in grad."));
  }
  SUBCASE("to those of the step before") {
    first.outputs[0].accumulate = true;
    const auto faults = faults_by_both_proofs(programs);
    INFO(served_programs_text(faults));
    CHECK(says(faults, 2, "of the previous step"));
  }
}

TEST_CASE("verify: an update before the gradients of all workers have arrived is a fault") {
  std::vector<Program> programs = served();
  const int update = find_named(programs[3], "update "), add = find_sum(programs[3]);
  REQUIRE(add < update);
  move_instruction(programs[3], update, add);
  const auto faults = faults_by_both_proofs(programs);
  INFO(served_programs_text(faults));
  CHECK(says(faults, 3, "after the update"));
}

TEST_CASE("verify: weights that a server sends after their update are a fault") {
  std::vector<Program> programs = served();
  const int send = find_first(programs[3], Opcode::send, Purpose::weights);
  const auto last = static_cast<int>(programs[3].instructions.size()) - 1;
  move_instruction(programs[3], send, last);
  const auto faults = faults_by_both_proofs(programs);
  INFO(served_programs_text(faults));
  CHECK(says(faults, 3, "after their update"));
}
