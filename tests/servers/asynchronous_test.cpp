// Tests of asynchronous parameter servers: what pushes and pulls promise, whatever the workers' speeds.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <stdexcept>
#include <thread>

#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/servers/async_run.h"

using namespace trainctl;

namespace {

Overrides asynchronous(int workers, int servers, int staleness) {
  return {"launch.ranks=" + std::to_string(workers), "parallel.mode=parameter_server", "parallel.sync=false",
          "parallel.servers=" + std::to_string(servers), "parallel.staleness=" + std::to_string(staleness)};
}

PlannedJob planned(const std::string& name, const Overrides& overrides) { return plan_job(job_spec(name, overrides)); }

const char* const kMomentum = "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, weight_decay: 0.01}";
const char* const kClipped =
    "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, clip_norm: 0.3, groups: [{parameters: ['*.bias'], "
    "momentum: 0}, {parameters: [layer2.*], learning_rate_scale: 0.1}]}";
const char* const kCosine =
    "optimizer={type: adam, learning_rate: {type: cosine, base: 0.003, warmup_steps: 3, min: 0.0001}}";

/// A worker sleeps for random times of up to this.
void sleep_at_random(std::mt19937& random, int most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most_us)));
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

}  // namespace

TEST_CASE("one asynchronous worker has the losses and weights of one rank, for every optimizer and count of servers") {
  struct Job {
    const char* name;
    Overrides same;
  };
  const std::vector<Job> jobs = {{"mlp", {kMomentum}},
                                 {"mlp", {kClipped, "parallel.micro_batches=2"}},
                                 {"mlp", {kCosine}},
                                 {"classifier", {}},
                                 {"batch_norm", {}}};
  for (const Job& job : jobs) {
    CAPTURE(job.name);
    CAPTURE(join(job.same));
    const Overrides same = job.same + Overrides{"train={steps: 10}"};
    const RunResult reference = run_job(job.name, same);
    for (int servers = 1; servers <= 3; ++servers) {
      CAPTURE(servers);
      const AsyncRun run = run_async(planned(job.name, same + asynchronous(1, servers, 4)));
      REQUIRE(run.losses.size() == reference.losses.size());
      for (const auto& [batch, loss] : run.losses)
        CHECK(loss == doctest::Approx(reference.losses[static_cast<size_t>(batch)]).epsilon(1e-5));
      for (const auto& [name, values] : run.weights) {
        const std::vector<float>& expected = reference.weights.at(name);
        for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(values[i] - expected[i]) <= 1e-5 * largest(expected));
      }
      for (const std::vector<int64_t>& of_server : run.staleness) CHECK(of_server == std::vector<int64_t>(10, 0));
    }
  }
}

TEST_CASE("a staleness of 0 compiles to the synchronous programs") {
  const PlannedJob zero = planned("mlp", asynchronous(3, 2, 0));
  const PlannedJob sync = planned("mlp", asynchronous(3, 2, 0) + Overrides{"parallel.sync=true"});
  CHECK_FALSE(zero.plan.is_asynchronous());
  const std::vector<Program> a = compile_all(zero), b = compile_all(sync);
  REQUIRE(a.size() == b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) CHECK(to_string(a[rank]) == to_string(b[rank]));
}

TEST_CASE("each batch updates each server once, versions rise by one, and no update is older than staleness allows") {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const int workers = 2 + static_cast<int>(seed % 4), servers = 1 + static_cast<int>(seed % 3);
    const int staleness = 1 + static_cast<int>(seed % 4) * 2;
    CAPTURE(seed);
    CAPTURE(workers);
    CAPTURE(staleness);
    std::vector<std::mt19937> random;
    for (int w = 0; w < workers; ++w) random.emplace_back(seed * 31 + static_cast<unsigned>(w));
    AsyncOptions options;
    options.on_step = [&](int worker, const StepReport&, Executor&) {
      if (random[static_cast<size_t>(worker)]() % 4 == 0) sleep_at_random(random[static_cast<size_t>(worker)], 3000);
    };
    Overrides job = asynchronous(workers, servers, staleness) + Overrides{"train={steps: 60}"};
    if (seed % 2 == 1) job.push_back("parallel.rebalance=true");
    const AsyncRun run = run_async(planned("mlp", job), options);
    CHECK(run.losses.size() == 60);
    for (const std::vector<int64_t>& of_server : run.staleness) {
      CHECK(of_server.size() == 60);
      // A batch of round r starts once all batches of round r - s - 1 are applied, and while it runs other workers may
      // reach round r + s.
      for (const int64_t s : of_server) CHECK(s <= (2 * staleness + 1) * workers - 1);
    }
    int64_t counted = 0;
    for (int s = 0; s <= BatchBoard::kMostStaleness; ++s) counted += run.memory->batches().updates_of_staleness(s);
    CHECK(counted == 60 * servers);
  }
}

