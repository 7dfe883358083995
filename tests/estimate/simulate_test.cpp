// A simulated step: laws that hold for every program and machine.
#include "engine/estimate/simulate.h"

#include <doctest/doctest.h>

#include <map>
#include <numeric>

#include "engine/compile/compile.h"
#include "engine/model/model.h"
#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

const std::string kNetwork = R"(
dataset: {type: random, shape: [64], label_dtype: i32, classes: 16, batch: 48}
network:
  - {name: a, type: dense, units: 128}
  - {type: relu}
  - {name: b, type: dense, units: 128}
  - {type: relu}
  - {name: c, type: dense, units: 128}
  - {type: relu}
  - {name: d, type: dense, units: 16}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001}
)";

const std::vector<std::string> kPlans = {
    "launch: {ranks: 1}",
    "launch: {ranks: 4}\nparallel: {mode: data_parallel}",
    "launch: {ranks: 6}\nparallel: {mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}",
    "launch: {ranks: 4}\nparallel: {mode: semi_auto_parallel, strategies: {b: [[1, 1], [4, 1]], c: [[1, 4], [1, 4]]}}",
    "launch: {ranks: 3}\nparallel: {mode: semi_auto_parallel, stages: 3, micro_batches: 6}",
    "launch: {ranks: 8}\nparallel: {mode: semi_auto_parallel, stages: 2, micro_batches: 4, schedule: gpipe, "
    "optimizer_shard: {level: 2, min_kb: 0}}",
};

struct Job {
  JobSpec spec;
  Graph graph;
  Plan plan;
};

Job planned(const std::string& text) {
  Job job;
  job.spec = parse_job(text, "job.yaml");
  const DatasetSpec& set = job.spec.dataset;
  job.graph = build_graph(job.spec, data_and_label(set.shape, set.label_shape, false, set.label_dtype == "i32"));
  job.plan = make_plan(job.graph, job.spec, CostModel());
  return job;
}

struct Case {
  Job job;
  RankClasses classes;
};

Case compiled(const std::string& plan) {
  Case c{planned(kNetwork + plan), RankClasses()};
  c.classes = compile_classes(c.job.graph, c.job.plan, CostModel());
  return c;
}

/// Small steps need a machine on which they take more than latencies.
Machine gpus() {
  Machine machine = *find_machine("h100x8");
  machine.products = {{1e10}, {1e10}, {1e10}};
  return machine;
}

double sum(const Simulation& step) {
  double seconds = 0;
  for (const Seconds part : step.parts) seconds += part.value;
  return seconds;
}

}  // namespace

TEST_CASE("the parts of a simulated step add up to it, and no stream is busy for longer") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    for (const Machine& machine : {*find_machine("cpu"), gpus()}) {
      const Simulation step = simulate(c.classes, machine);
      CHECK(step.step.value > 0);
      CHECK(sum(step) == doctest::Approx(step.step.value));
      for (size_t k = 0; k < step.spans.size(); ++k) {
        double compute = 0;
        for (size_t i = 0; i < step.spans[k].size(); ++i) {
          const SimulatedSpan& span = step.spans[k][i];
          CHECK(span.ready <= span.begin);
          CHECK(span.begin <= span.end);
          if (c.classes.programs[k].instructions[i].stream == Stream::compute) compute += (span.end - span.begin).value;
        }
        CHECK(compute <= step.step.value * (1 + 1e-9));
      }
    }
  }
}

TEST_CASE("simulating one rank of each class gives the same time as simulating every rank") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    const RankClasses apart = each_by_itself(compile_all(c.job.graph, c.job.plan, CostModel()));
    for (const Machine& machine : {*find_machine("cpu"), gpus()})
      CHECK(simulate(c.classes, machine).step.value ==
            doctest::Approx(simulate(apart, machine).step.value).epsilon(1e-9));
  }
}

TEST_CASE("more bandwidth, memory or products never cost time") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    for (Machine machine : {*find_machine("cpu"), gpus()}) {
      machine.overlap_cost = 1;
      const double before = simulate(c.classes, machine).step.value;
      for (LinkLevel& link : machine.links) link.bandwidth = 3 * link.bandwidth;
      const double wide = simulate(c.classes, machine).step.value;
      CHECK(wide <= before);
      machine.memory_rate = 2 * machine.memory_rate;
      const double fast = simulate(c.classes, machine).step.value;
      CHECK(fast <= wide);
      machine.products.fp32 = 2 * machine.products.fp32;
      CHECK(simulate(c.classes, machine).step.value <= fast);
    }
  }
}

