// Copies the rows of the input's window into the output, and fills the elements around it.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/error.h"
#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/slice/window.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastSliceElements = 32768;  ///< below this, waking a thread takes longer than the work

/// The dims of a window without allocations: all but the last iterate over rows.
class WindowRows {
 public:
  explicit WindowRows(const SliceWindow& window) : row_(window.dims.back()), fill_(window.fill) {
    check(window.dims.size() <= cpu::kMaxDims, "CPU kernels take tensors of up to 8 dims that cannot be merged");
    outer_ = static_cast<int>(window.dims.size()) - 1;
    std::copy_n(window.dims.begin(), outer_, dims_.begin());
    int64_t stride = row_.in;
    for (int d = outer_ - 1; d >= 0; --d) {
      strides_[d] = stride;
      stride *= dims_[d].in;
      rows_ *= dims_[d].out;
    }
  }

  void run(const float* x, float* y, int threads) const {
    cpu::over_range(threads, rows_, kLeastSliceElements / std::max<int64_t>(1, row_.out),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t r = begin; r < end; ++r) write(r, x, y + r * row_.out);
                    });
  }

 private:
  void write(int64_t row, const float* x, float* to) const {
    for (int d = outer_ - 1; d >= 0; --d) {
      const int64_t place = row % dims_[d].out - dims_[d].out_begin;
      row /= dims_[d].out;
      if (place < 0 || place >= dims_[d].count) {
        std::fill_n(to, row_.out, fill_);
        return;
      }
      x += (dims_[d].in_begin + place) * strides_[d];
    }
    std::fill_n(to, row_.out_begin, fill_);
    if (row_.count > 0)
      std::memcpy(to + row_.out_begin, x + row_.in_begin, static_cast<size_t>(row_.count) * sizeof *x);
    std::fill(to + row_.out_begin + row_.count, to + row_.out, fill_);
  }

  int outer_;
  std::array<WindowDim, cpu::kMaxDims> dims_;
  std::array<int64_t, cpu::kMaxDims> strides_{};
  WindowDim row_;
  int64_t rows_ = 1;
  float fill_;
};

CpuKernel copy_window(const KernelCall& call, const SliceWindow& window) {
  static_assert(sizeof(float) == sizeof(int32_t));
  check(byte_size(call.in[0].dtype) == sizeof(float), "CPU kernels move elements of 4 bytes");
  return [rows = WindowRows(window), x = call.in[0].as<float>(), y = call.out[0].as<float>(), threads = call.threads] {
    rows.run(x, y, threads);
  };
}

CpuKernel prepare_slice(const KernelCall& call) { return copy_window(call, window_of_slice(call)); }
CpuKernel prepare_pad(const KernelCall& call) { return copy_window(call, window_of_pad(call)); }

}  // namespace

extern const CpuKernels slice_cpu = {{"slice", prepare_slice}, {"pad", prepare_pad}};

}  // namespace trainctl
