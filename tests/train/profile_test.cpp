// Tests of profiles: which rank waited for which, where the time went, and the trace for viewers.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "engine/base/error.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/routes.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/profile/ran_tasks.h"
#include "engine/train/profile/step_components.h"
#include "engine/train/profile/step_profile.h"
#include "engine/train/profile/summary.h"
#include "engine/train/profile/trace.h"
#include "engine/train/profile/waiting.h"
#include "engine/train/trainer/trainer.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

Operand floats(int64_t n) { return {.offset = 0, .shape = {n}, .global_shape = {n}, .tensor = "t"}; }

/// The programs of ranks 0 and 1: a relu on the compute stream, an all_reduce on the comm stream, and a send from 0 to
/// 1.
Program two_ranks(int rank) {
  Program program;
  program.rank = rank;
  program.groups = {{0, 1}};
  Instruction relu{.opcode = Opcode::kernel, .name = "relu", .op = "relu"};
  relu.inputs = {floats(250)};
  relu.outputs = {floats(250)};
  Instruction reduce{.opcode = Opcode::collective, .name = "all_reduce g"};
  reduce.inputs = reduce.outputs = {floats(1000)};
  reduce.group = 0;
  reduce.stream = Stream::comm;
  reduce.waits = {0};
  Instruction message{.opcode = rank == 0 ? Opcode::send : Opcode::recv, .name = "pass x"};
  (rank == 0 ? message.inputs : message.outputs) = {floats(10)};
  message.peer = 1 - rank;
  message.stream = rank == 0 ? Stream::send : Stream::recv;
  program.instructions = {relu, reduce, message};
  return program;
}

TimeSpan span(int32_t instruction, int64_t begin, int64_t end, int64_t ready = -1) {
  return {2, instruction, ready < 0 ? begin : ready, begin, end};
}

/// The trace of `profiles`, parsed. Every event is on a line of its own.
nlohmann::json trace_of(std::span<const RankProfile> profiles) {
  std::stringstream text;
  write_trace(text, profiles, "job");
  return nlohmann::json::parse(text.str(), nullptr, false);
}

/// Checks the properties of a trace that viewers and users rely on.
void check_trace(const nlohmann::json& trace, std::span<const RankProfile> profiles, int64_t steps) {
  REQUIRE(trace.is_object());
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  std::map<std::pair<int, int>, int> seen;  // rank, instruction
  std::map<int, std::string> arrows;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "s" || phase == "f") arrows[event["id"]] += phase;
    if (phase != "X") continue;
    CHECK(event["dur"].get<double>() >= 0);
    tracks[{event["pid"], event["tid"]}].emplace_back(event["ts"], event["dur"]);
    if (event["args"].contains("instruction")) ++seen[{event["pid"], event["args"]["instruction"]}];
  }
  for (auto& [track, slices] : tracks) {
    std::sort(slices.begin(), slices.end());
    for (size_t i = 1; i < slices.size(); ++i) {
      CHECK(slices[i - 1].first + slices[i - 1].second <= slices[i].first + 1e-6);
    }
  }
  for (const RankProfile& profile : profiles) {
    for (size_t i = 0; i < profile.program->instructions.size(); ++i) {
      CHECK(seen[{profile.program->rank, static_cast<int>(i)}] == steps);
    }
  }
  for (const auto& [id, ends] : arrows) CHECK(ends == "sf");
}

}  // namespace

TEST_CASE("a collective waits until the last of its group has come") {
  const Program first = two_ranks(0), second = two_ranks(1);
  const std::vector<RankProfile> profiles = {{&first, {span(1, 100, 400)}}, {&second, {span(1, 350, 410)}}};
  const Waiting waiting = find_waiting(profiles);
  CHECK(waiting.waited_ns[0][0] == 250);
  CHECK(waiting.waited_ns[1][0] == 0);
  CHECK(find_waiting(std::span(profiles).first(1)).waited_ns[0][0] == 0);  // peers' profiles are missing
}