TEST_CASE("a worker that never comes back holds the others within the staleness") {
  constexpr int kWorkers = 3, kStaleness = 2;
  std::atomic<int64_t> others{0}, at_release{-1};
  AsyncOptions options;
  options.on_step = [&](int worker, const StepReport&, Executor&) {
    if (worker != 0) {
      ++others;
      return;
    }
    if (at_release >= 0) return;
    // Worker 0 has run batch 0, and the next one of its share is 3, in round 1.
    while (others <= 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the time to go too far
    at_release = others.load();
  };
  const AsyncRun run =
      run_async(planned("mlp", asynchronous(kWorkers, 1, kStaleness) + Overrides{"train={steps: 60}"}), options);
  CHECK(run.losses.size() == 60);
  // The two other workers have run the rounds 0 to 1 + kStaleness.
  CHECK(at_release <= 2 * (2 + kStaleness));
  CHECK(at_release > 2);
}

TEST_CASE("a pull has each server's range between two updates, never half of one") {
  // Every element of the weight gets the same gradient in each step, so all are equal between two updates.
  const Overrides job = {
      "dataset={type: constant, shape: [64], value: 1, label_value: 1000000, label_dtype: f32, batch: 4, samples: 16}",
      "network=[{name: fc, type: dense, units: 96, bias: false, init: zeros}, {name: sum, type: dense, "
      "units: 1, bias: false, init: ones}]",
      "loss=mae", "optimizer={type: sgd, learning_rate: 0.01}", "train={steps: 80}"};
  std::vector<Program> programs;
  std::atomic<int> torn{0}, looked{0};
  std::vector<std::mt19937> random{std::mt19937(1), std::mt19937(2), std::mt19937(3), std::mt19937(4)};
  AsyncOptions options;
  options.on_step = [&](int worker, const StepReport&, Executor& executor) {
    const Program& program = programs[static_cast<size_t>(worker)];
    for (const Bucket& b : program.buckets) {
      std::vector<float> weights(static_cast<size_t>(b.elements));
      executor.read(b.weights_offset, weights.data(), b.elements * 4);
      const size_t parts = b.elements >= 64 * 96 ? 2 : 1, part = weights.size() / parts;
      for (size_t p = 0; p < parts && parts == 2; ++p)
        for (size_t i = p * part; i < (p + 1) * part; ++i) torn += weights[i] != weights[p * part] ? 1 : 0;
      looked += parts == 2 ? 1 : 0;
    }
    sleep_at_random(random[static_cast<size_t>(worker)], 500);
  };
  PlannedJob planned_job = planned("mlp", job + asynchronous(4, 2, 3));
  programs = compile_all(planned_job);
  const AsyncRun run = run_async(std::move(planned_job), options);
  CHECK(looked == 80);
  CHECK(torn == 0);
  CHECK(run.weights.at("fc.weight").front() != 0);
}

TEST_CASE("workers that die leave their batches to the others, and each batch still counts once on each server") {
  for (unsigned seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    AsyncOptions options;
    options.on_step = [&](int worker, const StepReport& report, Executor&) {
      if (worker == 1 && report.own_step == 2 + seed) throw std::runtime_error("killed");
      if (worker == 3 && report.own_step == 1 + seed % 3) throw std::runtime_error("killed");
    };
    Overrides job = asynchronous(4, 2, 2) + Overrides{"train={steps: 50}"};
    if (seed % 2 == 1) job.push_back("parallel.rebalance=true");
    const AsyncRun run = run_async(planned("mlp", job), options);
    for (const std::vector<int64_t>& of_server : run.staleness) CHECK(of_server.size() == 50);
    CHECK(run.losses.size() == 50);
  }
}

TEST_CASE("with rebalance a slow worker runs fewer batches, and without it its share") {
  for (const bool rebalance : {false, true}) {
    CAPTURE(rebalance);
    AsyncOptions options;
    std::atomic<int> of_others{0};
    options.on_step = [&](int worker, const StepReport&, Executor&) {
      if (worker != 2) {
        ++of_others;
        return;
      }
      // Slow: the others run four batches during each of its own, unless they have run out of them.
      const int begin = of_others;
      const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(rebalance ? 2000 : 20);
      while (of_others < begin + 4 && std::chrono::steady_clock::now() < patience)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    const AsyncRun run =
        run_async(planned("mlp", asynchronous(3, 1, 4) +
                                     Overrides{"train={steps: 60}", "dataset.prefetch=1",
                                               std::string("parallel.rebalance=") + (rebalance ? "true" : "false")}),
                  options);
    const int64_t slow = run.memory->batches().finished_by(2);
    if (rebalance)
      CHECK(slow < 15);
    else
      CHECK(slow == 20);
  }
}

TEST_CASE("worker 0 validates beside the others' steps, and at the end with the weights after the last update") {
  const Overrides validated = {"validation={dataset: {samples: 103}}", "train={epochs: 5}"};
  const AsyncRun one = run_async(planned("classifier", asynchronous(1, 2, 4) + validated));
  const RunResult reference = run_job("classifier", validated);
  REQUIRE(one.validations.size() == reference.validations.size());
  for (size_t v = 0; v < one.validations.size(); ++v)
    for (size_t i = 0; i < one.validations[v].values.size(); ++i)
      CHECK(one.validations[v].values[i].second ==
            doctest::Approx(reference.validations[v].values[i].second).epsilon(1e-4));
  const AsyncRun many = run_async(planned("classifier", asynchronous(3, 2, 4) + validated));
  REQUIRE(!many.validations.empty());
  CHECK(many.validations.back().run_step == 20);
  CHECK(many.validations.back().samples == 103);
}

TEST_CASE("train.stop_when ends an asynchronous run once the batches that had started are run, on every server alike") {
  // A network that is not trained gets no better, so the rule holds at the third validation.
  const Overrides rule = {"validation={dataset: {samples: 64}, every_steps: 8}",
                          "train={epochs: 50, stop_when: {metric: loss, patience: 2}}",
                          "optimizer={type: sgd, learning_rate: 1.0e-30}"};
  for (int workers : {1, 3}) {
    CAPTURE(workers);
    const AsyncRun run = run_async(planned("classifier", rule + asynchronous(workers, 2, 2)));
    const auto last = static_cast<int64_t>(run.memory->gate().highest());
    CHECK(last < 200);
    CHECK(last >= 24);
    CHECK(static_cast<int64_t>(run.losses.size()) == last);
    CHECK(run.losses.rbegin()->first == last - 1);
    for (const std::vector<int64_t>& of_server : run.staleness) CHECK(static_cast<int64_t>(of_server.size()) == last);
    for (const TrainResult& result : run.results) {
      CHECK(result.stopped);
      CHECK(result.last_step == last);
    }
    CHECK(run.results[0].reason.find("train.stop_when.patience") != std::string::npos);
    for (size_t other = 1; other < run.results.size(); ++other) {
      CHECK(run.results[other].reason.empty());
    }
  }
}

TEST_CASE("a push of which any message is missing changes nothing, and a whole one changes all ranges") {
  const PlannedJob job = planned("mlp", Overrides{kClipped, "train={steps: 10}"} + asynchronous(1, 1, 4));
  const Program worker = compile(job, 0), program = compile(job, 1);
  std::vector<const Instruction*> pulls, pushes;
  for (const Instruction& i : worker.instructions) {
    if (i.opcode == Opcode::recv) pulls.push_back(&i);
    if (i.opcode == Opcode::send) pushes.push_back(&i);
  }
  REQUIRE(pushes.size() >= 4);
  const size_t messages = pushes.size() + 1;  // and the report
  for (size_t sent = 0; sent <= messages; ++sent) {
    CAPTURE(sent);
    const auto memory = SharedMemory::create({worker.arena_bytes, server_arena_bytes(job, program)}, {{0, 1}, {1, 0}});
    prepare_batches(job, 0, *memory);
    const auto comm = make_shared_memory_communicator(memory, 0, 10, 1);
    const auto of_server = make_shared_memory_communicator(memory, 1, 10, 1);
    ServerOptions options;
    options.arena = memory->arena(1);
    ServerObserver unobserved;
    AsyncServer server(job, program, *memory, *of_server, unobserved, nullptr, options);
    const std::vector<Program> programs = {program};
    const auto before = gather_weights(programs, {&server.executor()});
    std::thread serving([&] { server.run(); });
    const servers::Request request{.ask = servers::Ask::train};
    comm->send(1, &request, sizeof(request));
    for (const Instruction* pull : pulls)
      comm->recv(1, memory->arena(0).data() + pull->outputs[0].offset, pull->outputs[0].bytes());
    for (size_t m = 0; m < std::min(sent, pushes.size()); ++m) {
      const Operand& gradient = pushes[m]->inputs[0];
      auto* values = reinterpret_cast<float*>(memory->arena(0).data() + gradient.offset);
      std::fill_n(values, gradient.bytes() / 4, 0.5f);
      comm->send(1, values, gradient.bytes());
    }
    const servers::Report report;
    if (sent == messages) comm->send(1, &report, sizeof(report));
    memory->status(0).state = RankState::failed;
    serving.join();
    const auto after = gather_weights(programs, {&server.executor()});
    CHECK(server.updates() == (sent == messages ? 1 : 0));
    for (const auto& [name, values] : before) CHECK((after.at(name) == values) == (sent < messages));
  }
}
