// Copies operands to the GPU, runs the kernel, and copies them back. Each operand has an exact allocation except for
// borders that must not change; scratch is poisoned.
#include "tests/op_cases/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/cuda_scratch.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

void must_succeed(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) check(false, what + ": " + cudaGetErrorString(status));
}

std::vector<Shape> shapes_of(const std::vector<TensorArg>& args) {
  std::vector<Shape> shapes;
  for (const TensorArg& arg : args) shapes.push_back(arg.shape);
  return shapes;
}

constexpr size_t kBorder = 64;
constexpr int kPoison = 0xff;  // a NaN in f32, bf16 and f16

/// One operand on the GPU: a border, the operand, a border.
class DeviceMemory {
 public:
  DeviceMemory(void* host, size_t bytes, size_t misaligned_by)
      : host_(host), bytes_(bytes), start_(256 + misaligned_by), all_(start_ + bytes + kBorder) {
    must_succeed(cudaMalloc(&memory_, all_), "cudaMalloc");
    must_succeed(cudaMemset(memory_, kPoison, all_), "cudaMemset");
  }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_) + start_; }
  void copy_in() const { must_succeed(cudaMemcpy(data(), host_, bytes_, cudaMemcpyHostToDevice), "copy to the GPU"); }
  void copy_out(const std::string& op) const {
    std::vector<unsigned char> all(all_);
    must_succeed(cudaMemcpy(all.data(), memory_, all_, cudaMemcpyDeviceToHost), "after the kernel of " + op);
    const auto kept = [](unsigned char c) { return c == kPoison; };
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(start_),
               end = start + static_cast<std::ptrdiff_t>(bytes_);
    check(std::all_of(all.begin(), start, kept) && std::all_of(end, all.end(), kept),
          "the kernel of " + op + " writes outside its operands");
    std::copy(start, end, static_cast<unsigned char*>(host_));
  }

 private:
  void* host_;
  size_t bytes_, start_, all_;
  void* memory_ = nullptr;
};

/// A prepared kernel and its memory.
class DeviceRun {
 public:
  DeviceRun(const std::string& op, const KernelCall& host, size_t misaligned_by) : op_(op), scalars_(host.scalars) {
    CudaKernelCall call;
    static_cast<KernelCall&>(call) = host;
    call.scratch = &scratch_;
    for (TensorArg& arg : call.in) arg.data = on_device(arg, misaligned_by);
    for (TensorArg& arg : call.out) arg.data = on_device(arg, misaligned_by);
    if (scalars_ != nullptr) {
      must_succeed(cudaMalloc(&device_scalars_, sizeof(StepScalars)), "cudaMalloc");
      call.scalars = static_cast<const StepScalars*>(device_scalars_);
    }
    const CudaKernelDef* kernel = find_cuda_kernel(op);
    if (kernel == nullptr) check(false, "no CUDA kernel of op " + op);
    run_ = kernel->prepare(call);
    check(static_cast<bool>(run_), "the kernel of " + op + " supports this call only in f32 and bf16");
    check(scratch_.bytes() <= most_cuda_scratch(get_kernel(op), shapes_of(call.in), shapes_of(call.out)),
          op + " asks for more scratch than most_cuda_scratch() says");
    if (scratch_.bytes() == 0) return;
    void* memory = nullptr;
    must_succeed(cudaMalloc(&memory, static_cast<size_t>(scratch_.bytes())), "cudaMalloc");
    scratch_.set_memory(memory);
  }
  ~DeviceRun() {
    cudaFree(device_scalars_);
    cudaFree(scratch_.memory());
  }
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;

  void operator()() {
    for (const auto& [host, memory] : operands_) memory->copy_in();
    if (scalars_ != nullptr) {
      must_succeed(cudaMemcpy(device_scalars_, scalars_, sizeof(StepScalars), cudaMemcpyHostToDevice), "copy scalars");
    }
    if (scratch_.bytes() > 0) {
      must_succeed(cudaMemset(scratch_.memory(), kPoison, static_cast<size_t>(scratch_.bytes())), "cudaMemset");
    }
    run_(nullptr);
    must_succeed(cudaGetLastError(), "launching " + op_);
    must_succeed(cudaDeviceSynchronize(), "running " + op_);
    for (const auto& [host, memory] : operands_) memory->copy_out(op_);
  }

 private:
  void* on_device(const TensorArg& arg, size_t misaligned_by) {
    auto& memory = operands_[arg.data];
    const auto bytes = static_cast<size_t>(arg.size() * byte_size(arg.dtype));
    const size_t by = misaligned_by % static_cast<size_t>(byte_size(arg.dtype)) == 0 ? misaligned_by : 0;
    if (memory == nullptr) memory = std::make_unique<DeviceMemory>(arg.data, bytes, by);
    return memory->data();
  }

  std::string op_;
  const StepScalars* scalars_;
  void* device_scalars_ = nullptr;
  CudaScratch scratch_;
  std::map<void*, std::unique_ptr<DeviceMemory>> operands_;
  CudaKernel run_;
};

class CudaDevice final : public CaseDevice {
 public:
  explicit CudaDevice(int misaligned_by) : misaligned_by_(static_cast<size_t>(misaligned_by)) {}
  std::function<void()> prepare(const std::string& op, const KernelCall& call) const override {
    return [run = std::make_shared<DeviceRun>(op, call, misaligned_by_)] { (*run)(); };
  }

 private:
  size_t misaligned_by_;
};

}  // namespace

bool gpu_is_here() {
  int count = 0;
  const bool here = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!here) skip_test("no GPU here");
  return here;
}

const CaseDevice& cuda_device(int misaligned_by) {
  static std::map<int, CudaDevice> devices;
  return devices.try_emplace(misaligned_by, misaligned_by).first->second;
}

}  // namespace trainctl
