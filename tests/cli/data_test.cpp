// trainctl data, and jobs that train on tokens and text.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

void data_write(const Scratch& scratch, const std::string& name, const std::string& text) {
  std::ofstream(scratch.path() + "/" + name, std::ios::binary) << text;
}

std::string job(const std::string& dataset, int vocab = 256) {
  const std::string size = std::to_string(vocab);
  return "dataset: " + dataset + "\nnetwork:\n  - {name: emb, type: embedding, vocab: " + size +
         ", units: 16}\n  - {name: head, type: dense, units: " + size +
         "}\nloss: softmax_cross_entropy\nmetrics: [accuracy, {type: top_k, k: 5}]\n"
         "optimizer: {type: adamw, learning_rate: 0.05}\ntrain: {epochs: 3}\n"
         "parallel: {mode: data_parallel}\nlaunch: {ranks: 2, device: cpu}\n";
}

std::string sentence(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += "the quick brown fox jumps over the lazy dog. ";
  return text;
}

}  // namespace

TEST_CASE("data tokens writes a file that data info describes and a job trains on") {
  const Scratch scratch;
  data_write(scratch, "a.txt", sentence(20));
  data_write(scratch, "b.txt", "\xff\n");
  const CommandResult written = trainctl_command(scratch.path(), {"data", "tokens", "a.txt", "b.txt", "-o", "x.bin"});
  CHECK(written.exit_code == kExitDone);
  CHECK(written.out == "x.bin: 902 uint16 tokens, llm.c header\n");
  const CommandResult info = trainctl_command(scratch.path(), {"data", "info", "x.bin"});
  CHECK(info.out == "x.bin: 902 uint16 tokens, llm.c header, from 10 to 255\n");

  data_write(scratch, "job.yaml", job("{type: tokens, path: x.bin, length: 8, batch: 8}"));
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml"});
  INFO(run.err);
  REQUIRE(run.exit_code == kExitDone);
  std::ifstream metrics(scratch.path() + "/log_output/1/metrics.jsonl");
  std::vector<nlohmann::json> epochs, steps;
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row.contains("epoch_end")) epochs.push_back(row);
    if (row.contains("run_step")) steps.push_back(row);
  }
  REQUIRE(epochs.size() == 3);
  CHECK(steps[0].contains("accuracy"));
  CHECK(steps[0].contains("top_5"));
  CHECK(epochs[2]["mean_loss"] < epochs[0]["mean_loss"]);
  CHECK(epochs[2]["mean_accuracy"] > epochs[0]["mean_accuracy"]);
  CHECK(epochs[2]["mean_top_5"] >= epochs[2]["mean_accuracy"]);
  CHECK(contains(run.out + run.err, ", accuracy 0."));
  CHECK(contains(run.out + run.err, "mean loss  accuracy"));
  const CommandResult logs = trainctl_command(scratch.path(), {"logs", "1", "--rank", "0"});
  CHECK(contains(logs.err, ", accuracy 0."));
}

TEST_CASE("data tokens writes all or nothing, and replaces a file only with --force") {
  const Scratch scratch;
  data_write(scratch, "a.txt", "abc");
  const std::vector<std::string> command = {"data", "tokens", "a.txt", "-o", "x.bin", "--format", "raw"};
  CHECK(trainctl_command(scratch.path(), command).exit_code == kExitDone);
  CHECK(fs::file_size(scratch.path() + "/x.bin") == 6);
  const CommandResult again = trainctl_command(scratch.path(), command);
  CHECK(again.exit_code == kExitEnv);
  CHECK(contains(again.err, "x.bin already exists; replace it with --force"));
  std::vector<std::string> forced = command;
  forced.emplace_back("--force");
  CHECK(trainctl_command(scratch.path(), forced).exit_code == kExitDone);
  const CommandResult none = trainctl_command(scratch.path(), {"data", "tokens", "no.txt", "-o", "y.bin"});
  CHECK(none.exit_code == kExitEnv);
  CHECK(contains(none.err, "no.txt: cannot be read: No such file or directory"));
  const CommandResult empty = trainctl_command(scratch.path(), {"data", "tokens", "-", "-o", "y.bin"});
  CHECK(empty.exit_code == kExitEnv);
  CHECK(contains(empty.err, "the input is empty"));
  const CommandResult folder = trainctl_command(scratch.path(), {"data", "tokens", "a.txt", "-o", "nowhere/y.bin"});
  CHECK(folder.exit_code == kExitEnv);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path())) {
    CHECK_FALSE(contains(entry.path().filename(), ".part"));
    CHECK(entry.path().filename() != "y.bin");
    ++files;
  }
  CHECK(files >= 2);
}

TEST_CASE("a fault in the files of a data set is an error at a position of the job") {
  const Scratch scratch;
  data_write(scratch, "odd.bin", "abc");
  data_write(scratch, "empty.bin", "");
  data_write(scratch, "short.bin", "abcd");
  data_write(scratch, "a.txt", sentence(10));
  const auto error = [&](const std::string& dataset, int vocab = 256) {
    data_write(scratch, "job.yaml", job(dataset, vocab));
    for (const char* command : {"plan", "run"}) {
      const CommandResult result = trainctl_command(scratch.path(), {command, "job.yaml"});
      CHECK(result.exit_code == kExitSpec);
      CHECK(contains(result.err, "job.yaml:1:"));
    }
    const CommandResult result = trainctl_command(scratch.path(), {"check", "job.yaml"});
    CHECK(result.exit_code == kExitSpec);
    return result.err;
  };
  CHECK(contains(error("{type: tokens, path: odd.bin, length: 8}"),
                 "/odd.bin: 3 bytes are not a whole number of "
                 "uint16"));
  CHECK(contains(error("{type: tokens, path: empty.bin, length: 8}"), "/empty.bin: is empty"));
  CHECK(contains(error("{type: tokens, path: '*.bin', length: 8}"), "/empty.bin: is empty"));
  CHECK(contains(error("{type: tokens, path: short.bin, length: 8}"), "/short.bin has 2 tokens, but a sample of 8"));
  CHECK(contains(error("{type: text, path: '*.none', length: 8}"), "no file matches"));
  CHECK(contains(error("{type: text, path: a.txt, length: 8}", 122),
                 "/a.txt: token 37 of the file is 122, but layer 'emb' (embedding) supports 0 to 121"));
}
