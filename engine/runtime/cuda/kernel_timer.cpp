// Kernels of a GPU, timed by events around graphs of many launches: the host's launch overhead does not count.
#include "engine/runtime/measure/kernel_timer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/runtime/cuda/capture.h"
#include "engine/runtime/cuda/require_kernels.h"
#include "engine/runtime/measure/sampling.h"

namespace trainctl {
namespace cuda {
namespace {

constexpr int64_t kMostLaunches = 2000;  ///< most launches in one graph

class CudaKernelTimer final : public KernelTimer {
 public:
  CudaKernelTimer() {
    cuda_check(cudaSetDevice(0), "cudaSetDevice");
    cuda_check(cudaGetDeviceProperties(&properties_, 0), "cudaGetDeviceProperties");
    stream_ = make_stream(false);
    begin_ = make_timed_event();
    end_ = make_timed_event();
    scalars_ = make_device_memory(sizeof(StepScalars));
  }

  std::string device() const override { return properties_.name; }
  int64_t cache_bytes() const override { return properties_.l2CacheSize; }
  bool has_kernel(std::string_view name) const override { return find_cuda_kernel(name) != nullptr; }

  std::byte* allocate(int64_t bytes) override {
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (static_cast<int64_t>(free) < bytes) {
      throw EnvError("the GPU has only " + format_bytes(static_cast<int64_t>(free)) + " free, but " +
                     format_bytes(bytes) + " are needed; nvidia-smi shows which processes use the rest");
    }
    blocks_.push_back(make_device_memory(bytes));
    return static_cast<std::byte*>(blocks_.back().get());
  }

  void clear() override { blocks_.clear(); }
  void write(void* to, const void* from, int64_t bytes) override {
    cuda_check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  std::vector<double> time(std::string_view name, std::span<const KernelCall> calls,
                           const SampleOptions& options) override {
    CudaScratch scratch;
    std::vector<CudaKernel> kernels;
    for (const KernelCall& host_call : calls) {
      CudaKernelCall call;
      static_cast<KernelCall&>(call) = host_call;
      write(scalars_.get(), host_call.scalars, sizeof(StepScalars));
      call.scalars = static_cast<const StepScalars*>(scalars_.get());
      call.scratch = &scratch;
      kernels.push_back(find_cuda_kernel(name)->prepare(call));
    }
    const DeviceMemory memory = make_device_memory(scratch.bytes());
    scratch.set_memory(memory.get());
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (const CudaKernel& kernel : kernels) kernel(stream_.get());  // lets libraries load what they load on first use
    cuda_check(cudaStreamSynchronize(stream_.get()), std::string(name).c_str());

    int64_t captured = 0;
    GraphExec graph;
    return take_samples(
        [&](int64_t runs) {
          const int64_t launches = std::min(runs, kMostLaunches);
          if (launches != captured) graph = capture(kernels, launches);
          captured = launches;
          const int64_t repetitions = (runs + launches - 1) / launches;
          const double seconds = seconds_of([&] {
            for (int64_t i = 0; i < repetitions; ++i)
              cuda_check(cudaGraphLaunch(graph.get(), stream_.get()), "cudaGraphLaunch");
          });
          return seconds * static_cast<double>(runs) / static_cast<double>(launches * repetitions);
        },
        options);
  }

  double memory_rate(int64_t bytes, const SampleOptions& options) override {
    std::byte *from = allocate(bytes), *to = allocate(bytes);
    const std::vector<double> seconds = take_samples(
        [&](int64_t runs) {
          return seconds_of([&] {
            for (int64_t i = 0; i < runs; ++i) {
              cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.get()),
                         "cudaMemcpyAsync");
            }
          });
        },
        options);
    return 2.0 * static_cast<double>(bytes) / *std::min_element(seconds.begin(), seconds.end());
  }

 private:
  /// Launches of all kernels, round robin.
  GraphExec capture(const std::vector<CudaKernel>& kernels, int64_t launches) const {
    return capture_graph(stream_.get(), [&] {
      for (int64_t i = 0; i < launches; ++i) kernels[static_cast<size_t>(i) % kernels.size()](stream_.get());
    });
  }

  template <class Enqueue>
  double seconds_of(const Enqueue& enqueue) const {
    return cuda::seconds_of(stream_.get(), begin_, end_, enqueue);
  }

  cudaDeviceProp properties_{};
  Stream stream_;
  Event begin_, end_;
  DeviceMemory scalars_;
  std::vector<DeviceMemory> blocks_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<KernelTimer> make_cuda_kernel_timer() {
  int devices = 0;
  cuda_check(cudaGetDeviceCount(&devices), "no GPU to time kernels on: cudaGetDeviceCount");
  if (devices == 0) throw EnvError("no GPU to time kernels on: CUDA finds none; use --device cpu");
  cuda::require_kernels_for_device();
  return std::make_unique<cuda::CudaKernelTimer>();
}

}  // namespace trainctl
