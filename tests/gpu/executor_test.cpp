// The CUDA executor on handmade programs, one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "engine/base/error.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/initial_weights.h"
#include "tests/gpu/gpus.h"
#include "tests/op_cases/cuda/small_step_on.h"

using namespace trainctl;

namespace {

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
  i.name = i.op = name;
  return i;
}

/// sum += data, which is also the loss and printed.
Program summing() {
  Program p;
  p.arena_bytes = 1024;
  p.loss_offset = 192;
  Instruction load = instruction(Opcode::load, "data");
  load.outputs = {floats(128, 3)};
  Instruction add = instruction(Opcode::kernel, "accumulate");
  add.inputs = load.outputs;
  add.outputs = {floats(192, 3)};
  add.outputs[0].accumulate = true;
  Instruction again = load;
  again.outputs = {floats(256, 3)};
  Instruction print = instruction(Opcode::print, "sum");
  print.inputs = add.outputs;
  p.instructions = {load, add, again, print};
  return p;
}

Operand matrix(int64_t offset, int64_t rows, int64_t cols) {
  Operand operand = floats(offset, 0);
  operand.shape = operand.global_shape = {rows, cols};
  operand.global_offset = {0, 0};
  return operand;
}

constexpr int64_t kRows = 20, kTensors = 1024;  ///< rows; start of the tensors
constexpr int64_t kGrads = 6144;                ///< start of the gradients of launch_of_four

/// A layer, the loss and the gradients of two weights, marked as one launch; rows of 6 are not whole packs.
Program launch_of_four() {
  Program p;
  p.arena_bytes = 8192;
  p.scalars_offset = 0;
  p.loss_offset = 7168;
  const Operand x = matrix(kTensors, kRows, 6), w = matrix(2048, 1, 6), other = matrix(2560, kRows, 8);
  const Operand y = matrix(4096, kRows, 1), label = matrix(4608, kRows, 1), dy = matrix(5120, kRows, 1);
  const auto kernel = [&](const std::string& op, std::vector<Operand> in, std::vector<Operand> out,
                          const Attrs& attrs) {
    Instruction i = instruction(Opcode::kernel, op);
    i.inputs = std::move(in);
    i.outputs = std::move(out);
    i.attrs = attrs;
    i.launch = 0;
    p.instructions.push_back(std::move(i));
  };
  kernel("matmul", {x, w}, {y}, {{"transpose_b", true}});
  kernel("mse_with_grad", {y, label}, {floats(p.loss_offset, 1), dy}, {});
  kernel("matmul_weight_grad", {x, dy}, {matrix(kGrads, 1, 6)}, {});
  kernel("matmul_weight_grad", {other, dy}, {matrix(kGrads + 128, 1, 8)}, {});
  return p;
}

struct EveryStep : Timeline {
  bool wants(uint32_t) override { return true; }
  void ran(const TimeSpan& span) override { launched[span.instruction] = span.launched; }
  std::map<int32_t, int32_t> launched;
};

struct OneRank {
  explicit OneRank(const Program& program)
      : memory(SharedMemory::create({program.arena_bytes})), comm(make_shared_memory_communicator(memory, 0, 10)) {}
  std::shared_ptr<SharedMemory> memory;
  std::unique_ptr<Communicator> comm;
};

CudaExecutorOptions graph(bool on) {
  CudaExecutorOptions options;
  options.graph = on;
  options.notice = [](const std::string& line) { throw EnvError(line); };
  return options;
}

}  // namespace

TEST_CASE("steps are started ahead and finish in order, each with its own data, scalars, loss and prints") {
  if (!have_gpus(1)) return;
  for (const auto& [with_graph, ahead] : {std::pair{false, 3}, {true, 3}, {true, 8}}) {  // with 8 ahead, a graph has 4
    CAPTURE(with_graph);
    CAPTURE(ahead);
    const Program program = summing();
    OneRank rank(program);
    std::vector<float> printed;
    ExecutorOptions options;
    options.in_flight = ahead;
    options.print = [&](const Operand& operand, const void* data, int) {
      CHECK(num_elements(operand.shape) == 3);
      printed.push_back(static_cast<const float*>(data)[2]);
    };
    const auto executor = make_cuda_executor(program, *rank.comm, options, graph(with_graph));
    REQUIRE(executor->max_in_flight() == ahead);
    const int64_t bytes = input_layout(program).bytes;
    std::vector<HostBlock> blocks;
    for (int i = 0; i < ahead; ++i) blocks.push_back(executor->allocate_inputs(bytes));

    const auto start = [&](int step) {
      std::byte* block = blocks[static_cast<size_t>(step % ahead)].get();
      const float values[] = {float(step), 0, float(10 * step)};
      std::memcpy(block, values, sizeof(values));
      executor->start_step(block, {.step = uint32_t(step)});
    };
    for (int step = 0; step < ahead; ++step) start(step);
    CHECK_THROWS_AS(start(ahead), InternalError);
    float expected = 0;
    for (int step = 0; step < 20; ++step) {
      expected += float(step);
      CHECK(executor->finish_step() == expected);
      if (step + ahead < 20) start(step + ahead);
    }
    CHECK_THROWS_AS(executor->finish_step(), InternalError);
    REQUIRE(printed.size() == 20);
    CHECK(printed[1] == 10);
    CHECK(printed[19] == 1900);
  }
}

