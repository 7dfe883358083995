// Parameter servers as processes: roles, logs, checkpoints, and workers and servers that die.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

const std::vector<std::string> kServed = {"launch.ranks=2", "parallel.mode=parameter_server", "parallel.servers=2"};

std::vector<std::string> operator+(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The first cause of a run of 2 workers and 2 servers in which this process is killed while it trains.
CommandResult killed(const Scratch& scratch, int rank, bool& left) {
  small_job(scratch.path());
  const int launcher =
      start_trainctl(scratch.path(), std::vector<std::string>{"run", "job.yaml"} + kServed +
                                         std::vector<std::string>{"train.epochs=100000000", "launch.grace=5s"});
  for (const char* folder : {"rank.0", "rank.1", "server.0", "server.1"}) {
    const std::string out = scratch.path() + "/log_output/1/" + folder + "/stdout";
    REQUIRE(eventually([&] { return contains(slurp(out), "step: 2,"); }));
  }
  const std::vector<int> pids = workers_of(launcher, 4);
  REQUIRE(pids[static_cast<size_t>(rank)] > 0);
  kill(pids[static_cast<size_t>(rank)], SIGKILL);
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  left = !eventually([&] { return std::none_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }); });
  return result;
}

}  // namespace

TEST_CASE("a run with parameter servers has the losses of data_parallel and logs of each role") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::vector<std::string> run = {"run", "job.yaml", "train.steps=5"};
  const CommandResult served = trainctl_command(scratch.path(), run + kServed + std::vector<std::string>{"--record"});
  INFO(served.err);
  REQUIRE(served.exit_code == kExitDone);
  CHECK(contains(served.out, "2 workers and 2 servers"));
  const RunDirectory directory(scratch.path() + "/log_output", 1);
  CHECK(directory.names().workers == 2);
  CHECK(directory.ranks() == std::vector<int>{0, 1, 2, 3});
  CHECK(contains(slurp(directory.file("server.1/stdout")), "epoch: 1 step: 5, loss is "));
  CHECK(contains(slurp(directory.file("server.0/collectives.jsonl")), "\"recv grad.bucket"));
  CHECK(slurp(directory.file("rank.1/stdout")) == slurp(directory.file("server.1/stdout")));

  const CommandResult plain =
      trainctl_command(scratch.path(), run + std::vector<std::string>{"launch.ranks=2", "parallel.mode=data_parallel"});
  REQUIRE(plain.exit_code == kExitDone);
  CHECK(slurp(scratch.path() + "/log_output/2/rank.0/stdout") == slurp(directory.file("rank.0/stdout")));

  const CommandResult logs = trainctl_command(scratch.path(), {"logs", "1", "--rank", "1,3", "--tail", "1"});
  CHECK(contains(logs.out, "rank 1 | "));
  CHECK(contains(logs.out, "server 1 | "));
}

TEST_CASE("the plan says which server holds which range and what each rank pushes and pulls") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result =
      trainctl_command(scratch.path(), std::vector<std::string>{"plan", "job.yaml", "--json"} + kServed);
  REQUIRE(result.exit_code == kExitDone);
  const auto plan = nlohmann::json::parse(result.out, nullptr, false);
  REQUIRE(plan.is_object());
  int64_t stored = 0, received = 0, sent = 0;
  for (const auto& server : plan["servers"]) {
    int64_t ranges = 0;
    for (const auto& range : server["holds"]) ranges += range["elements"].get<int64_t>();
    CHECK(ranges == server["parameters"].get<int64_t>());
    stored += ranges;
    received += server["received"].get<int64_t>();
    sent += server["sent"].get<int64_t>();
  }
  CHECK(stored == plan["parameters"].get<int64_t>());
  REQUIRE(plan["traffic"].size() == 1);
  CHECK(2 * plan["traffic"][0]["pushed"].get<int64_t>() == received);
  CHECK(2 * plan["traffic"][0]["pulled"].get<int64_t>() == sent);
  const CommandResult text = trainctl_command(scratch.path(), std::vector<std::string>{"plan", "job.yaml"} + kServed);
  CHECK(contains(text.out, "2 workers and 2 servers"));
  CHECK(contains(text.out, "received per step"));
}

