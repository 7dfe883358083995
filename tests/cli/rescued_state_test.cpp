// Tests of launch.elastic: the state that ranks keep in memory, and how the launcher takes it from the hosts that are
// left.
#include "cli/run/saves/rescued_state.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "cli/run/launch/lost_hosts.h"
#include "cli/run/saves/host_snapshots.h"
#include "cli/run/saves/saver.h"
#include "cli/run/saves/state_snapshots.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"

using namespace trainctl;

namespace {

PlannedJob job_of(const std::string& parallel, const std::string& launch) {
  return plan_job(
      parse_job("name: rescued\n"
                "dataset: {type: random, shape: [8], label_dtype: f32, batch: 16, samples: 64}\n"
                "network: [{name: fc1, type: dense, units: 12}, {name: fc2, type: dense, units: 1}]\n"
                "loss: mse\n"
                "optimizer: {type: adam, learning_rate: 0.1}\n"
                "train: {steps: 20, checkpoint: auto}\n"
                "parallel: " +
                    parallel + "\nlaunch: " + launch + "\n",
                "job.yaml"));
}

const char* const kData = "{mode: data_parallel}";
const char* const kTwoHosts = "{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 2, device: cpu}";

/// An arena all of whose bytes state the next step. After `fails` reads the rank dies.
class Arena : public Executor {
 public:
  explicit Arena(const Program& program) : bytes_(static_cast<size_t>(program.arena_bytes)) {}
  void set(int64_t step) { std::fill(bytes_.begin(), bytes_.end(), static_cast<std::byte>(step)); }
  int fails = -1;

  void read(int64_t offset, void* to, int64_t bytes) override {
    if (fails == 0) throw std::runtime_error("killed");
    if (fails > 0) --fails;
    std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(bytes));
  }
  const InputLayout& inputs() const override { throw std::logic_error("not for this test"); }
  void start_step(const std::byte*, const StepScalars&) override {}
  float finish_step(std::span<float>) override { return 0; }
  int max_in_flight() const override { return 1; }
  std::unique_ptr<Executor> beside(const Program&, const ExecutorOptions&) override { return nullptr; }
  HostBlock allocate_inputs(int64_t) override { throw std::logic_error("not for this test"); }
  void write(int64_t, const void*, int64_t) override {}
  void prepare_copy(const std::vector<StateCopy>&, std::byte*) override {}
  void begin_copy() override {}
  bool is_copied(bool) override { return true; }

 private:
  std::vector<std::byte> bytes_;
};

/// A rank that keeps its state in the memory of a host.
struct Rank {
  Rank(const PlannedJob& job, int number, const HostSnapshots& host)
      : program(compile(job, number)), arena(program), holder(program, dup(host.memory(number)), {}) {}
  /// Copies the states before all steps up to this one.
  void reaches(int64_t last) {
    for (int64_t step = 0; step <= last; ++step) starts(step);
  }
  void starts(int64_t step) {
    TrainPosition position;
    position.step = step;
    position.epoch.loss = static_cast<double>(step);
    if (step > 0) holder.on_position(position);
    arena.set(step);
    holder.before_step(step, arena);
  }

  const Program program;
  Arena arena;
  SnapshotWriter holder;
};

/// Passes messages both ways until neither side has any.
void talk(RescuedState& launcher, const std::vector<std::pair<HostSnapshots*, std::vector<int>>>& hosts) {
  for (bool spoke = true; spoke;) {
    spoke = false;
    for (const hosts::SaveMessage& message : launcher.messages()) {
      for (const auto& [host, ranks] : hosts) CHECK(host->take(message));
      spoke = true;
    }
    for (const auto& [host, ranks] : hosts)
      while (const auto message = host->next()) {
        CHECK(RescuedState::knows(*message));
        CHECK(launcher.take(*message, ranks));
        spoke = true;
      }
  }
}