TEST_CASE("inputs may be in any memory, and the arena is read and written after all started steps") {
  if (!have_gpus(1)) return;
  const Program program = summing();
  OneRank rank(program);
  const auto executor = make_cuda_executor(program, *rank.comm, {}, graph(true));
  float values[16] = {1, 2, 3};
  const auto* inputs = reinterpret_cast<const std::byte*>(values);
  executor->start_step(inputs, {});
  values[0] = 5;  // it has been copied
  executor->start_step(inputs, {.step = 1});
  float sum[3];
  executor->read(192, sum, sizeof(sum));
  CHECK(sum[0] == 6);
  CHECK(sum[2] == 6);
  const float other[3] = {100, 0, 0};
  executor->write(192, other, sizeof(other));
  CHECK(executor->finish_step() == 1);
  CHECK(executor->finish_step() == 6);
  executor->start_step(inputs, {.step = 2});
  CHECK(executor->finish_step() == 105);
}

TEST_CASE("a device converts the bytes of a step to floats by its table") {
  if (!have_gpus(1)) return;
  const Program program = summing();
  ByteTable table{"data", 1, 3, false, false, std::vector<float>(3 * ByteTable::kValues)};
  for (size_t i = 0; i < table.values.size(); ++i) table.values[i] = static_cast<float>(i) / 2;
  for (const bool with_graph : {false, true}) {
    CAPTURE(with_graph);
    OneRank rank(program);
    ExecutorOptions options;
    options.byte_tables = {table};
    const auto executor = make_cuda_executor(program, *rank.comm, options, graph(with_graph));
    REQUIRE(executor->inputs().as_bytes[0]);
    const HostBlock block = executor->allocate_inputs(executor->inputs().bytes);
    float expected[3] = {};
    for (uint32_t step = 0; step < 6; ++step) {
      for (uint32_t c = 0; c < 3; ++c) {
        block.get()[c] = static_cast<std::byte>(7 * step + 90 * c);
        expected[c] += static_cast<float>(256 * c + 7 * step + 90 * c) / 2;
      }
      executor->start_step(block.get(), {.step = step});
      CHECK(executor->finish_step() == expected[0]);
    }
    float sum[3];
    executor->read(192, sum, sizeof(sum));
    CHECK(std::equal(sum, sum + 3, expected));
  }
}

TEST_CASE("the executor records how its start and its first steps spend their time") {
  if (!have_gpus(1)) return;
  const Program program = summing();
  OneRank rank(program);
  StartUpClock clock;
  ExecutorOptions options;
  options.start_up = &clock;
  const auto executor = make_cuda_executor(program, *rank.comm, options, graph(true));
  const std::vector<float> values(16);
  for (uint32_t step = 0; step < 2; ++step)
    executor->start_step(reinterpret_cast<const std::byte*>(values.data()), {.step = step});
  executor->finish_step();
  executor->finish_step();
  std::vector<std::string> phases;
  for (const auto& phase : clock.phases()) phases.push_back(phase.name);
  CHECK(phases == std::vector<std::string>{"CUDA", "data", "memory", "kernels", "weights", "step", "graph"});
}

