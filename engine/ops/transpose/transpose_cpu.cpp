// y[i_perm[0], i_perm[1], ..] = x[i_0, i_1, ..]: dim d of y is dim perm[d] of x.
#include <cstring>

#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// to[j, i] = from[i, j] for one block; within a 16x16 tile both sides use whole cache lines.
void transpose_2d(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int64_t cols) {
  constexpr int64_t kTile = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const int64_t c1 = std::min(cols, c0 + kTile);
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = c0; c < c1; ++c) to[r * to_stride + c] = from[c * from_stride + r];
      }
    }
  }
}

/// Merges adjacent dims; copies whole rows if the innermost dim stays, otherwise transposes matrices of the two dims
/// that are contiguous in the input and the output.
CpuKernel prepare_transpose(const KernelCall& call) {
  const TensorArg& in = call.in[0];
  const TensorArg& out = call.out[0];
  const Ints perm = call.attrs.ints("perm");
  const Shape in_strides = cpu::strides_of(in.shape);
  const Shape out_strides = cpu::strides_of(out.shape);
  cpu::Loops<2> merged;  // in the output's order
  for (size_t d = 0; d < perm.size(); ++d) {
    const auto from = static_cast<size_t>(perm[d]);
    merged.add(in.shape[from], {in_strides[from], out_strides[d]});
  }
  std::array<int64_t, 2> inner{};
  const int64_t n = merged.take_inner(inner);
  const auto* x = in.as<float>();
  auto* y = out.as<float>();
  const int threads = call.threads;
  if (inner[0] == 1 || n == 1) {  // copies whole rows
    return [=] {
      cpu::over_outermost(threads, merged, n, [&](const std::array<int64_t, 2>& at) {
        std::memcpy(y + at[1], x + at[0], static_cast<size_t>(n) * sizeof(float));
      });
    };
  }
  // The loop that reads contiguously and the innermost loop, which writes contiguously, form the blocks.
  cpu::Loops<2> outer;
  int64_t rows = 1, to_stride = 0;
  for (int d = 0; d < merged.ndim; ++d) {
    if (merged.stride[d][0] == 1 && rows == 1) {
      rows = merged.size[d];
      to_stride = merged.stride[d][1];
    } else {
      outer.add(merged.size[d], merged.stride[d]);
    }
  }
  return [=] {
    if (outer.ndim > 0) {
      cpu::over_outermost(threads, outer, rows * n, [&](const std::array<int64_t, 2>& at) {
        transpose_2d(x + at[0], inner[0], y + at[1], to_stride, rows, n);
      });
      return;
    }
    cpu::over_rows(threads, rows, n, [&](int64_t begin, int64_t end) {
      transpose_2d(x + begin, inner[0], y + begin * to_stride, to_stride, end - begin, n);
    });
  };
}

}  // namespace

extern const CpuKernels transpose_cpu = {{"transpose", prepare_transpose}};

}  // namespace trainctl