TEST_CASE("workers in step report the loads of experts, whether servers own all weights or tables alone") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << job_text("moe");
  const auto loads = [&](const std::vector<std::string>& plan) {
    const CommandResult result = trainctl_command(
        scratch.path(), std::vector<std::string>{"run", "job.yaml", "train.steps=2", "launch.log_dir=logs"} + plan);
    INFO(result.err);
    REQUIRE(result.exit_code == kExitDone);
    std::vector<nlohmann::json> found;
    std::istringstream lines(slurp(scratch.path() + "/logs/1/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const auto json = nlohmann::json::parse(line); json.value("kind", "") == "loads") found.push_back(json);
    std::filesystem::remove_all(scratch.path() + "/logs");
    REQUIRE(found.size() == 1);
    return found[0];
  };
  const nlohmann::json one = loads({"launch.ranks=1"});
  CHECK(one["max_load"].get<double>() > 1);
  for (const std::vector<std::string>& plan :
       {kServed, kServed + std::vector<std::string>{"parallel.tables=[table]"}}) {
    const nlohmann::json served = loads(plan);
    CHECK(served["max_load"] == one["max_load"]);
    CHECK(served["min_load"] == one["min_load"]);
    CHECK(served["entropy"].get<double>() == doctest::Approx(one["entropy"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("asynchronous workers train experts, and report no loads, which no two of them share") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << job_text("moe");
  const CommandResult result =
      trainctl_command(scratch.path(), std::vector<std::string>{"run", "job.yaml", "train.steps=8"} + kServed +
                                           std::vector<std::string>{"parallel.sync=false"});
  INFO(result.err);
  CHECK(result.exit_code == kExitDone);
  CHECK_FALSE(contains(slurp(scratch.path() + "/log_output/1/metrics.jsonl"), "max_load"));
}

TEST_CASE("a worker that is killed ends a run with parameter servers and is its first cause") {
  const Scratch scratch;
  bool left = true;
  const CommandResult result = killed(scratch, 1, left);
  INFO(result.err);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  CHECK(contains(result.err, "was killed by SIGKILL"));
  CHECK(contains(result.err, "rank 0 and servers 0, 1 stopped as a consequence"));
  CHECK_FALSE(left);
}

TEST_CASE("a server that is killed ends a run with parameter servers and is its first cause") {
  const Scratch scratch;
  bool left = true;
  const CommandResult result = killed(scratch, 3, left);
  INFO(result.err);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "server 1 ("));
  CHECK(contains(result.err, "was killed by SIGKILL"));
  CHECK(contains(result.err, "ranks 0, 1 and server 0 stopped as a consequence"));
  CHECK(contains(result.err, "log_output/1/server.1/stderr"));
  CHECK_FALSE(left);
}

TEST_CASE("a run with parameter servers is saved by its servers and continues under data_parallel") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult saved = trainctl_command(
      scratch.path(), std::vector<std::string>{"run", "job.yaml", "train.steps=4", "train.checkpoint=auto"} + kServed);
  INFO(saved.err);
  REQUIRE(saved.exit_code == kExitDone);
  CHECK(contains(saved.out, "checkpoint of step 4"));
  const CommandResult resumed = trainctl_command(scratch.path(), {"run", "job.yaml", "train.steps=6", "--resume",
                                                                  "launch.ranks=2", "parallel.mode=data_parallel"});
  INFO(resumed.err);
  CHECK(resumed.exit_code == kExitDone);
  CHECK(contains(resumed.out, "resuming after step 4"));
}

namespace {

constexpr const char* kClicks = R"(
name: clicks
seed: 3
dataset: {type: clicks, shape: [4], ids: 4, vocab: 300, samples: 96, batch: 16}
network:
  - {name: table.wide, type: embedding, inputs: [ids], vocab: 300, units: 2}
  - {name: wide, type: reduce_sum, dims: [1]}
  - {name: table.deep, type: embedding, inputs: [ids], vocab: 300, units: 8}
  - {name: flat, type: flatten}
  - {name: both, type: concat, inputs: [flat, data], dim: 1}
  - {name: deep, type: dense, units: 2}
  - {name: out, type: add, inputs: [deep, wide]}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {steps: 12, log_every: 1, checkpoint: {every_steps: 4, keep: 5, async: false}}
parallel: {mode: parameter_server, servers: 2, sync: false, tables: [table.*]}
launch: {ranks: 1, device: cpu}
)";

/// Loss lines of the steps from `first` on.
std::string loss_lines(const Scratch& scratch, int run, int first) {
  std::istringstream lines(slurp(scratch.path() + "/log_output/" + std::to_string(run) + "/rank.0/stdout"));
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find(" step: "); at != std::string::npos) {
      const int epoch = std::stoi(line.substr(line.find("epoch: ") + 7)), step = std::stoi(line.substr(at + 7));
      if ((epoch - 1) * 6 + step >= first) found += line + "\n";
    }
  return found;
}

}  // namespace

