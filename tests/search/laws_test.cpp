// Tests of laws that hold for a search and its predictions, whatever the job.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>

#include "engine/base/error.h"
#include "engine/machine/machine.h"
#include "engine/planning/compile_job.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"
#include "tests/search/drawn_jobs.h"
#include "tests/search/llama_jobs.h"

using namespace trainctl;

namespace {

double best_seconds(const std::string& text, std::vector<std::string> settings, const Machine& machine) {
  const MachineFile file(machine);
  settings.push_back(file.setting());
  settings.emplace_back("parallel.mode=auto_parallel");
  return planned(text, settings).search->best().trial.seconds;
}

Machine small_host() {
  Machine machine = *find_machine("h100x8");
  machine.devices = 2;
  machine.links[0].devices = 2;
  return machine;
}

}  // namespace

TEST_CASE("laws: more bandwidth or faster kernels never cost time") {
  const std::vector<std::string> settings = {"launch.ranks=4"};
  std::mt19937 random(13);
  for (int round = 0; round < 6; ++round) {
    const std::string text = round < 1 ? gpt(3, 256) : drawn_network(random);
    CAPTURE(text);
    const double before = best_seconds(text, settings, small_host());
    for (const int better : {0, 1, 2, 3, 4}) {
      CAPTURE(better);
      Machine machine = small_host();
      if (better == 0) machine.links[0].bandwidth = 2 * machine.links[0].bandwidth;
      if (better == 1) machine.links[1].bandwidth = 2 * machine.links[1].bandwidth;
      if (better == 2) machine.memory_rate = 2 * machine.memory_rate;
      if (better == 3) machine.products.fp32 = 2 * machine.products.fp32;
      if (better == 4) machine.links[0].latency = machine.links[1].latency = {};
      CHECK(best_seconds(text, settings, machine) <= before * kSlack);
    }
  }
}

TEST_CASE("laws: more memory never costs time") {
  const std::vector<std::string> free = {"launch.ranks=8", "parallel.mode=auto_parallel", "launch.machine=h100x8"};
  const std::string text = gpt(4, 128);
  const int64_t memory = planned(text, free).search->best().trial.memory;
  double before = 0;
  for (const int percent : {120, 100, 90, 80, 70, 60}) {
    std::vector<std::string> settings = free;
    settings.push_back("parallel.max_memory=" + std::to_string(memory * percent / 100));
    try {
      const double seconds = planned(text, settings).search->best().trial.seconds;
      CHECK(seconds >= before / kSlack);
      before = std::max(before, seconds);
    } catch (const SpecError& error) {
      CHECK(std::string(error.what()).find("no plan fits") != std::string::npos);
      break;
    }
  }
}

TEST_CASE("laws: hosts are distinguished by their properties and not by their numbers") {
  // The same ranks of a pipeline or group on other hosts: a step of ranks 0-3 on hosts of 2 is that of any two hosts,
  // and a machine with its levels named otherwise gives the same bytes.
  Machine renamed = small_host();
  renamed.links[0].name = "a";
  renamed.links[1].name = "b";
  for (const int ranks : {2, 4}) {
    const std::vector<std::string> settings = {"launch.ranks=" + std::to_string(ranks)};
    CHECK(best_seconds(gpt(2, 128), settings, small_host()) == best_seconds(gpt(2, 128), settings, renamed));
  }
  const std::vector<int> first = {0, 1, 2, 3}, other = {4, 5, 6, 7}, swapped = {2, 3, 0, 1};
  for (const Collective kind : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter}) {
    const double seconds = collective_time(renamed, kind, {1e6}, spread_of(renamed, first)).value;
    CHECK(seconds == collective_time(renamed, kind, {1e6}, spread_of(renamed, other)).value);
    CHECK(seconds == collective_time(renamed, kind, {1e6}, spread_of(renamed, swapped)).value);
  }
}

TEST_CASE("laws: a constraint never helps") {
  const std::vector<std::string> constraints = {"parallel.stages=2",
                                                "parallel.micro_batches=2",
                                                "parallel.optimizer_shard.level=0",
                                                "parallel.optimizer_shard.level=2",
                                                "parallel.recompute=[]",
                                                "parallel.schedule=gpipe"};
  std::mt19937 random(17);
  for (int round = 0; round < 6; ++round) {
    const std::string text = round < 1 ? gpt(3, 192) : drawn_network(random);
    const std::vector<std::string> free = {"launch.ranks=4", "parallel.mode=auto_parallel",
                                           round % 2 == 0 ? "launch.machine=h100x8" : "launch.machine=cpu"};
    const double best = planned(text, free).search->best().trial.seconds;
    for (const std::string& constraint : constraints) {
      CAPTURE(text);
      CAPTURE(constraint);
      std::vector<std::string> settings = free;
      settings.push_back(constraint);
      try {
        CHECK(planned(text, settings).search->best().trial.seconds >= best / kSlack);
      } catch (const SpecError&) {  // a batch that does not divide
      }
    }
  }
}

TEST_CASE("laws: planning and simulating a tried plan again gives the time and memory of its trial, within 1 %") {
  for (const char* machine : {"h100x8", "cpu"}) {
    std::vector<std::string> settings = {"launch.ranks=8", "parallel.mode=auto_parallel",
                                         std::string("launch.machine=") + machine};
    const std::string text = gpt(10, 64);
    const PlannedJob job = planned(text, settings);
    settings[1] = "parallel.mode=semi_auto_parallel";
    int compared = 0;
    for (const TriedPlan& plan : job.search->tried) {
      if (!plan.trial.fault.empty()) continue;
      CAPTURE(plan.name);
      const PlannedJob anew = plan_job(with_choice(parse_job(text, "job.yaml", settings), plan.choice));
      CHECK(simulated_seconds(anew) == doctest::Approx(plan.trial.seconds).epsilon(0.01));
      CHECK(static_cast<double>(most_memory(anew)) ==
            doctest::Approx(static_cast<double>(plan.trial.memory)).epsilon(0.01));
      ++compared;
    }
    CHECK(compared >= 6);
    CHECK(job.search->best().trial.in_full);
  }
}

TEST_CASE("laws: a hundred searches of a job give the same bytes") {
  const std::vector<std::string> settings = {"launch.ranks=4", "parallel.mode=auto_parallel", "launch.machine=h100x8"};
  std::mt19937 random(3);
  const std::string text = drawn_network(random);
  std::string first;
  for (int round = 0; round < 100; ++round) {
    const PlannedJob job = planned(text, settings);
    std::string bytes = to_yaml(job.spec);
    for (const TriedPlan& plan : job.search->tried)
      bytes += plan.name + std::to_string(plan.trial.seconds) + std::to_string(plan.trial.memory);
    if (round == 0) first = bytes;
    REQUIRE(bytes == first);
  }
}

TEST_CASE("laws: a written job gives the programs of the search that found it") {
  for (const char* name : {"mlp", "lenet", "convnet", "gpt", "llama", "resnet", "norms", "attention"}) {
    CAPTURE(name);
    const PlannedJob job = plan_job(job_spec(name, {"launch.ranks=4", "parallel={mode: auto_parallel}"}));
    REQUIRE(job.search);
    const PlannedJob again = plan_job(parse_job(to_yaml(job.spec), job.spec.file));
    CHECK(!again.search);
    const std::vector<Program> programs = compile_all(job), others = compile_all(again);
    REQUIRE(programs.size() == others.size());
    for (size_t r = 0; r < programs.size(); ++r) CHECK(to_string(programs[r]) == to_string(others[r]));
  }
}
