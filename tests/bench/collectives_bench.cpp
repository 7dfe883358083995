// all_reduce of f32 between processes of this host: our shared memory against gloo::allreduce over loopback TCP,
// alternating in one run. Prints a table; not a test.
//
//   bench_collectives [--bytes N] [ranks ...]      default: 1 KB to 64 MB, 2 and 8 ranks
#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

#include "engine/runtime/comm/event.h"
#include "engine/runtime/comm/shared_memory_communicator.h"

namespace {

using namespace trainctl;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr double kSecondsPerSize = 0.8;  // per transport

/// Microseconds per call: median, 10th and 90th percentile.
struct Timing {
  double median, low, high;
};

Timing summarize(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double part) { return us[static_cast<size_t>(part * static_cast<double>(us.size() - 1))]; };
  return {at(0.5), at(0.1), at(0.9)};
}

std::shared_ptr<gloo::Context> connect_gloo(int rank, int ranks, const std::string& directory) {
  gloo::rendezvous::FileStore store(directory);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  return context;
}

void gloo_all_reduce(const std::shared_ptr<gloo::Context>& context, float* data, int64_t count) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, static_cast<size_t>(count));
  options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) { gloo::sum<float>(out, a, b, n); });
  gloo::allreduce(options);
}

class Rank {
 public:
  Rank(const std::shared_ptr<SharedMemory>& memory, int rank, const std::string& directory)
      : rank_(rank),
        ranks_(memory->num_ranks()),
        comm_(make_shared_memory_communicator(memory, rank, 300)),
        gloo_(connect_gloo(rank, ranks_, directory)),
        shared_(reinterpret_cast<float*>(memory->arena(rank).data())),
        own_(kMaxBytes / 4, 0.0f) {
    std::vector<int> everyone(static_cast<size_t>(ranks_));
    std::iota(everyone.begin(), everyone.end(), 0);
    group_ = comm_->open_group(everyone);
    std::fill_n(shared_, kMaxBytes / 4, 0.0f);
  }

  void run(const std::vector<int64_t>& sizes) {
    for (int64_t bytes : sizes) {
      const int64_t count = bytes / 4;
      const auto ours = [&] { comm_->all_reduce(group_, shared_, shared_, count, DType::f32); };
      const auto theirs = [&] { gloo_all_reduce(gloo_, own_.data(), count); };
      check_both(count);
      const Timing a = measure(ours), b = measure(theirs);
      if (rank_ == 0) print(bytes, a, b);
    }
  }

 private:
  void check_both(int64_t count) {
    std::fill_n(shared_, count, 1.0f);
    std::fill_n(own_.data(), count, 1.0f);
    comm_->all_reduce(group_, shared_, shared_, count, DType::f32);
    gloo_all_reduce(gloo_, own_.data(), count);
    const auto wrong = [&](float x) { return x != static_cast<float>(ranks_); };
    if (std::any_of(shared_, shared_ + count, wrong) || std::any_of(own_.data(), own_.data() + count, wrong)) {
      fmt::print("rank {}: a sum is wrong\n", rank_);
      _exit(1);
    }
    // Sums of zeros stay zero: no infinities, which some processors add more slowly.
    comm_->barrier(group_);
    std::fill_n(shared_, count, 0.0f);
    std::fill_n(own_.data(), count, 0.0f);
  }

  /// Each repetition is several calls in a row, about 2 ms, which all ranks begin together.
  template <typename Call>
  Timing measure(const Call& call) {
    const auto seconds = [&](int64_t calls) {
      comm_->barrier(group_);
      const auto start = Clock::now();
      for (int64_t i = 0; i < calls; ++i) call();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    seconds(2);
    const double one = agree(seconds(3) / 3);
    const auto calls = std::clamp<int64_t>(static_cast<int64_t>(2e-3 / one), 1, 1000);
    const auto repetitions =
        std::clamp<int64_t>(static_cast<int64_t>(kSecondsPerSize / (one * static_cast<double>(calls))), 15, 300);
    std::vector<double> us;
    for (int64_t i = 0; i < repetitions; ++i) us.push_back(seconds(calls) / static_cast<double>(calls) * 1e6);
    return summarize(us);
  }

  /// Returns rank 0's value on all ranks.
  double agree(double seconds) {
    auto us = static_cast<float>(seconds * 1e6);
    comm_->broadcast(group_, &us, &us, 1, DType::f32, 0);
    return std::max(static_cast<double>(us), 0.1) / 1e6;
  }

  void print(int64_t bytes, const Timing& a, const Timing& b) const {
    const auto rate = [&](const Timing& t) { return static_cast<double>(bytes) / t.median / 1e3; };
    fmt::print("{:5} {:>10} | {:10.1f} {:>19} {:7.2f} | {:10.1f} {:>19} {:7.2f} | {:6.1f}\n", ranks_, bytes, a.median,
               fmt::format("{:.1f}-{:.1f}", a.low, a.high), rate(a), b.median,
               fmt::format("{:.1f}-{:.1f}", b.low, b.high), rate(b), b.median / a.median);
    std::fflush(stdout);
  }

  int rank_, ranks_;
  std::unique_ptr<Communicator> comm_;
  std::shared_ptr<gloo::Context> gloo_;
  float* shared_;
  std::vector<float> own_;
  int group_ = -1;
};

bool bench(int ranks, const std::vector<int64_t>& sizes) {
  const auto memory = SharedMemory::create(std::vector<int64_t>(static_cast<size_t>(ranks), kMaxBytes));
  std::string directory = (std::filesystem::temp_directory_path() / "collectives-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return false;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      Rank(memory, rank, directory).run(sizes);
      _exit(0);  // Gloo's threads need no shutdown
    }
    pids.push_back(pid);
  }
  bool good = true;
  for (pid_t pid : pids) {
    int status = 0;
    good = waitpid(pid, &status, 0) == pid && status == 0 && good;
  }
  std::filesystem::remove_all(directory);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> ranks;
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--bytes" && i + 1 < argc) {
      sizes.push_back(std::clamp<int64_t>(std::atoll(argv[++i]), 4, kMaxBytes));
    } else {
      ranks.push_back(std::max(std::atoi(argv[i]), 1));
    }
  }
  if (ranks.empty()) ranks = {2, 8};
  if (sizes.empty()) {
    for (int64_t kib : {1, 4, 16, 64, 256, 1024, 4096, 16384, 32768, 65536}) sizes.push_back(kib << 10);
  }
  fmt::print("all_reduce in place, f32, {} cores; us per call: median, p10-p90; GB/s: bytes / median\n\n",
             comm::usable_cores());
  fmt::print("{:>5} {:>10} | {:>10} {:>19} {:>7} | {:>10} {:>19} {:>7} | {:>6}\n", "ranks", "bytes", "shared",
             "p10-p90", "GB/s", "gloo", "p10-p90", "GB/s", "ratio");
  std::fflush(stdout);
  for (int n : ranks) {
    if (!bench(n, sizes)) return 1;
  }
  return 0;
}