TEST_CASE("a recv waits for its send, and a send that is over has not waited for its recv") {
  const Program first = two_ranks(0), second = two_ranks(1);
  const auto waited = [&](const TimeSpan& send, const TimeSpan& recv) {
    const std::vector<RankProfile> profiles = {{&first, {send}}, {&second, {recv}}};
    const Waiting waiting = find_waiting(profiles);
    REQUIRE(waiting.messages.size() == 1);
    return std::pair(waiting.waited_ns[0][0], waiting.waited_ns[1][0]);
  };
  CHECK(waited(span(2, 100, 101), span(2, 40, 130)) == std::pair<int64_t, int64_t>(0, 60));
  CHECK(waited(span(2, 100, 101), span(2, 150, 160)) == std::pair<int64_t, int64_t>(0, 0));
  CHECK(waited(span(2, 100, 180), span(2, 150, 180)) == std::pair<int64_t, int64_t>(50, 0));  // as NCCL's
}

TEST_CASE("the tasks that ran are those of the last common step, of the first rank of each stage") {
  const auto kernel = [](Phase phase, int micro_batch, bool again = false) {
    Instruction i{.opcode = Opcode::kernel, .name = "k", .op = "relu", .phase = phase, .micro_batch = micro_batch};
    i.recompute = again;
    return i;
  };
  Program stages[2];
  for (int stage : {0, 1}) {
    stages[stage].rank = 2 * stage;
    stages[stage].stage = stage;
    stages[stage].instructions = {
        kernel(Phase::forward, 0),  kernel(Phase::forward, 0),
        kernel(Phase::forward, 1),  kernel(Phase::forward, 0, true),
        kernel(Phase::backward, 0), kernel(Phase::forward, -1)};  // the last one is of no task
  }
  Program second = stages[0];
  second.rank = 1;
  TimeSpan later = span(0, 900, 901);
  later.step = 3;
  const std::vector<RankProfile> profiles = {
      {&stages[0], {span(0, 100, 110), span(1, 112, 120), span(2, 130, 140), span(5, 200, 300), later}},
      {&second, {span(0, 50, 60)}},
      {&stages[1], {span(0, 150, 160), span(3, 170, 180), span(4, 181, 190)}}};
  const std::vector<RankTasks> ran = ran_tasks(profiles);
  REQUIRE(ran.size() == 2);
  CHECK(ran[0].rank == 0);
  CHECK(ran[1].stage == 1);
  const auto text = [](const RankTasks& of) {
    std::string words;
    for (const RanTask& task : of.tasks)
      words += task.name + " " + std::to_string(std::lround(task.begin * 1e9)) + "-" +
               std::to_string(std::lround(task.end * 1e9)) + " ";
    return words;
  };
  CHECK(text(ran[0]) == "F0 0-20 F1 30-40 ");
  CHECK(text(ran[1]) == "F0 50-60 B0 70-90 ");
}

TEST_CASE("the shares of a rank add up to 1, and communication under a kernel is hidden") {
  const Program first = two_ranks(0), second = two_ranks(1);
  // Events of rank 0, in ns: a kernel from 0 to 100; an all_reduce from 50 on that moves bytes from 60 to 160; idle
  // until 180; then a send until 200.
  const std::vector<RankProfile> profiles = {{&first, {span(0, 0, 100), span(1, 50, 160), span(2, 190, 200, 180)}},
                                             {&second, {span(0, 0, 40), span(1, 60, 160), span(2, 195, 205)}}};
  const ProfileSummary summary = summarize(profiles);
  REQUIRE(summary.ranks.size() == 2);
  const RankShares& shares = summary.ranks[0];
  CHECK(shares.seconds == doctest::Approx(200e-9));
  CHECK(shares.compute == doctest::Approx(0.5));
  CHECK(shares.exposed == doctest::Approx((60 + 5) / 200.0));  // the send waits 190..195 for its recv
  CHECK(shares.waiting == doctest::Approx((10 + 5) / 200.0));
  CHECK(shares.idle == doctest::Approx(20 / 200.0));
  CHECK(shares.moving_seconds == doctest::Approx(105e-9));
  CHECK(shares.hidden_seconds == doctest::Approx(40e-9));
  CHECK(shares.moved_bytes == 4040);
  CHECK(shares.hidden_bytes == doctest::Approx(4000 * 0.4));
  CHECK(to_string(summary.steps) == "3");
  CHECK(summary.instructions.front().name == "all_reduce g");
  CHECK(summary.instructions.front().seconds == doctest::Approx(200e-9));
  CHECK(summary.instructions.front().waited_seconds == doctest::Approx(10e-9));
}

