// y = the largest of x over dims; dx = dy / count where x = y, count = the number of such elements.
#include <algorithm>
#include <array>

#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// The larger one; NaN if either is. Branch-free, so that loops over it are vectorised.
inline float larger(float a, float b) { return (static_cast<int>(b > a) | static_cast<int>(b != b)) != 0 ? b : a; }

/// Loops over the kept dims (offsets in x and in y) and over the reduced ones (in x). In the innermost dim of x, either
/// `row` elements are reduced into one or `columns` are kept.
struct Reduction {
  cpu::Loops<2> kept;
  cpu::Loops<1> reduced;
  int64_t row = 0, columns = 1;

  Reduction(const Shape& x, const Shape& y, const Ints& dims) {
    const Shape strides = cpu::strides_of(x), out = cpu::kept_strides(x, y, dims);
    for (size_t d = 0; d < x.size(); ++d) {
      const bool is_reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
      if (is_reduced) reduced.add(x[d], {strides[d]});
      if (!is_reduced) kept.add(x[d], {strides[d], out[d]});
    }
    if (reduced.ndim > 0 && reduced.stride[reduced.ndim - 1][0] == 1) {
      std::array<int64_t, 1> inner{};
      row = reduced.take_inner(inner);
    } else {
      std::array<int64_t, 2> inner{};
      columns = kept.take_inner(inner);
    }
  }
};

float largest_of_row(const float* x, int64_t n, float top) {
  constexpr int kLanes = 16;
  int64_t i = 0;
  if (n >= kLanes) {
    float lane[kLanes];
    for (int j = 0; j < kLanes; ++j) lane[j] = x[j];
    for (i = kLanes; i + kLanes <= n; i += kLanes)
      for (int j = 0; j < kLanes; ++j) lane[j] = larger(lane[j], x[i + j]);
    for (int j = 0; j < kLanes; ++j) top = larger(top, lane[j]);
  }
  for (; i < n; ++i) top = larger(top, x[i]);
  return top;
}

CpuKernel prepare_reduce_max(const KernelCall& call) {
  const TensorArg &in = call.in[0], &out = call.out[0];
  return [r = Reduction(in.shape, out.shape, call.attrs.ints("dims")), x = in.as<float>(), y = out.as<float>()] {
    r.kept.run([&](const std::array<int64_t, 2>& at) {
      const float* from = x + at[0];
      float* to = y + at[1];
      if (r.row > 0) {
        float top = *from;
        r.reduced.run([&](const std::array<int64_t, 1>& of) { top = largest_of_row(from + of[0], r.row, top); });
        *to = top;
        return;
      }
      std::copy_n(from, r.columns, to);
      r.reduced.run([&](const std::array<int64_t, 1>& of) {
        const float* row = from + of[0];
        for (int64_t i = 0; i < r.columns; ++i) to[i] = larger(to[i], row[i]);
      });
    });
  };
}

/// dx: dy is divided equally among the elements that equal the maximum, as in PyTorch's amax.
CpuKernel prepare_reduce_max_grad(const KernelCall& call) {
  const TensorArg &of_y = call.in[0], &in = call.in[1];
  return [r = Reduction(in.shape, of_y.shape, call.attrs.ints("dims")), dy0 = of_y.as<float>(), x0 = in.as<float>(),
          y0 = call.in[2].as<float>(), dx0 = call.out[0].as<float>()] {
    r.kept.run([&](const std::array<int64_t, 2>& at) {
      const float *x = x0 + at[0], *y = y0 + at[1], *dy = dy0 + at[1];
      float* dx = dx0 + at[0];
      if (r.row > 0) {
        const float top = *y;
        int64_t count = 0;
        r.reduced.run([&](const std::array<int64_t, 1>& of) {
          int32_t of_row = 0;
          for (int64_t i = of[0]; i < of[0] + r.row; ++i) of_row += x[i] == top ? 1 : 0;
          count += of_row;
        });
        const float share = *dy / static_cast<float>(std::max<int64_t>(1, count));
        r.reduced.run([&](const std::array<int64_t, 1>& of) {
          for (int64_t i = of[0]; i < of[0] + r.row; ++i) dx[i] = x[i] == top ? share : 0.0f;
        });
        return;
      }
      constexpr int64_t kTile = 256;
      for (int64_t first = 0; first < r.columns; first += kTile) {
        const int64_t columns = std::min(kTile, r.columns - first);
        float share[kTile] = {};
        r.reduced.run([&](const std::array<int64_t, 1>& of) {
          for (int64_t i = 0; i < columns; ++i) share[i] += x[of[0] + first + i] == y[first + i] ? 1.0f : 0.0f;
        });
        for (int64_t i = 0; i < columns; ++i) share[i] = dy[first + i] / std::max(1.0f, share[i]);
        r.reduced.run([&](const std::array<int64_t, 1>& of) {
          const int64_t row = of[0] + first;
          for (int64_t i = 0; i < columns; ++i) dx[row + i] = x[row + i] == y[first + i] ? share[i] : 0.0f;
        });
      }
    });
  };
}

}  // namespace

extern const CpuKernels reduce_max_cpu = {{"reduce_max", prepare_reduce_max},
                                          {"reduce_max_grad", prepare_reduce_max_grad}};

}  // namespace trainctl
