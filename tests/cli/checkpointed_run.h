// A real run with checkpoints, for tests of what trainctl says of them.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

namespace trainctl {

/// Run 1 of two epochs of 8 steps on two ranks, saved at steps 8 and 16.
struct CheckpointedRun {
  Scratch scratch;
  const std::string folder = "log_output/1/checkpoints", first = folder + "/step_00000008",
                    last = folder + "/step_00000016";
  std::string job;

  explicit CheckpointedRun(const std::string& more = "") {
    job = small_job(scratch.path(),
                    "train: {epochs: 2, checkpoint: {every_epochs: 1, integrated: true}}\n"
                    "parallel: {mode: data_parallel, optimizer_shard: {level: 1, min_kb: 0}}\n"
                    "launch: {ranks: 2, device: cpu}\n" +
                        more);
    const CommandResult result = (*this)({"run", job});
    INFO(result.err);
    REQUIRE(result.exit_code == kExitDone);
  }

  CommandResult operator()(const std::vector<std::string>& words) const {
    return trainctl_command(scratch.path(), words);
  }
  CommandResult checkpoint(std::vector<std::string> words) const {
    words.insert(words.begin(), "checkpoint");
    return (*this)(words);
  }
  void flip(const std::string& file, std::streamoff from_end = 1) const {
    std::fstream stream(scratch.path() + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-from_end, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
  }
};

}  // namespace trainctl