TEST_CASE("a measured step is predicted as measured, and its parts add up") {
  const Case c = compiled(kPlans[0]);
  for (Machine machine : {*find_machine("cpu"), gpus()}) {
    StepSample step = step_alone(c.classes.programs[0], machine);
    CHECK(step.kernels > 0);
    const double before = simulate(c.classes, machine).step.value;
    step.measured = 1.3 * step.alone + step.kernels * Seconds{1e-6} + Seconds{2e-5};
    machine.steps.assign(6, step);
    const Simulation after = simulate(c.classes, machine);
    CHECK(sum(after) == doctest::Approx(after.step.value));
    CHECK(after.step.value - before == doctest::Approx((step.measured - step.alone).value).epsilon(0.1));
    CHECK(after.deviation.value > 0);
    for (const Seconds part : after.parts) CHECK(part >= Seconds{});
  }
}

TEST_CASE("a faster kernel never costs time") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    Machine machine = gpus();
    machine.overlap_cost = 1;
    std::map<std::string, KernelSample> calls;
    for (const Program& program : c.classes.programs)
      for (const Instruction& now : program.instructions) {
        if (now.opcode != Opcode::kernel) continue;
        std::vector<TensorInfo> in, out;
        for (const Operand& operand : now.inputs) in.push_back({operand.shape, operand.dtype});
        for (const Operand& operand : now.outputs) out.push_back({operand.shape, operand.dtype});
        const KernelDef& kernel = *kernel_of(now);
        calls.try_emplace(kernel_key(kernel, in, out, now.attrs),
                          KernelSample{kernel_sizes(in, out), kernel_cost(kernel, in, out, now.attrs),
                                       2 * kernel_time(machine, kernel, in, out, now.attrs), to_string(now.attrs)});
      }
    for (const auto& [key, call] : calls) machine.kernels.insert_or_assign(key, KernelModel({call}));
    double before = simulate(c.classes, machine).step.value;
    for (auto& [key, call] : calls) {
      call.seconds = 0.5 * call.seconds;
      machine.kernels.insert_or_assign(key, KernelModel({call}));
      const double after = simulate(c.classes, machine).step.value;
      CHECK(after <= before * (1 + 1e-9));
      before = after;
    }
  }
}

TEST_CASE("a step of four equal stages takes three products per micro-batch, plus the bubble of the pipeline") {
  const std::string network = R"(
dataset: {type: random, shape: [512], label_shape: [512], label_dtype: f32, batch: 512}
network:
  - {name: a, type: dense, units: 512, bias: false}
  - {name: b, type: dense, units: 512, bias: false}
  - {name: c, type: dense, units: 512, bias: false}
  - {name: d, type: dense, units: 512, bias: false}
loss: mae
optimizer: {type: sgd, learning_rate: 0.001}
launch: {ranks: 4}
parallel: {mode: semi_auto_parallel, stages: 4, stage_config: {a: 0, b: 1, c: 2, d: 3}, micro_batches: )";
  Machine machine = gpus();     // only products count
  machine.multiprocessors = 0;  // products of all sizes at the rate
  machine.memory_rate = {1e18};
  machine.launch = {};
  machine.overlap_cost = 1;
  for (LinkLevel& link : machine.links) link = {link.name, link.devices, {1e18}, {}};
  for (const int micro_batches : {1, 4, 8, 16}) {
    CAPTURE(micro_batches);
    const Job job = planned(network + std::to_string(micro_batches) + "}");
    const RankClasses classes =
        compile_classes(job.graph, job.plan, CostModel(std::make_shared<Machine>(machine), Precision::fp32));
    const double product = 2.0 * 512 * 512 * 512 / micro_batches / machine.products.fp32.value;
    // The last stage gets the first micro-batch after three products, computes without a pause, and sends its last
    // gradient of an input before it computes that of its weight; two more stages do, then comes the first one's
    // weight.
    CHECK(simulate(classes, machine).step.value == doctest::Approx((3 * micro_batches + 5) * product).epsilon(1e-6));
  }
}

TEST_CASE("machines without overlap take at least as long as with it") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    Machine machine = gpus();
    machine.overlap_cost = 1;
    const double beside = simulate(c.classes, machine).step.value;
    machine.overlaps = false;
    CHECK(simulate(c.classes, machine).step.value >= beside * (1 - 1e-9));
  }
}

namespace {

/// Two ranks do the same: relus one after the other, and an all_reduce that waits for the first of them.
RankClasses relus_and_all_reduce(int relus) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    Program& program = programs.emplace_back();
    program.rank = rank;
    program.groups = {{0, 1}};
    Operand numbers;
    numbers.shape = numbers.global_shape = {1 << 20};
    for (int i = 0; i <= relus; ++i) {
      Instruction now;
      now.name = now.op = "relu";
      now.inputs = now.outputs = {numbers};
      if (i == 1) {
        now.opcode = Opcode::collective;
        now.stream = Stream::comm;
        now.group = 0;
        now.waits = {0};
      }
      program.instructions.push_back(now);
    }
  }
  return each_by_itself(std::move(programs));
}

