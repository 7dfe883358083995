// Collectives between GPUs, timed by events around graphs of many calls, since a step is one graph too.
#include "engine/runtime/measure/collective_timer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/ops/random.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/capture.h"
#include "engine/runtime/cuda/cuda_communicator.h"
#include "engine/runtime/measure/collective_data.h"

namespace trainctl {
namespace cuda {
namespace {

constexpr int64_t kMostCalls = 100;  ///< most calls in one graph
constexpr Collective kKinds[] = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                 Collective::all_to_all, Collective::broadcast};

/// A program that has each kind of collective once, over all ranks. Inputs are in the lower half of the arena and
/// outputs in the upper half, at most `most_bytes` each.
Program program_of(int rank, int num_ranks, int64_t most_bytes) {
  Program program;
  program.rank = rank;
  program.arena_bytes = collective_timer_bytes(most_bytes);
  program.groups.emplace_back(static_cast<size_t>(num_ranks));
  std::iota(program.groups[0].begin(), program.groups[0].end(), 0);
  for (const Collective kind : kKinds) {
    Instruction instruction;
    instruction.opcode = Opcode::collective;
    instruction.collective = kind;
    instruction.group = 0;
    const CollectiveSizes sizes = collective_sizes(kind, most_bytes, num_ranks);
    Operand in, out;
    in.shape = {sizes.in};
    out.shape = {sizes.out};
    out.offset = program.arena_bytes / 2;
    instruction.inputs = {in};
    instruction.outputs = {out};
    program.instructions.push_back(instruction);
  }
  return program;
}

int use_device(int rank) {
  cuda_check(cudaSetDevice(rank), "cudaSetDevice");
  return rank;
}

class CudaCollectiveTimer final : public CollectiveTimer {
 public:
  CudaCollectiveTimer(const std::shared_ptr<SharedMemory>& memory, int rank, int64_t most_bytes, double timeout_seconds)
      : rank_(use_device(rank)),
        num_ranks_(memory->num_ranks()),
        program_(program_of(rank, num_ranks_, most_bytes)),
        comm_(make_shared_memory_communicator(memory, rank, timeout_seconds)),
        arena_(make_device_memory(program_.arena_bytes)),
        in_(static_cast<std::byte*>(arena_.get())),
        out_(in_ + program_.arena_bytes / 2),
        peers_(program_, *comm_, rank),
        stream_(make_stream(true)),
        begin_(make_timed_event()),
        end_(make_timed_event()) {
    peers_.connect(in_, true);
    group_ = comm_->open_group(program_.groups[0]);
    std::vector<float> random(static_cast<size_t>(most_bytes / 4));
    for (size_t i = 0; i < random.size(); ++i) random[i] = philox_uniform(1, i, 0) - 0.5f;
    fill(random);
  }

  Communicator& ranks() override { return *comm_; }

  const char* made_by(Collective kind, int64_t bytes) const override {
    return peers_.copies(instruction_of(kind), move_of(kind, bytes)) ? "copy engines" : "NCCL";
  }

  double seconds(Collective kind, int64_t bytes, int64_t runs) override {
    const int64_t calls = std::min(runs, kMostCalls), repetitions = (runs + calls - 1) / calls;
    if (captured_.kind != kind || captured_.bytes != bytes || captured_.calls != calls) {
      captured_ = {kind, bytes, calls, capture(kind, bytes, calls)};
    }
    comm_->barrier(group_);
    const double seconds = seconds_of([&] {
      for (int64_t i = 0; i < repetitions; ++i) {
        cuda_check(cudaGraphLaunch(captured_.graph.get(), stream_.get()), "cudaGraphLaunch");
      }
    });
    return seconds * static_cast<double>(runs) / static_cast<double>(calls * repetitions);
  }

  int64_t wrong_elements(Collective kind, int64_t bytes) override {
    const CollectiveSizes sizes = collective_sizes(kind, bytes, num_ranks_);
    std::vector<float> random(static_cast<size_t>(sizes.in)), result(static_cast<size_t>(sizes.out));
    cuda_check(cudaMemcpy(random.data(), in_, random.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    fill(collective_input(sizes.in, rank_));
    call(kind, bytes);
    cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    cuda_check(cudaMemcpy(result.data(), out_, result.size() * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    fill(random);
    return count_wrong(kind, result, rank_, num_ranks_);
  }

  /// One direction of the link to the next GPU, while all others use theirs.
  double copy_bytes_per_second(int64_t bytes) override {
    const int64_t runs = std::clamp<int64_t>((int64_t{1} << 30) / bytes, 1, 1000);
    const int peer = (rank_ + 1) % num_ranks_;
    DeviceMemory there;
    if (num_ranks_ > 1) {
      const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
      if (status != cudaErrorPeerAccessAlreadyEnabled && status != cudaErrorPeerAccessUnsupported) {
        cuda_check(status, "cudaDeviceEnablePeerAccess");
      }
      cudaGetLastError();
      cuda_check(cudaSetDevice(peer), "cudaSetDevice");
      there = make_device_memory(bytes);
      cuda_check(cudaSetDevice(rank_), "cudaSetDevice");
    }
    void* to = there ? there.get() : out_;
    const auto copies = [&] {
      for (int64_t i = 0; i < runs; ++i) {
        cuda_check(cudaMemcpyPeerAsync(to, num_ranks_ > 1 ? peer : rank_, in_, rank_, static_cast<size_t>(bytes),
                                       stream_.get()),
                   "cudaMemcpyPeerAsync");
      }
    };
    copies();
    cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    comm_->barrier(group_);
    const double seconds = seconds_of(copies);
    comm_->barrier(group_);
    return static_cast<double>(bytes * runs) / seconds;
  }

 private:
  struct Captured {
    Collective kind = Collective::all_reduce;
    int64_t bytes = 0, calls = 0;
    GraphExec graph;
  };

  void fill(const std::vector<float>& values) {
    cuda_check(cudaMemcpy(in_, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  const Instruction& instruction_of(Collective kind) const { return program_.instructions[static_cast<size_t>(kind)]; }
  BoundMove move_of(Collective kind, int64_t bytes) const {
    return {in_, out_, collective_sizes(kind, bytes, num_ranks_).count, DType::f32};
  }

  void call(Collective kind, int64_t bytes) {
    peers_.collective(instruction_of(kind), move_of(kind, bytes), stream_.get());
  }

  GraphExec capture(Collective kind, int64_t bytes, int64_t calls) {
    call(kind, bytes);  // the first call also sets up connections
    cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    return capture_graph(stream_.get(), [&] {
      for (int64_t i = 0; i < calls; ++i) call(kind, bytes);
    });
  }

  template <class Enqueue>
  double seconds_of(const Enqueue& enqueue) const {
    return cuda::seconds_of(stream_.get(), begin_, end_, enqueue);
  }

  const int rank_, num_ranks_;
  const Program program_;
  std::unique_ptr<Communicator> comm_;
  DeviceMemory arena_;
  std::byte *in_, *out_;  ///< the two halves of the arena
  CudaCommunicator peers_;
  Stream stream_;
  Event begin_, end_;
  Captured captured_;
  int group_ = -1;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<CollectiveTimer> make_cuda_collective_timer(std::shared_ptr<SharedMemory> memory, int rank,
                                                            int64_t most_bytes, double timeout_seconds) {
  return std::make_unique<cuda::CudaCollectiveTimer>(memory, rank, most_bytes, timeout_seconds);
}

}  // namespace trainctl
