// Times collectives between processes. Each rank writes its samples into memory shared with this process. The time of a
// call is that of its slowest rank.
#include "cli/measure/collective_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "cli/measure/rank_processes.h"
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

int64_t whole_blocks(int64_t bytes, int ranks) {
  const int64_t block = 4 * int64_t{ranks};
  return std::max(block, bytes / block * block);
}

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

/// `results`: the rank's.
void run_rank(const CollectiveRequest& request, const std::shared_ptr<SharedMemory>& memory, int rank,
              Measured* results) {
  const int64_t most = whole_blocks(*std::max_element(request.bytes.begin(), request.bytes.end()), request.ranks);
  const auto make = request.device == Device::cuda ? make_cuda_collective_timer : make_cpu_collective_timer;
  const std::unique_ptr<CollectiveTimer> timer = make(memory, rank, most, kTimeoutSeconds);
  for (const Collective kind : request.kinds) {
    for (const int64_t bytes : request.bytes) {
      measure(request, *timer, kind, whole_blocks(bytes, request.ranks), *results++);
    }
  }
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
  check(request.samples <= kMostSamples && !request.bytes.empty(),
        "a benchmark of collectives has sizes, and few samples");
  const int64_t most = whole_blocks(*std::max_element(request.bytes.begin(), request.bytes.end()), request.ranks);
  const int64_t arena = request.device == Device::cuda ? 64 : collective_timer_bytes(most);
  const auto memory = SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(request.ranks), arena));
  const size_t cases = request.kinds.size() * request.bytes.size();
  const SharedValues<Measured> measured(cases * static_cast<size_t>(request.ranks));
  const auto of_rank = [&](int rank) { return &measured[cases * static_cast<size_t>(rank)]; };
  run_rank_processes(
      request.ranks, [&](int rank) { run_rank(request, memory, rank, of_rank(rank)); },
      [&](int rank) { memory->status(rank).state = RankState::failed; });

  std::vector<CollectiveResult> results;
  for (const Collective kind : request.kinds) {
    for (const int64_t bytes : request.bytes) {
      CollectiveResult result;
      result.kind = kind;
      result.ranks = request.ranks;
      result.bytes = whole_blocks(bytes, request.ranks);
      std::vector<double> slowest(static_cast<size_t>(request.samples), 0.0);
      for (int rank = 0; rank < request.ranks; ++rank) {
        const Measured& one = of_rank(rank)[results.size()];
        for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], one.seconds[i]);
        result.wrong += one.wrong;
        result.copy_rate += one.copy_rate / request.ranks;
      }
      result.made_by = of_rank(0)[results.size()].made_by;
      result.seconds = spread_of(slowest);
      results.push_back(result);
    }
  }
  return results;
}

}  // namespace trainctl