/// Checks that all data of the images belong to the state before this step, and that there are `bytes` of them.
void check_state(const RescuedState& rescued, int64_t step, int64_t bytes) {
  int64_t found = 0;
  for (const auto& image : rescued.images(4)) {
    if (image.empty()) continue;
    const std::span<const uint8_t> all(reinterpret_cast<const uint8_t*>(image.data()), image.size());
    const SafetensorsHeader header = parse_safetensors_header(all, static_cast<int64_t>(all.size()), "an image");
    for (size_t at = static_cast<size_t>(header.data_at); at < all.size(); ++at) REQUIRE(all[at] == step);
    found += header.data_bytes();
  }
  CHECK(found == bytes);
}

constexpr int64_t kStateBytes = 3 * 4 * (8 * 12 + 12 + 12 + 1);  // weights and two states of adam

}  // namespace

TEST_CASE("rescued state: if one host has a full replica, the newest step that all of its ranks have is recovered") {
  const PlannedJob job = job_of(kData, kTwoHosts);
  HostSnapshots b({2, 3});
  Rank two(job, 2, b), three(job, 3, b);
  two.reaches(7);
  three.reaches(6);  // it was still at the end of the step before
  RescuedState rescued(job);
  rescued.begin({{2, 3}});
  CHECK(rescued.waits().has_value());
  talk(rescued, {{&b, {2, 3}}});
  CHECK(rescued.why() == "");
  REQUIRE(rescued.is_complete());
  CHECK_FALSE(rescued.waits().has_value());
  CHECK(rescued.step() == 6);
  CHECK(rescued.position().loss_sum == 6);
  check_state(rescued, 6, kStateBytes);
}

TEST_CASE("rescued state: a rank that dies while it copies still has the previous state") {
  const PlannedJob job = job_of(kData, kTwoHosts);
  HostSnapshots b({2, 3});
  Rank two(job, 2, b), three(job, 3, b);
  two.reaches(7);
  three.reaches(6);
  three.arena.fails = 1;
  CHECK_THROWS(three.starts(7));
  CHECK(StateSnapshots(b.memory(3)).steps() == std::vector<int64_t>{6});
  RescuedState rescued(job);
  rescued.begin({{2, 3}});
  talk(rescued, {{&b, {2, 3}}});
  REQUIRE(rescued.is_complete());
  CHECK(rescued.step() == 6);
  check_state(rescued, 6, kStateBytes);
}

TEST_CASE("rescued state: without a step that all ranks have, nothing is recovered") {
  const PlannedJob job = job_of(kData, kTwoHosts);
  HostSnapshots b({2, 3});
  Rank two(job, 2, b), three(job, 3, b);
  two.reaches(7);
  three.reaches(4);
  RescuedState rescued(job);
  rescued.begin({{2, 3}});
  talk(rescued, {{&b, {2, 3}}});
  CHECK_FALSE(rescued.is_complete());
  CHECK(rescued.why() == "the ranks have no step in common");
  CHECK_FALSE(rescued.waits().has_value());
}

TEST_CASE("rescued state: shards of the optimizer that the lost host had are missing, and named") {
  const PlannedJob job = job_of("{mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}}", kTwoHosts);
  HostSnapshots b({2, 3});
  Rank two(job, 2, b), three(job, 3, b);
  two.reaches(3);
  three.reaches(3);
  RescuedState rescued(job);
  rescued.begin({{2, 3}});
  talk(rescued, {{&b, {2, 3}}});
  CHECK_FALSE(rescued.is_complete());
  CHECK(rescued.why().starts_with("no remaining rank has fc1."));
}

TEST_CASE("rescued state: all hosts together have shards once, whichever they are") {
  const PlannedJob job = job_of("{mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}", kTwoHosts);
  HostSnapshots a({0, 1}), b({2, 3});
  Rank zero(job, 0, a), one(job, 1, a), two(job, 2, b), three(job, 3, b);
  for (Rank* rank : {&zero, &one, &two, &three}) rank->reaches(5);
  RescuedState rescued(job);
  rescued.begin({{0, 1}, {2, 3}});
  talk(rescued, {{&a, {0, 1}}, {&b, {2, 3}}});
  REQUIRE(rescued.is_complete());
  check_state(rescued, 5, kStateBytes);
}