TEST_CASE("weight gradients run in one launch even without a kernel for all of them") {
  if (!have_gpus(1)) return;
  const SmallStepOn on;
  const Program program = launch_of_four();
  for (const bool with_graph : {false, true}) {
    CAPTURE(with_graph);
    OneRank rank(program);
    EveryStep timeline;
    ExecutorOptions options;
    options.timeline = &timeline;
    const auto executor = make_cuda_executor(program, *rank.comm, options, graph(with_graph));
    const std::vector<float> ones(static_cast<size_t>(program.arena_bytes - kTensors) / sizeof(float), 1.0f);
    executor->write(kTensors, ones.data(), program.arena_bytes - kTensors);
    const HostBlock inputs = executor->allocate_inputs(input_layout(program).bytes);
    for (uint32_t step = 0; step < 2; ++step) {
      executor->start_step(inputs.get(), {.step = step});
      CHECK(executor->finish_step() == kRows * 5 * 5);  // a sum of 6 ones, which should be 1
    }
    CHECK(timeline.launched == std::map<int32_t, int32_t>{{0, 1}, {1, 1}, {2, 2}, {3, 0}});
    float grad = 0;
    for (const int64_t at : {kGrads, kGrads + 128}) {
      executor->read(at, &grad, sizeof(grad));
      CHECK(grad == kRows * 2 * 5);
    }
  }
}

TEST_CASE("a rank that fails while it loads reports it at once, and the ranks that wait for it name it") {
  if (!have_gpus(2)) return;
  const auto memory = SharedMemory::create({1024, 1024});
  std::vector<Program> programs(2);
  for (int r = 0; r < 2; ++r) {
    Program& program = programs[static_cast<size_t>(r)];
    program.rank = r;
    program.arena_bytes = r == 0 ? 1024 : int64_t{1} << 50;
    program.groups = {{0, 1}};
    Instruction sum = instruction(Opcode::collective, "sum");
    sum.collective = Collective::all_reduce;
    sum.group = 0;
    sum.inputs = sum.outputs = {floats(128, 3)};
    program.instructions = {sum};
  }
  std::thread failing([&] {
    const auto comm = make_shared_memory_communicator(memory, 1, 2);
    auto options = graph(true);
    options.device = 1;
    CHECK_THROWS_WITH_AS(make_cuda_executor(programs[1], *comm, {}, options), doctest::Contains("are free"), EnvError);
  });
  const auto comm = make_shared_memory_communicator(memory, 0, 2);
  CHECK_THROWS_WITH_AS(make_cuda_executor(programs[0], *comm, {}, graph(true)),
                       doctest::Contains("rank 1 has not arrived"), CommError);
  failing.join();
}

TEST_CASE("initial weights have the CPU's bits, normal ones within an ulp") {
  if (!have_gpus(1)) return;
  Program program;
  program.arena_bytes = 1 << 16;
  int64_t offset = 64;
  for (Init::Kind kind : {Init::Kind::constant, Init::Kind::uniform, Init::Kind::normal}) {
    Variable variable;
    variable.name = "w" + std::to_string(int(kind));
    variable.kind = TensorKind::state;
    variable.init.kind = kind;
    variable.init.value = 0.37;
    variable.global_shape = {7, 33, 5};
    variable.shape = {3, 11, 5};
    variable.offset = {2, 22, 0};
    variable.arena_offset = offset;
    offset += 4096;
    program.variables.push_back(variable);
  }
  OneRank rank(program);
  std::vector<std::byte> expected(static_cast<size_t>(program.arena_bytes)), found(expected.size());
  write_initial_weights(program, 11, expected.data());
  ExecutorOptions options;
  options.seed = 11;
  make_cuda_executor(program, *rank.comm, options, graph(true))->read(0, found.data(), program.arena_bytes);
  CHECK(std::memcmp(expected.data(), found.data(), 64 + 2 * 4096) == 0);
  for (int i = 0; i < 165; ++i) {
    float a, b;
    std::memcpy(&a, expected.data() + 64 + 2 * 4096 + i * 4, 4);
    std::memcpy(&b, found.data() + 64 + 2 * 4096 + i * 4, 4);
    CHECK(std::nextafter(a, b) == b);
  }
}

TEST_CASE("a kernel that a GPU lacks is an error that names it") {
  if (!have_gpus(1)) return;
  Program program;
  program.arena_bytes = 512;
  program.instructions = {instruction(Opcode::kernel, "frobnicate")};
  OneRank rank(program);
  CHECK_THROWS_WITH_AS(make_cuda_executor(program, *rank.comm, {}, graph(true)),
                       doctest::Contains("has the kernel 'frobnicate'"), InternalError);
}

TEST_CASE("an arena that does not fit on the GPU is an error that says how much memory there is") {
  if (!have_gpus(1)) return;
  Program program;
  program.arena_bytes = int64_t{1} << 50;
  OneRank rank(summing());
  CHECK_THROWS_WITH_AS(make_cuda_executor(program, *rank.comm, {}, graph(true)), doctest::Contains("are free"),
                       EnvError);
}