TEST_CASE("a run with tables resumes from its checkpoint on another number of servers as if nothing had been") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks;
  const CommandResult whole = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(whole.err);
  REQUIRE(whole.exit_code == kExitDone);
  CHECK(contains(whole.out, "checkpoint of step 12"));
  const std::string from = scratch.path() + "/log_output/1/checkpoints/step_00000004";
  const std::string expected = loss_lines(scratch, 1, 5);
  CHECK(std::count(expected.begin(), expected.end(), '\n') == 8);
  int run = 1;
  for (const char* servers : {"1", "2", "3"}) {
    CAPTURE(servers);
    const CommandResult resumed = trainctl_command(
        scratch.path(), {"run", "job.yaml", "--resume-from", from, std::string("parallel.servers=") + servers});
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == kExitDone);
    CHECK(contains(resumed.out, "resuming after step 4"));
    CHECK(loss_lines(scratch, ++run, 1) == expected);
  }
  CHECK(trainctl_command(scratch.path(), {"checkpoint", "verify", from}).exit_code == kExitDone);
  CHECK(contains(trainctl_command(scratch.path(), {"checkpoint", "show", from, "--tensors", "table.deep.*"}).out,
                 "ids.1"));
}

TEST_CASE("a save of only the changed rows links to all rows, and a run resumes from it without a difference") {
  const Scratch scratch;
  std::string job = kClicks;
  // Few of many ids are met between two saves; 96 samples of 4 ids are 384 at most.
  for (const char* vocab = "vocab: 300"; job.find(vocab) != std::string::npos;)
    job.replace(job.find(vocab), std::strlen(vocab), "vocab: 9000");
  job.replace(job.find("every_steps: 4, keep: 5"), std::strlen("every_steps: 4, keep: 5"), "every_steps: 1, keep: 20");
  std::ofstream(scratch.path() + "/job.yaml") << job;
  const CommandResult whole = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(whole.err);
  REQUIRE(whole.exit_code == kExitDone);
  const std::string saves = scratch.path() + "/log_output/1/checkpoints/step_000000";
  int run = 1, of_changes = 0;
  for (int step = 2; step < 12; ++step) {
    const std::string from = saves + (step < 10 ? "0" : "") + std::to_string(step);
    CAPTURE(step);
    if (!std::filesystem::exists(from + "/changed.0000.safetensors")) continue;
    ++of_changes;
    CHECK(std::filesystem::hard_link_count(from + "/tables.0000.safetensors") > 1);
    CHECK(trainctl_command(scratch.path(), {"checkpoint", "verify", from}).exit_code == kExitDone);
    if (of_changes > 2) continue;  // a run each
    const std::string expected = loss_lines(scratch, 1, step + 1);
    const CommandResult resumed = trainctl_command(
        scratch.path(), {"run", "job.yaml", "--resume-from", from, "parallel.servers=" + std::to_string(of_changes)});
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == kExitDone);
    CHECK(loss_lines(scratch, ++run, 1) == expected);
  }
  CHECK(of_changes > 2);
}

TEST_CASE("rows of tables are taken by a job without servers, which has the whole tensor, and the other way") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks;
  // Plain SGD does not change rows without a gradient, so both kinds of job have the same numbers.
  const std::vector<std::string> run = {"run", "job.yaml", "optimizer={type: sgd, learning_rate: 0.1}"};
  const std::vector<std::string> plain = {"parallel={mode: data_parallel}", "launch.ranks=2"};
  REQUIRE(trainctl_command(scratch.path(), run).exit_code == kExitDone);
  REQUIRE(trainctl_command(scratch.path(), run + plain).exit_code == kExitDone);
  const std::string served = scratch.path() + "/log_output/1/checkpoints/step_00000008";
  const std::string whole = scratch.path() + "/log_output/2/checkpoints/step_00000008";
  const auto losses_of = [&](const std::string& from, int number, const std::vector<std::string>& more) {
    const CommandResult resumed =
        trainctl_command(scratch.path(), run + std::vector<std::string>{"--resume-from", from} + more);
    INFO(resumed.err);
    CHECK(resumed.exit_code == kExitDone);
    std::vector<double> losses;
    std::istringstream rows(slurp(scratch.path() + "/log_output/" + std::to_string(number) + "/metrics.jsonl"));
    for (std::string row; std::getline(rows, row);)
      if (const auto json = nlohmann::json::parse(row); json.contains("step") && json.contains("loss"))
        losses.push_back(json["loss"].get<double>());
    return losses;
  };
  const std::vector<double> expected = losses_of(whole, 3, plain);
  REQUIRE(expected.size() == 4);
  int number = 3;
  for (const std::string& from : {served, whole})
    for (const std::vector<std::string>& as : {std::vector<std::string>{}, plain}) {
      const std::vector<double> losses = losses_of(from, ++number, as);
      REQUIRE(losses.size() == expected.size());
      for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    }
}

