// Processes of this host that run a measurement together, one per rank, and the memory that they share with the process
// that started them.
#include "cli/measure/rank_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/machine_limits.h"

namespace trainctl {
namespace {

/// The error message of a rank that fails.
struct RankErrorText {
  char text[2048];
};

[[noreturn]] void be_rank(const std::function<void(int)>& main, int rank, pid_t parent, RankErrorText& error_text) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitEnv);
  try {
    main(rank);
    _exit(kExitDone);
  } catch (const std::exception& error) {
    std::strncpy(error_text.text, error.what(), sizeof(error_text.text) - 1);
    _exit(kExitEnv);
  }
}

/// Waits for the ranks. Returns the first rank that failed; -1: none.
int wait_for_ranks(const std::vector<pid_t>& pids, const std::function<void(int)>& lost) {
  int failed = -1;
  for (size_t ended = 0; ended < pids.size(); ++ended) {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, 0)) < 0 && errno == EINTR) {
    }
    const auto found = std::find(pids.begin(), pids.end(), pid);
    if (found == pids.end() || status == 0) continue;
    const int rank = static_cast<int>(found - pids.begin());
    lost(rank);
    if (failed < 0) failed = rank;
  }
  return failed;
}

}  // namespace

void run_rank_processes(int ranks, const std::function<void(int rank)>& main,
                        const std::function<void(int rank)>& lost) {
  const SharedValues<RankErrorText> error_text(static_cast<size_t>(ranks));
  const pid_t parent = getpid();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(main, rank, parent, error_text[static_cast<size_t>(rank)]);
    if (pid < 0) {
      const std::string reason = describe_errno(errno);
      for (const pid_t started : pids) kill(started, SIGKILL);
      wait_for_ranks(pids, lost);
      throw EnvError("cannot start rank " + std::to_string(rank) + ": " + reason);
    }
    pids.push_back(pid);
  }
  if (const int failed = wait_for_ranks(pids, lost); failed >= 0) {
    const std::string text = error_text[static_cast<size_t>(failed)].text;
    throw EnvError("benchmark rank " + std::to_string(failed) + " failed: " + (text.empty() ? "it was killed" : text));
  }
}

Agreed::Agreed(Communicator& ranks) : ranks_(ranks) {
  std::vector<int> everyone(static_cast<size_t>(ranks.num_ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  group_ = ranks.open_group(everyone);
}

double Agreed::most(double mine) {
  const auto value = static_cast<float>(mine);
  std::vector<float> all(static_cast<size_t>(ranks_.num_ranks()));
  ranks_.all_gather(group_, &value, all.data(), 1, DType::f32);
  return *std::max_element(all.begin(), all.end());
}

int32_t Agreed::operator()(double mine) {
  auto value = static_cast<int32_t>(mine);
  ranks_.broadcast(group_, &value, &value, 1, DType::i32, 0);
  return value;
}

}  // namespace trainctl