TEST_CASE("the parts of a step add up to it, and each kernel counts with the machine's limit") {
  const Program first = two_ranks(0), second = two_ranks(1);
  Machine machine = *find_machine("cpu");
  machine.memory_rate = {100e9};
  // Events of both ranks, in ns: a kernel from 0 to 100; bytes move until 160; nothing runs until 180; then the send,
  // and the next step.
  const auto steps = [](int64_t arrival) {
    std::vector<TimeSpan> spans;
    for (const int64_t start : {0, 300}) {
      for (TimeSpan s :
           {span(0, start, start + 100), span(1, start + arrival, start + 160), span(2, start + 180, start + 200)}) {
        s.step = start == 0 ? 2 : 3;
        spans.push_back(s);
      }
    }
    return spans;
  };
  const std::vector<RankProfile> profiles = {{&first, steps(50)}, {&second, steps(50)}};
  double all = 0;
  std::map<std::string, StepComponent> parts;
  for (const StepComponent& part : step_components(profiles, machine)) {
    all += part.seconds;
    parts[part.name] = part;
  }
  CHECK(all == doctest::Approx(500e-9 / 2));
  CHECK(parts["element-wise, copies"].seconds == doctest::Approx(100e-9));
  CHECK(parts["element-wise, copies"].limit_seconds == doctest::Approx(2000 / 100e9));
  CHECK(parts["element-wise, copies"].launches == 1);
  CHECK(parts["communication not hidden"].seconds == doctest::Approx(80e-9));
  CHECK(parts["communication not hidden"].launches == 2);
  CHECK(parts["gaps between kernels"].seconds == doctest::Approx(20e-9));
  CHECK(parts["between steps: host and data"].seconds == doctest::Approx(50e-9));
  CHECK(parts["between steps: host and data"].limit_seconds == 0);
}

TEST_CASE("products, the head, norms, the loss and the optimizer of a network are parts of their own") {
  const PlannedJob job =
      plan_job(job_spec("gpt", {"launch.device=cpu", "launch.ranks=1", "parallel.mode=stand_alone"}));
  const Program program = compile(job, 0);
  RankProfile profile{.program = &program};
  for (int32_t i = 0; i < static_cast<int32_t>(program.instructions.size()); ++i)
    profile.spans.push_back(span(i, i, i + 1));
  std::map<std::string, StepComponent> parts;
  for (const StepComponent& part : step_components(std::span(&profile, 1), job.cost.machine())) parts[part.name] = part;
  for (const char* name :
       {"products forward", "products backward", "head", "attention forward", "attention backward", "norms forward",
        "norms backward", "loss", "optimizer", "embeddings forward", "embeddings backward"}) {
    CAPTURE(name);
    REQUIRE(parts.contains(name));
    CHECK(parts[name].limit_seconds > 0);
  }
  CHECK(parts["head"].launches == 3);  // the product and its two gradients
}

TEST_CASE("the times of a trace are read back to the nanosecond") {
  const Program program = two_ranks(0);
  const int64_t day = 86'400'000'000'123;
  RankProfile profile{
      &program, {span(0, day, day + 1001), span(1, day + 7, day + 7), span(2, day + 2003, day + 2004, day + 1500)}};
  std::stringstream text;
  write_trace(text, std::span(&profile, 1), "job \"x\"");
  check_trace(nlohmann::json::parse(text.str(), nullptr, false), std::span(&profile, 1), 1);
  const std::vector<TimeSpan> spans = read_trace(text);
  REQUIRE(spans.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(spans[i].step == 2);
    CHECK(spans[i].instruction == profile.spans[i].instruction);
    CHECK(spans[i].ready_ns == profile.spans[i].ready_ns);
    CHECK(spans[i].begin_ns == profile.spans[i].begin_ns);
    CHECK(spans[i].end_ns == profile.spans[i].end_ns);
  }
  std::stringstream nonsense("step: 3, loss is 0.1\n");
  CHECK_THROWS_AS(read_trace(nonsense), EnvError);
}

