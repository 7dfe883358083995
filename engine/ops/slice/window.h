// The part of an output that an input's elements fill: for slices, paddings and ranks that hold a part of either.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/ops/kernel.h"

namespace trainctl {

/// One dim: `count` elements of the input from in_begin on go to the output from out_begin on.
struct WindowDim {
  int64_t in = 1, out = 1;  ///< sizes
  int64_t in_begin = 0, out_begin = 0, count = 1;

  bool is_whole() const { return in == count && out == count; }
};

struct SliceWindow {
  std::vector<WindowDim> dims;  ///< outermost first, at least one; none but the first is whole
  float fill = 0;               ///< elements outside
};

/// Element i of the whole input is element i + shift of the whole output.
inline SliceWindow window_of(const TensorArg& in, const TensorArg& out, const Ints& shift) {
  SliceWindow window;
  for (size_t d = 0; d < shift.size(); ++d) {
    const int64_t in_at = in.offset[d] + shift[d], out_at = out.offset[d];
    const int64_t first = std::max(in_at, out_at), end = std::min(in_at + in.shape[d], out_at + out.shape[d]);
    WindowDim dim{in.shape[d], out.shape[d], 0, 0, 0};
    if (first < end) dim = {in.shape[d], out.shape[d], first - in_at, first - out_at, end - first};
    if (window.dims.empty() || !dim.is_whole()) {
      window.dims.push_back(dim);
      continue;
    }
    WindowDim& outer = window.dims.back();  // rows of whole dims are contiguous
    outer.in *= dim.count;
    outer.out *= dim.count;
    outer.in_begin *= dim.count;
    outer.out_begin *= dim.count;
    outer.count *= dim.count;
  }
  return window;
}

inline SliceWindow window_of_slice(const KernelCall& call) {
  Ints shift = call.attrs.ints("begin");
  for (int64_t& s : shift) s = -s;
  return window_of(call.in[0], call.out[0], shift);
}

inline SliceWindow window_of_pad(const KernelCall& call) {
  SliceWindow window = window_of(call.in[0], call.out[0], call.attrs.ints("before"));
  window.fill = static_cast<float>(call.attrs.number("value", 0.0));
  return window;
}

}  // namespace trainctl