Seconds length_of(const Simulation& step, size_t instruction) {
  return step.spans[0][instruction].end - step.spans[0][instruction].begin;
}

}  // namespace

TEST_CASE(
    "a collective has the exposed delay, and beside a kernel it waits for that kernel, at most for the delay beside "
    "kernels") {
  Machine machine = *find_machine("h100x8");
  machine.overlap_cost = 1;
  const Seconds relu = length_of(simulate(relus_and_all_reduce(1), machine), 0), exposed{1e-5};
  for (const int relus : {1, 2, 5})
    for (const double beside : {0.5, 2.0}) {
      CAPTURE(relus);
      CAPTURE(beside);
      const RankClasses classes = relus_and_all_reduce(relus);
      machine.delays = {};
      const Seconds alone = length_of(simulate(classes, machine), 1);
      machine.delays = {.exposed = exposed, .beside = exposed + beside * relu};
      const Simulation step = simulate(classes, machine);
      const Seconds waits = relus == 1 ? Seconds{} : std::min(beside, 1.0) * relu;
      CHECK((length_of(step, 1) - alone).value == doctest::Approx((exposed + waits).value));
      CHECK(sum(step) == doctest::Approx(step.step.value));
    }
}

TEST_CASE("calls that take no time have no delay, and delays never shorten a step") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    const Case c = compiled(plan);
    Machine machine = gpus();
    const double before = simulate(c.classes, machine).step.value;
    machine.delays = {.exposed = {1e-5}, .beside = {2e-5}};
    const Simulation after = simulate(c.classes, machine);
    CHECK(after.step.value >= before);
    CHECK((after.step.value > before) == (&plan != &kPlans[0]));
    CHECK(sum(after) == doctest::Approx(after.step.value));
  }
}

TEST_CASE("kernels that run while their rank waits for a message take the machine's wait_cost times as long") {
  Operand numbers;
  numbers.shape = numbers.global_shape = {1 << 20};
  const auto instruction = [&](Opcode opcode, Stream stream, std::vector<int> waits) {
    Instruction now;
    now.opcode = opcode;
    now.stream = stream;
    now.name = now.op = "relu";
    if (opcode != Opcode::recv) now.inputs = {numbers};
    if (opcode != Opcode::send) now.outputs = {numbers};
    now.waits = std::move(waits);
    return now;
  };
  const Instruction relu = instruction(Opcode::kernel, Stream::compute, {});
  Program sender, receiver;
  receiver.rank = 1;
  sender.instructions.assign(10, relu);
  sender.instructions.push_back(instruction(Opcode::send, Stream::send, {9}));
  sender.instructions.back().peer = 1;
  receiver.instructions = {instruction(Opcode::recv, Stream::recv, {}), relu, relu,
                           instruction(Opcode::kernel, Stream::compute, {0})};
  receiver.instructions[0].peer = 0;
  const RankClasses classes = each_by_itself({sender, receiver});
  Machine machine = *find_machine("h100x8");
  machine.overlap_cost = 1;
  const auto length = [&](size_t of_class, size_t i) {
    const SimulatedSpan span = simulate(classes, machine).spans[of_class][i];
    return (span.end - span.begin).value;
  };
  const double alone = length(1, 1);
  CHECK(length(0, 0) == doctest::Approx(alone));
  machine.wait_cost = 1.5;
  CHECK(length(1, 1) == doctest::Approx(1.5 * alone));
  CHECK(length(1, 2) == doctest::Approx(1.5 * alone));
  CHECK(length(1, 3) == doctest::Approx(alone));  // the message has come
  CHECK(length(0, 0) == doctest::Approx(alone));  // waits for none
}

TEST_CASE("ranks that wait for each other do not end, and are reported") {
  std::vector<Program> programs(2);
  for (int rank = 0; rank < 2; ++rank) {
    Program& program = programs[static_cast<size_t>(rank)];
    program.rank = rank;
    Operand numbers;
    numbers.shape = numbers.global_shape = {16};
    Instruction recv, send;
    recv.opcode = Opcode::recv;
    recv.stream = Stream::recv;
    recv.outputs = {numbers};
    send.opcode = Opcode::send;
    send.stream = Stream::send;
    send.inputs = {numbers};
    send.waits = {0};
    recv.peer = send.peer = 1 - rank;
    program.instructions = {recv, send};
  }
  CHECK_FALSE(simulate(each_by_itself(programs), gpus()).ends);
  programs[0].instructions[1].waits.clear();
  CHECK(simulate(each_by_itself(programs), gpus()).ends);
}
