// Tests of the CPU executor on handmade programs, with a communicator that records its calls.
#include "engine/runtime/executor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include "engine/base/error.h"

using namespace trainctl;

namespace {

class RecordingComm final : public Communicator {
 public:
  int rank() const override { return 1; }
  int num_ranks() const override { return 4; }
  int open_group(const std::vector<int>& ranks) override {
    log.push_back("open " + format(ranks));
    return 100 + ranks.front();
  }
  void register_arena(void* base, int64_t bytes) override {
    arena = base;
    arena_bytes = bytes;
  }
  void all_reduce(int g, const void*, void*, int64_t n, DType) override { call("all_reduce", g, n); }
  void all_gather(int g, const void*, void*, int64_t n, DType) override { call("all_gather", g, n); }
  void reduce_scatter(int g, const void*, void*, int64_t n, DType) override { call("reduce_scatter", g, n); }
  void all_to_all(int g, const void*, void*, int64_t n, DType) override { call("all_to_all", g, n); }
  void broadcast(int g, const void*, void*, int64_t n, DType, int root) override {
    call("broadcast from " + std::to_string(root), g, n);
  }
  void barrier(int) override {}
  int64_t send(int peer, const void*, int64_t bytes) override {
    call("send", peer, bytes);
    return ++sent;
  }
  void wait_send(int peer, int64_t sequence) override { call("wait_send", peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    call("recv", peer, bytes);
    std::memset(data, 0, static_cast<size_t>(bytes));
  }
  void recv_sum(int peer, float* sum, int64_t count) override {
    call("recv_sum", peer, count);
    for (int64_t i = 0; i < count; ++i) sum[i] += 2;
  }
  void set_position(RankPosition p) override { position = p; }
  RankPosition position_of(int) const override { return position; }

  std::vector<std::string> log;
  std::string fail_at;
  RankPosition position;
  void* arena = nullptr;
  int64_t arena_bytes = 0, sent = 0;

 private:
  static std::string format(const std::vector<int>& ranks) {
    std::string text;
    for (int r : ranks) text += std::to_string(r);
    return text;
  }
  void call(const std::string& what, int group, int64_t count) {
    log.push_back(what + " " + std::to_string(group) + " " + std::to_string(count));
    if (what != fail_at) return;
    CommError error("timed out after 30 s");
    error.missing = {3};
    throw error;
  }
};

void run_step(Executor& executor, const std::byte* inputs = nullptr, const StepScalars& scalars = {}) {
  executor.start_step(inputs, scalars);
  executor.finish_step();
}

Operand floats(int64_t offset, int64_t count) {
  Operand operand;
  operand.offset = offset;
  operand.shape = operand.global_shape = {count};
  operand.global_offset = {0};
  return operand;
}

Instruction instruction(Opcode opcode, const std::string& name) {
  Instruction i;
  i.opcode = opcode;
  i.name = name;
  i.op = name;
  return i;
}

Instruction collective(Collective kind, int64_t in, int64_t out) {
  Instruction i = instruction(Opcode::collective, std::string(to_string(kind)) + " grad.0");
  i.collective = kind;
  i.group = 0;
  i.root = 1;
  i.inputs = {floats(128, in)};
  i.outputs = {floats(192, out)};
  return i;
}

Instruction message(Opcode opcode, const std::string& name, int peer) {
  Instruction i = instruction(opcode, name);
  i.peer = peer;
  (opcode == Opcode::send ? i.inputs : i.outputs) = {floats(128, 8)};
  return i;
}

Program program(std::vector<Instruction> instructions) {
  Program p;
  p.rank = 1;
  p.arena_bytes = 512;
  p.groups = {{1, 3}};
  p.instructions = std::move(instructions);
  return p;
}

}  // namespace

TEST_CASE("collectives are called with the count of one member's block") {
  RecordingComm comm;
  const Program p = program({collective(Collective::all_reduce, 8, 8), collective(Collective::all_gather, 4, 8),
                             collective(Collective::reduce_scatter, 8, 4), collective(Collective::all_to_all, 8, 8),
                             collective(Collective::broadcast, 8, 8)});
  run_step(*make_cpu_executor(p, comm, {}));
  CHECK(comm.log == std::vector<std::string>{"open 13", "all_reduce 101 8", "all_gather 101 4", "reduce_scatter 101 4",
                                             "all_to_all 101 4", "broadcast from 1 101 8"});
}

TEST_CASE("a recv that accumulates adds the message to its range, and another one overwrites it") {
  RecordingComm comm;
  Instruction first = message(Opcode::recv, "recv grad.0", 0), second = message(Opcode::recv, "recv grad.0", 2);
  second.outputs[0].accumulate = true;
  const Program p = program({first, second, second});
  const auto executor = make_cpu_executor(p, comm, {});
  for (int step = 0; step < 2; ++step) {
    run_step(*executor);
    float sum[8];
    executor->read(128, sum, sizeof(sum));
    for (float x : sum) CHECK(x == 4);
  }
  CHECK(std::vector<std::string>(comm.log.begin(), comm.log.begin() + 4) ==
        std::vector<std::string>{"open 13", "recv 0 32", "recv_sum 2 8", "recv_sum 2 8"});
}

TEST_CASE("groups are opened in one order that all ranks share, whatever the order of a program") {
  RecordingComm comm;
  Program p = program({});
  p.groups = {{1, 3}, {0, 1, 2}, {0, 1}};
  make_cpu_executor(p, comm, {});
  CHECK(comm.log == std::vector<std::string>{"open 01", "open 012", "open 13"});
}

TEST_CASE("a send's buffer is free where an instruction waits for the send, or at the end of the step") {
  RecordingComm comm;
  Instruction wait = instruction(Opcode::wait, "wait");
  wait.waits = {0};
  const Program p = program({message(Opcode::send, "send a", 2), message(Opcode::send, "send b", 3), wait,
                             message(Opcode::recv, "recv c", 0)});
  const auto executor = make_cpu_executor(p, comm, {});
  comm.log.clear();
  run_step(*executor);
  run_step(*executor);
  CHECK(comm.log == std::vector<std::string>{"send 2 32", "send 3 32", "wait_send 2 1", "recv 0 32", "wait_send 3 2",
                                             "send 2 32", "send 3 32", "wait_send 2 3", "recv 0 32", "wait_send 3 4"});
}

TEST_CASE("a communication error says which rank was at which instruction of which step") {
  RecordingComm comm;
  comm.fail_at = "all_reduce";
  const Program p = program({instruction(Opcode::wait, "wait"), collective(Collective::all_reduce, 8, 8)});
  const auto executor = make_cpu_executor(p, comm, {});
  try {
    run_step(*executor, nullptr, {.step = 411});
    FAIL("the error was lost");
  } catch (const CommError& error) {
    CHECK(std::string(error.what()) == "rank 1: all_reduce grad.0 at step 412: timed out after 30 s");
    CHECK(error.missing == std::vector<int>{3});
  }
  CHECK(comm.position.step == 412);
  CHECK(comm.position.instruction == 1);
}

TEST_CASE("an executor starts the threads of its kernels before the first step") {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  constexpr int64_t kCount = 1 << 18;
  Instruction add = instruction(Opcode::kernel, "accumulate");
  add.inputs = {floats(0, kCount)};
  add.outputs = {floats(4 * kCount, kCount)};
  add.outputs[0].accumulate = true;
  Program p = program({add});
  p.arena_bytes = 8 * kCount;
  p.scalars_offset = 0;
  RecordingComm comm;
  ExecutorOptions options;
  options.threads = 3;
  // A new thread has no worker threads that earlier tests have started.
  std::thread([&] {
    const auto before = threads();
    const auto executor = make_cpu_executor(p, comm, options);
    CHECK(threads() == before + 2);
    run_step(*executor);
    CHECK(threads() == before + 2);
  }).join();
}

TEST_CASE("loads, kernels and prints see the arena, and hooks see each communication") {
  Instruction load = instruction(Opcode::load, "data");
  load.micro_batch = 2;
  load.outputs = {floats(128, 8)};
  Instruction label = instruction(Opcode::load, "label");
  label.outputs = {floats(256, 16)};
  Instruction add = instruction(Opcode::kernel, "accumulate");
  add.inputs = {floats(128, 8)};
  add.outputs = {floats(192, 8)};
  add.outputs[0].accumulate = true;
  Instruction print = instruction(Opcode::print, "sum");
  print.inputs = add.outputs;
  Program p = program({label, load, add, add, print, collective(Collective::all_reduce, 8, 8)});
  p.loss_offset = 192;

  RecordingComm comm;
  std::vector<float> printed;
  std::vector<std::string> communications;
  ExecutorOptions options;
  options.print = [&](const Operand& operand, const void* data, int) {
    printed.assign(static_cast<const float*>(data), static_cast<const float*>(data) + num_elements(operand.shape));
  };
  options.on_communication = [&](const Instruction& i) { communications.push_back(i.name); };
  const auto executor = make_cpu_executor(p, comm, options);
  std::vector<float> inputs(24, 7.0f);  // the label, then the data
  std::fill_n(inputs.begin() + 16, 8, 1.0f);
  executor->start_step(reinterpret_cast<const std::byte*>(inputs.data()), {});
  CHECK_THROWS_AS(executor->start_step(nullptr, {}), InternalError);
  CHECK(printed == std::vector<float>(8, 2.0f));
  CHECK(communications == std::vector<std::string>{"all_reduce grad.0"});
  CHECK(executor->finish_step() == 2.0f);
  CHECK_THROWS_AS(executor->finish_step(), InternalError);
  CHECK(comm.arena_bytes == 512);
  CHECK(comm.position.instruction == -1);
}

TEST_CASE("loads of the same part of a micro-batch share one place in the block of inputs") {
  Instruction label = instruction(Opcode::load, "label");
  label.outputs = {floats(128, 3)};
  Instruction other = label;
  other.micro_batch = 1;
  Instruction again = label;
  again.outputs[0].offset = 256;
  const InputLayout layout = input_layout(program({label, instruction(Opcode::wait, "wait"), other, again}));
  CHECK(layout.offsets == std::vector<int64_t>{0, -1, 64, 0});
  CHECK(layout.bytes == 128);
}

TEST_CASE("a missing kernel is an error that names it") {
  RecordingComm comm;
  const Program p = program({instruction(Opcode::kernel, "frobnicate")});
  CHECK_THROWS_WITH_AS(make_cpu_executor(p, comm, {}), doctest::Contains("no CPU kernel 'frobnicate'"), InternalError);
}
