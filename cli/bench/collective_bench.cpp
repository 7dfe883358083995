// Each rank writes its samples into memory shared with this process; a call's time is that of its slowest rank.
#include "cli/bench/collective_bench.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "engine/base/error.h"
#include "engine/runtime/measure/collective_timer.h"
#include "engine/train/profile/work.h"

namespace trainctl {
namespace {

constexpr double kTimeoutSeconds = 60;
constexpr double kSampleSeconds = 2e-3;
constexpr int kMostSamples = 1000;
constexpr Collective kKinds[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                 Collective::all_to_all, Collective::broadcast};

/// The result of one rank and case.
struct Measured {
  double seconds[kMostSamples];
  double copy_rate;
  int64_t wrong;
  char made_by[16];
};

/// The ranks' results: `cases` of each rank, and the error messages of ranks that fail.
class Report {
 public:
  Report(int ranks, size_t cases) : ranks_(ranks), cases_(cases) {
    bytes_ = static_cast<size_t>(ranks) * (cases * sizeof(Measured) + sizeof(Words));
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw EnvError(std::string("no memory for the ranks' figures: ") + std::strerror(errno));
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Report() { munmap(memory_, bytes_); }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  Measured& of(int rank, size_t index) {
    return reinterpret_cast<Measured*>(memory_)[static_cast<size_t>(rank) * cases_ + index];
  }
  void set_error(int rank, const char* text) { std::strncpy(words(rank), text, sizeof(Words) - 1); }
  std::string error(int rank) { return words(rank); }

 private:
  using Words = char[2048];
  char* words(int rank) {
    auto* all = reinterpret_cast<Words*>(memory_ + static_cast<size_t>(ranks_) * cases_ * sizeof(Measured));
    return all[rank];
  }

  const int ranks_;
  const size_t cases_;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

int64_t whole_blocks(int64_t bytes, int ranks) {
  const int64_t block = 4 * int64_t{ranks};
  return std::max(block, bytes / block * block);
}

/// Rank 0's number of runs, used by all ranks: they must make the same calls.
class Agreed {
 public:
  explicit Agreed(Communicator& ranks) : ranks_(ranks) {
    std::vector<int> everyone;
    for (int rank = 0; rank < ranks.num_ranks(); ++rank) everyone.push_back(rank);
    group_ = ranks.open_group(everyone);
  }
  int32_t operator()(double mine) {
    auto value = static_cast<int32_t>(mine);
    ranks_.broadcast(group_, &value, &value, 1, DType::i32, 0);
    return value;
  }

 private:
  Communicator& ranks_;
  int group_ = -1;
};

void measure(const CollectiveRequest& request, CollectiveTimer& timer, Collective kind, int64_t bytes,
             Measured& result) {
  Agreed agreed(timer.ranks());
  std::strncpy(result.made_by, timer.made_by(kind, bytes), sizeof(result.made_by) - 1);
  result.wrong = timer.wrong_elements(kind, bytes);
  result.copy_rate = timer.copy_bytes_per_second(bytes);
  timer.seconds(kind, bytes, 2);
  int32_t runs = 1;
  for (int i = 0; i < 3; ++i) {  // approaches kSampleSeconds, each guess from the time of the last
    const double seconds = std::max(timer.seconds(kind, bytes, runs), 1e-9);
    runs = agreed(std::clamp(kSampleSeconds / seconds * runs, 1.0, runs * 30.0));
  }
  for (int i = 0; i < request.samples; ++i) result.seconds[i] = timer.seconds(kind, bytes, runs) / runs;
}

void run_rank(const CollectiveRequest& request, const std::shared_ptr<SharedMemory>& memory, int rank, Report& report) {
  const int64_t most = whole_blocks(*std::max_element(request.bytes.begin(), request.bytes.end()), request.ranks);
  const auto make = request.device == Device::cuda ? make_cuda_collective_timer : make_cpu_collective_timer;
  const std::unique_ptr<CollectiveTimer> timer = make(memory, rank, most, kTimeoutSeconds);
  size_t index = 0;
  for (const Collective kind : request.kinds) {
    for (const int64_t bytes : request.bytes) {
      measure(request, *timer, kind, whole_blocks(bytes, request.ranks), report.of(rank, index++));
    }
  }
}

/// The main function of a rank's process. It is killed when this process ends.
[[noreturn]] void be_rank(const CollectiveRequest& request, const std::shared_ptr<SharedMemory>& memory, int rank,
                          pid_t parent, Report& report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitEnv);
  try {
    run_rank(request, memory, rank, report);
    _exit(kExitDone);
  } catch (const std::exception& error) {
    report.set_error(rank, error.what());
    _exit(kExitEnv);
  }
}

/// Waits for all; peers of a rank that ends too early stop waiting for it. Returns the first that failed; -1: none.
int wait_for_ranks(const std::vector<pid_t>& pids, SharedMemory& memory) {
  int failed = -1;
  for (size_t ended = 0; ended < pids.size(); ++ended) {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, 0)) < 0 && errno == EINTR) {
    }
    const auto found = std::find(pids.begin(), pids.end(), pid);
    if (found == pids.end() || status == 0) continue;
    const int rank = static_cast<int>(found - pids.begin());
    memory.status(rank).state = RankState::failed;
    if (failed < 0) failed = rank;
  }
  return failed;
}

}  // namespace

double CollectiveResult::bus_rate() const { return rate() * bus_factor(kind, ranks); }

std::optional<Collective> find_collective(std::string_view name) {
  for (const Collective kind : kKinds) {
    if (to_string(kind) == name) return kind;
  }
  return std::nullopt;
}

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const Collective kind : kKinds) names.emplace_back(to_string(kind));
  return names;
}

std::vector<CollectiveResult> bench_collectives(const CollectiveRequest& request) {
  check(request.samples <= kMostSamples && !request.bytes.empty(), "a bench of collectives has sizes, and few samples");
  const int64_t most = whole_blocks(*std::max_element(request.bytes.begin(), request.bytes.end()), request.ranks);
  const int64_t arena = request.device == Device::cuda ? 64 : collective_timer_bytes(most);
  const auto memory = SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(request.ranks), arena));
  Report report(request.ranks, request.kinds.size() * request.bytes.size());
  const pid_t parent = getpid();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(request, memory, rank, parent, report);
    if (pid < 0) {
      for (const pid_t started : pids) kill(started, SIGKILL);
      wait_for_ranks(pids, *memory);
      throw EnvError("cannot start rank " + std::to_string(rank) + ": " + std::strerror(errno));
    }
    pids.push_back(pid);
  }
  if (const int failed = wait_for_ranks(pids, *memory); failed >= 0) {
    const std::string said = report.error(failed);
    throw EnvError("rank " + std::to_string(failed) + " of the bench: " + (said.empty() ? "it was killed" : said));
  }

  std::vector<CollectiveResult> results;
  for (const Collective kind : request.kinds) {
    for (const int64_t bytes : request.bytes) {
      CollectiveResult result;
      result.kind = kind;
      result.ranks = request.ranks;
      result.bytes = whole_blocks(bytes, request.ranks);
      std::vector<double> slowest(static_cast<size_t>(request.samples), 0.0);
      for (int rank = 0; rank < request.ranks; ++rank) {
        const Measured& of_rank = report.of(rank, results.size());
        for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank.seconds[i]);
        result.wrong += of_rank.wrong;
        result.copy_rate += of_rank.copy_rate / request.ranks;
      }
      result.made_by = report.of(0, results.size()).made_by;
      result.seconds = spread_of(slowest);
      results.push_back(result);
    }
  }
  return results;
}

}  // namespace trainctl
