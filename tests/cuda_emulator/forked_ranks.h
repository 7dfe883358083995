// Runs ranks on emulated GPUs: one process per rank, connected by the stand-in for NCCL.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <vector>

#include "tools/cuda_emulator/nccl.h"

namespace trainctl {

/// Calls `run` in a process of its own for each rank; returns what it returned, or 1 if it threw.
inline std::vector<int> run_forked(int ranks, const std::function<int(int rank)>& run) {
  setenv("NCCL_P2P_DISABLE", "1", 1);  // a process has no memory of others' emulated GPUs
  emulator::open_links(ranks);
  std::map<pid_t, int> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child > 0) {
      children[child] = rank;
      continue;
    }
    int code = 1;
    try {
      emulator::become_rank(rank);
      code = run(rank);
      emulator::flush_links();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    std::fflush(nullptr);
    _exit(code);
  }
  emulator::close_links();
  std::vector<int> codes(static_cast<size_t>(ranks), -1);
  for (int ended = 0; ended < ranks; ++ended) {
    int status = 0;
    const pid_t child = wait(&status);
    REQUIRE(child > 0);
    codes[static_cast<size_t>(children.at(child))] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  return codes;
}

}  // namespace trainctl