TEST_CASE("workers in step save what they have and servers their rows, and a run resumes from that under other plans") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks << "validation: {dataset: {samples: 64}}\n";
  const std::vector<std::string> in_step = {"parallel.sync=true", "parallel.staleness=0",
                                            "optimizer={type: sgd, learning_rate: 0.1}"};
  const CommandResult whole =
      trainctl_command(scratch.path(), std::vector<std::string>{"run", "job.yaml", "launch.ranks=2"} + in_step);
  INFO(whole.err);
  REQUIRE(whole.exit_code == kExitDone);
  CHECK(contains(whole.out, "checkpoint of step 12"));
  CHECK(contains(whole.out, "staleness of the servers' updates: 0: 100 %"));
  const std::string from = scratch.path() + "/log_output/1/checkpoints/step_00000004";
  CHECK(std::filesystem::exists(from + "/tables.0001.safetensors"));
  CHECK(std::filesystem::exists(from + "/rank.0000.safetensors"));
  CHECK(trainctl_command(scratch.path(), {"checkpoint", "verify", from}).exit_code == kExitDone);
  const auto losses = [&](int run) {
    std::vector<double> found;
    std::istringstream rows(slurp(scratch.path() + "/log_output/" + std::to_string(run) + "/metrics.jsonl"));
    for (std::string row; std::getline(rows, row);)
      if (const auto json = nlohmann::json::parse(row);
          json.contains("step") && json.contains("loss") && json.value("run_step", 0) > 4)
        found.push_back(json["loss"].get<double>());
    return found;
  };
  const std::vector<double> expected = losses(1);
  CHECK(expected.size() == 8);
  int run = 1;
  for (const std::vector<std::string>& as : {std::vector<std::string>{"launch.ranks=1", "parallel.servers=3"},
                                             {"launch.ranks=2", "parallel.servers=1"},
                                             {"launch.ranks=2", "parallel={mode: data_parallel}"},
                                             {"launch.ranks=1", "parallel.sync=false"}}) {
    CAPTURE(as[1]);
    const CommandResult resumed = trainctl_command(
        scratch.path(), std::vector<std::string>{"run", "job.yaml", "--resume-from", from} + in_step + as);
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == kExitDone);
    const std::vector<double> found = losses(++run);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  }
}

TEST_CASE("a worker in step that is killed ends the run and is its first cause") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks;
  const int launcher = start_trainctl(scratch.path(), {"run", "job.yaml", "parallel.sync=true", "launch.ranks=2",
                                                       "train={epochs: 1000000, log_every: 1}", "launch.grace=5s"});
  for (const char* folder : {"rank.0", "rank.1"}) {
    const std::string out = scratch.path() + "/log_output/1/" + folder + "/stdout";
    REQUIRE(eventually([&] { return contains(slurp(out), "step: 2,"); }));
  }
  const std::vector<int> pids = workers_of(launcher, 4);
  kill(pids[1], SIGKILL);
  const CommandResult result = finish_trainctl(scratch.path(), launcher);
  INFO(result.err);
  CHECK(result.exit_code == kExitRankFailed);
  CHECK(contains(result.err, "rank 1 ("));
  CHECK(contains(result.err, "was killed by SIGKILL"));
  CHECK(contains(result.err, "rank 0 and servers 0, 1 stopped as a consequence"));
  CHECK(eventually([&] { return std::none_of(pids.begin(), pids.end(), [](int pid) { return alive(pid); }); }));
}

TEST_CASE("the plan of workers in step says that only tables are on the servers") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks;
  const CommandResult plan =
      trainctl_command(scratch.path(), {"plan", "job.yaml", "parallel.sync=true", "launch.ranks=2"});
  INFO(plan.err);
  REQUIRE(plan.exit_code == kExitDone);
  CHECK(contains(plan.out, "the 2 workers run synchronously and all_reduce all other parameters"));
  CHECK(contains(plan.out, "table.deep"));
  CHECK_FALSE(contains(plan.out, "per worker"));
}

TEST_CASE("evaluate takes a checkpoint of tables") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << kClicks << "validation: {dataset: {samples: 64}}\n";
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.err);
  REQUIRE(run.exit_code == kExitDone);
  const auto last_loss = [](const std::string& out) { return out.substr(out.rfind("validation")); };
  const CommandResult evaluated = trainctl_command(scratch.path(), {"evaluate", "job.yaml", "--checkpoint", "1"});
  INFO(evaluated.err);
  CHECK(evaluated.exit_code == kExitDone);
  CHECK(contains(last_loss(run.out), evaluated.out.substr(evaluated.out.rfind("loss"), 11)));
}
