// Times kernels, and in the same run the limits of the device: the rates of matrix products and of memory.
#include "cli/measure/op_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/ops/named_ops.h"
#include "engine/ops/random.h"
#include "engine/train/profile/work.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastMemory = int64_t{64} << 20, kMostMemory = int64_t{1} << 30;
constexpr int64_t kMostCopies = 256;
constexpr int kLimitSamples = 10;
constexpr int64_t kRandomBytes = 8'000'000;  ///< largest random part of an operand, which repeats to fill it

/// Random, since a GPU multiplies zeros faster than other numbers: it draws less power and clocks higher.
std::vector<std::byte> random_data(const TensorInfo& info, KernelExample::Fill fill, int64_t below, uint64_t key) {
  const int64_t count = std::min(num_elements(info.shape), kRandomBytes / byte_size(info.dtype));
  std::vector<std::byte> data(static_cast<size_t>(count * byte_size(info.dtype)));
  const auto put = [&](int64_t i, const auto& value) {
    std::memcpy(&data[static_cast<size_t>(i) * sizeof value], &value, sizeof value);
  };
  for (int64_t i = 0; i < count; i += 4) {
    const Philox4 words = philox(key, static_cast<uint64_t>(i), 0);
    for (int64_t j = i; j < std::min(i + 4, count); ++j) {
      const float u = static_cast<float>(words.v[j - i] >> 8) * 0x1p-24f;
      const float value = fill == KernelExample::Fill::statistics ? 0.5f + u : 3.4f * u - 1.7f;
      if (info.dtype == DType::i32) {
        put(j, static_cast<int32_t>(std::min(static_cast<int64_t>(u * static_cast<float>(below)), below - 1)));
      } else if (is_half(info.dtype)) {
        put(j, info.dtype == DType::bf16 ? to_bf16(value) : to_f16(value));
      } else {
        put(j, value);
      }
    }
  }
  return data;
}

void write_repeated(KernelTimer& timer, std::byte* to, int64_t bytes, const std::vector<std::byte>& data) {
  const auto all = static_cast<int64_t>(data.size());
  for (int64_t at = 0; at < bytes; at += all) timer.write(to + at, data.data(), std::min(all, bytes - at));
}

TensorArg argument(const TensorInfo& info, std::byte* data, bool accumulate) {
  return {data, info.dtype, info.shape, info.shape, Shape(info.shape.size(), 0), accumulate};
}

int64_t operand_bytes(const OpRequest& request) {
  int64_t bytes = 0;
  for (const TensorInfo& info : request.inputs) bytes += bytes_of(info);
  for (const TensorInfo& info : request.outputs) bytes += bytes_of(info);
  return std::max<int64_t>(bytes, 1);
}

}  // namespace

double OpResult::of_limit() const {
  const double compute = peak_flops > 0 ? work.flops / peak_flops : 0;
  const double memory = memory_bytes > 0 ? work.bytes / memory_bytes : 0;
  return std::max(compute, memory) / seconds.median;
}

std::vector<KernelCall> OpBench::calls(const OpRequest& request, int copies) {
  std::vector<std::vector<std::byte>> data;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    data.push_back(random_data(request.inputs[i], request.fills[i], request.below, i + 1));
  }
  std::vector<KernelCall> calls(static_cast<size_t>(copies));
  for (KernelCall& call : calls) {
    call.attrs = request.attrs;
    call.scalars = &scalars_;
    call.seed = 1;
    for (size_t i = 0; i < request.inputs.size() && request.example.reads_inputs; ++i) {
      std::byte* memory = timer_.allocate(bytes_of(request.inputs[i]));
      write_repeated(timer_, memory, bytes_of(request.inputs[i]), data[i]);
      call.in.push_back(argument(request.inputs[i], memory, false));
    }
    for (size_t i = 0; i < request.outputs.size(); ++i) {
      const TensorInfo& info = request.outputs[i];
      call.out.push_back(argument(info, timer_.allocate(bytes_of(info)), request.accumulates(i)));
    }
  }
  return calls;
}

std::vector<double> OpBench::samples(const OpRequest& request, int copies, const SampleOptions& options) {
  timer_.clear();
  try {
    const std::vector<KernelCall> all = calls(request, copies);
    std::vector<double> seconds = timer_.time(request.name(), all, options);
    timer_.clear();
    return seconds;
  } catch (const InternalError& error) {
    // Operands that a plan would never produce.
    timer_.clear();
    throw SpecError({}, "op",
                    request.name() + " does not run with " + shapes_text(request.inputs) + " " +
                        to_string(request.attrs) + ": " + error.what(),
                    request.example.what);
  }
}

void OpBench::set_limits(const ProductRates& products, BytesPerSecond memory) {
  peaks_ = {{{DType::f32, false}, products.fp32.value},
            {{DType::f32, true}, products.tf32.value},
            {{DType::bf16, false}, products.bf16.value}};
  memory_bytes_ = memory.value;
}

OpResult OpBench::run(const OpRequest& request) {
  OpResult result;
  result.request = request;
  result.work = kernel_cost(*request.kernel, request.inputs, request.outputs, request.attrs);
  result.peak_flops = result.work.flops > 0 ? peak_flops(request.type) : 0;
  const double compute = result.peak_flops > 0 ? result.work.flops / result.peak_flops : 0;
  if (result.work.bytes / memory_bytes() > compute) {
    // Cycles through more memory than the caches hold: as in a step, operands are not in the cache.
    const int64_t wanted = std::min(2 * timer_.cache_bytes(), kMostMemory), bytes = operand_bytes(request);
    result.copies = static_cast<int>(std::clamp<int64_t>(wanted / bytes + 1, 1, kMostCopies));
    if (result.copies * bytes >= wanted) result.memory_bytes = memory_bytes();
  }
  result.seconds = spread_of(samples(request, result.copies, options_));
  return result;
}

double OpBench::peak_flops(const BenchType& type) {
  const auto [found, added] = peaks_.try_emplace({type.dtype, type.tf32}, 0.0);
  if (!added || !timer_.has_kernel(matmul_op.name)) return found->second;
  SampleOptions options = options_;
  options.samples = std::min(options.samples, kLimitSamples);
  double best = 0;
  // Larger products follow only if the last took less than a few milliseconds.
  for (const int64_t n : {256, 512, 1024, 2048, 4096, 8192}) {
    const std::string shape = std::to_string(n) + "x" + std::to_string(n);
    double least = 1;
    for (const char* attrs : {"", "transpose_b=true"}) {
      const OpRequest product = make_op_request(matmul_op.name, shape + "," + shape, attrs, type);
      const std::vector<double> seconds = samples(product, 1, options);
      least = std::min(least, *std::min_element(seconds.begin(), seconds.end()));
    }
    const auto m = static_cast<double>(n);
    best = std::max(best, 2 * m * m * m / least);
    if (least > 2e-3) break;
  }
  return peaks_[{type.dtype, type.tf32}] = best;
}

double OpBench::memory_bytes() {
  if (memory_bytes_ > 0) return memory_bytes_;
  timer_.clear();
  SampleOptions options = options_;
  options.samples = std::min(options.samples, kLimitSamples);
  memory_bytes_ = timer_.memory_rate(std::min(std::max(kLeastMemory, timer_.cache_bytes()), kMostMemory / 2), options);
  timer_.clear();
  return memory_bytes_;
}

}  // namespace trainctl