TEST_CASE("rescued state: an invalid message of a host is refused") {
  const PlannedJob job = job_of(kData, kTwoHosts);
  RescuedState rescued(job);
  CHECK_FALSE(rescued.take({.name = "snapshot", .rank = 2, .number = 1}, {2, 3}));  // it was not asked
  rescued.begin({{2, 3}});
  CHECK_FALSE(rescued.take({.name = "snapshot", .rank = 1, .number = 1}, {2, 3}));
  CHECK_FALSE(rescued.take({.name = "snapshot", .rank = 2, .number = -1}, {2, 3}));
  CHECK_FALSE(rescued.take({.name = "head", .rank = 2, .number = 10, .text = "no head"}, {2, 3}));
  CHECK_FALSE(rescued.take({.name = "offered", .rank = 3}, {2, 3}));  // not the host's first
  CHECK_FALSE(rescued.take({.name = "snapshot_part", .rank = 2, .number = 0, .text = "x"}, {2, 3}));
  CHECK_FALSE(rescued.take({.name = "snapshot_end", .rank = 2}, {2, 3}));
}

TEST_CASE("saves: if steps wait for them, the step after a save counts once the launcher has the save") {
  const PlannedJob job = job_of("{mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}}", kTwoHosts);
  for (const bool awaits : {false, true}) {
    const auto memory = SharedMemory::create(std::vector<int64_t>(4, 0));
    const Program program = compile(job, 0);
    Arena arena(program);
    Saver saver(job, program, *memory, memfd_create("test", MFD_CLOEXEC), {});
    std::atomic<int64_t> counted = 0;
    SaveBoard& board = memory->saves();
    board.decide_elsewhere(awaits);
    board.decided(1, true);
    saver.before_step(0, arena);
    TrainPosition position;
    position.step = 1;
    saver.on_position(position);
    saver.before_step(1, arena);
    CHECK(memory->status(0).copied == 2);  // it is on the way while the step runs
    CHECK(board.is_reported(1));
    StepReport report;
    report.run_step = 2;
    std::thread rank([&] {
      saver.on_step(report);
      counted = report.run_step;
    });
    if (awaits) {  // give it the time to count the step wrongly
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      CHECK(counted == 0);
    } else {
      while (counted == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    board.finished(true);
    board.decided(2, true);  // at once: a rank of another host is at the next save
    rank.join();
    CHECK(counted == 2);
  }
}

TEST_CASE("plan: which lost hosts the memory of the others can replace, and the bytes that move") {
  const auto replicas = lost_hosts_report(job_of(kData, kTwoHosts));
  REQUIRE(replicas.size() == 2);
  CHECK(replicas[0]["host"] == "a");
  CHECK(replicas[0]["covered"] == true);
  CHECK(replicas[0]["bytes"] == 2 * kStateBytes);
  const auto shards =
      lost_hosts_report(job_of("{mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0}}", kTwoHosts));
  CHECK(shards[1]["covered"] == false);
  CHECK(shards[1]["missing"].get<std::string>().starts_with("fc"));
  const auto stages = lost_hosts_report(job_of("{mode: semi_auto_parallel, stages: 2}", kTwoHosts));
  CHECK(stages[0]["missing"] == "fc1.bias:m");
  const auto within = lost_hosts_report(
      job_of("{mode: data_parallel, optimizer_shard: {level: 2, min_kb: 0, within_host: true}}", kTwoHosts));
  CHECK(within[0]["covered"] == true);
  CHECK(within[1]["covered"] == true);
  CHECK(lost_hosts_report(job_of(kData, "{ranks: 4, hosts: ['a:2', 'b:2'], device: cpu}")).is_null());
  CHECK(is_each_lost_host_covered(job_of(kData, kTwoHosts)));
  CHECK_FALSE(is_each_lost_host_covered(job_of("{mode: semi_auto_parallel, stages: 2}", kTwoHosts)));
}