TEST_CASE("events say what a kernel did, and how quickly") {
  const Program program = two_ranks(0);
  const RankProfile profile{&program, {span(0, 0, 1000), span(1, 2000, 3000)}};
  const nlohmann::json trace = trace_of(std::span(&profile, 1));
  nlohmann::json relu, reduce;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "relu") relu = event;
    if (event["name"] == "all_reduce g") reduce = event;
  }
  REQUIRE(relu.is_object());
  CHECK(relu["args"]["in"][0] == "t [250]");
  CHECK(relu["args"]["bytes"] == 2000);
  CHECK(relu["args"]["GB/s"] == 2.0);
  REQUIRE(reduce.is_object());
  CHECK(reduce["args"]["ranks"] == nlohmann::json{0, 1});
  CHECK(reduce["args"]["bytes"] == 4000);
  CHECK(reduce["args"]["bus GB/s"] == 4.0);  // 2 (p-1) / p = 1 of 2 ranks
}

TEST_CASE("every instruction of the profiled steps is in the trace of real ranks, once a step") {
  const PlannedJob job = plan_job(job_spec(
      "small",
      {"train.epochs=1", "launch.device=cpu", "launch.ranks=4",
       "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2, stage_config: {fc1: 0, act1: 0, out: 1}}"}));
  const std::vector<Program> programs = compile_all(job);
  std::vector<int64_t> bytes;
  for (const Program& program : programs) bytes.push_back(program.arena_bytes);
  const auto memory = SharedMemory::create(bytes, routes_of(programs));
  const ProfileSteps steps{2, 4};
  std::vector<std::unique_ptr<StepProfile>> recorders;
  for (const Program& program : programs) recorders.push_back(std::make_unique<StepProfile>(program, steps));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = make_shared_memory_communicator(memory, static_cast<int>(rank), 60);
      TrainOptions options;
      options.executor.timeline = recorders[rank].get();
      options.arena = memory->arena(static_cast<int>(rank));
      train(job, programs[rank], *comm, {}, options);
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::vector<RankProfile> profiles;
  for (const auto& recorder : recorders) {
    CHECK(recorder->complete());
    profiles.push_back(recorder->profile());
  }
  check_trace(trace_of(profiles), profiles, steps.count());
  const ProfileSummary summary = summarize(profiles);
  CHECK(to_string(summary.steps) == "2-4");
  for (const RankShares& shares : summary.ranks) {
    CHECK(shares.compute > 0);
    CHECK(shares.hidden_seconds == 0);  // one thread does one thing at a time
    CHECK(shares.compute + shares.exposed + shares.waiting + shares.idle == doctest::Approx(1));
  }
  CHECK(find_waiting(profiles).messages.size() == 3 * 2 * 2 * 2);  // steps, micro-batches, there and back, pairs
}

TEST_CASE("a launch that ran several instructions is one slice with all their names and all their work") {
  Program program = two_ranks(0);
  program.instructions.insert(program.instructions.begin() + 1, program.instructions[0]);
  program.instructions[1].name = "relu again";
  RankProfile profile{.program = &program};
  profile.spans = {span(0, 1000, 3000), span(1, 3000, 3000)};
  profile.spans[0].launched = 2;
  profile.spans[1].launched = 0;
  const nlohmann::json trace = trace_of(std::span(&profile, 1));
  std::vector<nlohmann::json> slices;
  for (const nlohmann::json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["args"].contains("instruction")) slices.push_back(event);
  REQUIRE(slices.size() == 1);
  CHECK(slices[0]["name"] == "relu, relu again");
  CHECK(slices[0]["args"]["bytes"] == 2 * 2 * 1000);
  std::stringstream text;
  write_trace(text, std::span(&profile, 1), "job");
  const std::vector<TimeSpan> read = read_trace(text);
  REQUIRE(read.size() == 1);
  CHECK(read[0].launched == 2);
  const ProfileSummary summary = summarize(std::span(&profile, 1));
  REQUIRE(summary.instructions.size() == 1);
  CHECK(summary.instructions[0].name == "relu, relu again");
  CHECK(summary.instructions[0].bytes == 2 * 2 * 1000);
}

TEST_CASE("--profile-steps is a range that counts from 1") {
  CHECK(parse_profile_steps("3-5").count() == 3);
  CHECK(parse_profile_steps("7").first == 7);
  CHECK(to_string(parse_profile_steps("7")) == "7");
  CHECK(to_string(parse_profile_steps("3-5")) == "3-5");
  for (const char* wrong : {"", "0", "5-3", "3-", "-3", "3-5-7", "x", "1-101", "3 - 5", "99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_profile_steps(wrong), SpecError);
  }
}
