// Collectives between processes of this host, in shared memory.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/base/round_up.h"
#include "engine/ops/random.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/measure/collective_data.h"
#include "engine/runtime/measure/collective_timer.h"

namespace trainctl {
namespace {

constexpr int64_t kTimedArenaAlignment = 64;

using Clock = std::chrono::steady_clock;

class CpuCollectiveTimer final : public CollectiveTimer {
 public:
  CpuCollectiveTimer(std::shared_ptr<SharedMemory> memory, int rank, int64_t most_bytes, double timeout_seconds)
      : memory_(std::move(memory)),
        rank_(rank),
        comm_(make_shared_memory_communicator(memory_, rank, timeout_seconds)),
        in_(reinterpret_cast<float*>(memory_->arena(rank).data())),
        out_(in_ + collective_timer_bytes(most_bytes) / 2 / 4) {
    std::vector<int> everyone(static_cast<size_t>(memory_->num_ranks()));
    std::iota(everyone.begin(), everyone.end(), 0);
    group_ = comm_->open_group(everyone);
    for (int64_t i = 0; i < most_bytes / 4; ++i) in_[i] = philox_uniform(1, static_cast<uint64_t>(i), 0) - 0.5f;
  }

  Communicator& ranks() override { return *comm_; }

  const char* made_by(Collective, int64_t) const override { return "shared memory"; }

  double seconds(Collective kind, int64_t bytes, int64_t runs) override {
    comm_->barrier(group_);
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < runs; ++i) call(kind, bytes);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  int64_t wrong_elements(Collective kind, int64_t bytes) override {
    const CollectiveSizes sizes = collective_sizes(kind, bytes, memory_->num_ranks());
    const std::vector<float> random(in_, in_ + sizes.in), input = collective_input(sizes.in, rank_);
    std::memcpy(in_, input.data(), static_cast<size_t>(sizes.in) * 4);
    std::memset(out_, 0xff, static_cast<size_t>(sizes.out) * 4);
    call(kind, bytes);
    const std::vector<float> result(out_, out_ + sizes.out);
    comm_->barrier(group_);  // no rank still reads what the next line overwrites
    std::memcpy(in_, random.data(), static_cast<size_t>(sizes.in) * 4);
    return count_wrong(kind, result, rank_, memory_->num_ranks());
  }

  double copy_bytes_per_second(int64_t bytes) override {
    const int64_t runs = std::clamp<int64_t>((int64_t{64} << 20) / bytes, 1, 10000);
    comm_->barrier(group_);
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < runs; ++i) std::memcpy(out_, in_, static_cast<size_t>(bytes));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    comm_->barrier(group_);
    return static_cast<double>(bytes * runs) / seconds;
  }

 private:
  void call(Collective kind, int64_t bytes) {
    const int64_t count = collective_sizes(kind, bytes, memory_->num_ranks()).count;
    switch (kind) {
      case Collective::all_reduce:
        return comm_->all_reduce(group_, in_, out_, count, DType::f32);
      case Collective::all_gather:
        return comm_->all_gather(group_, in_, out_, count, DType::f32);
      case Collective::reduce_scatter:
        return comm_->reduce_scatter(group_, in_, out_, count, DType::f32);
      case Collective::all_to_all:
        return comm_->all_to_all(group_, in_, out_, count, DType::f32);
      case Collective::broadcast:
        return comm_->broadcast(group_, in_, out_, count, DType::f32, 0);
    }
  }

  std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  std::unique_ptr<Communicator> comm_;
  float *in_, *out_;
  int group_ = -1;
};

}  // namespace

int64_t collective_timer_bytes(int64_t most_bytes) { return 2 * round_up(most_bytes, kTimedArenaAlignment); }

std::unique_ptr<CollectiveTimer> make_cpu_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                           int64_t most_bytes, double timeout_seconds) {
  return std::make_unique<CpuCollectiveTimer>(std::move(memory), rank, most_bytes, timeout_seconds);
}

}  // namespace trainctl
