// Makes the rows and references that the cases of max_pool2d and avg_pool2d share.
#include "tests/op_cases/pool_cases.h"

#include <algorithm>

namespace trainctl {

naive::Outputs pooled(const Tensor64& x, const Attrs& attrs,
                      const std::function<double(const std::vector<double>&, int64_t)>& f) {
  const bool last = is_channels_last(attrs);
  const Images in = Images::of(x.shape, last);
  const Window w = Window::of(attrs);
  const Images out{in.n, in.c, {w.count(0, in.size[0]), w.count(1, in.size[1])}};
  return {naive::make(out.shape(last), [&](const naive::Index& i) {
    const naive::Pixel y = naive::pixel_of(i, last);
    const int64_t top = y.h * w.stride[0] - w.before[0], left = y.w * w.stride[1] - w.before[1];
    std::vector<double> pixels;
    int64_t with_padding = 0;
    for (int64_t h = top; h < std::min(top + w.reach(0), in.size[0] + w.after[0]); h += w.dilation[0]) {
      for (int64_t v = left; v < std::min(left + w.reach(1), in.size[1] + w.after[1]); v += w.dilation[1]) {
        ++with_padding;
        if (naive::is_inside(in, h, v)) pixels.push_back(naive::pixel_or_zero(x, last, y.n, y.c, h, v));
      }
    }
    return f(pixels, with_padding);
  })};
}

std::vector<OpCase> pool_rows(const std::string& op, const Attrs& more) {
  std::vector<OpCase> rows;
  const auto add = [&](Images x, Ints kernel, Ints stride, Ints padding, bool ceil_mode, Images y) {
    Attrs attrs = more;
    attrs.set("kernel", std::move(kernel));
    attrs.set("stride", std::move(stride));
    attrs.set("padding", std::move(padding));
    attrs.set("ceil_mode", ceil_mode);
    for (const bool last : {false, true})
      rows.push_back({op, {{.shape = x.shape(last), .distinct = true}}, in_format(attrs, last), {y.shape(last)}});
  };
  add({4, 6, {6, 4}}, {2, 2}, {2, 2}, {0, 0, 0, 0}, false, {4, 6, {3, 2}});
  add({3, 5, {7, 9}}, {3, 2}, {2, 3}, {1, 1, 1, 0}, false, {3, 5, {4, 3}});
  add({2, 17, {8, 7}}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, {2, 17, {4, 4}});
  add({2, 16, {7, 6}}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, {2, 16, {4, 3}});
  add({2, 3, {5, 5}}, {2, 2}, {1, 1}, {0, 0, 0, 0}, false, {2, 3, {4, 4}});
  add({1, 1, {1, 1}}, {1, 1}, {1, 1}, {0, 0, 0, 0}, false, {1, 1, {1, 1}});
  add({2, 67, {3, 4}}, {3, 4}, {1, 1}, {0, 0, 0, 0}, false, {2, 67, {1, 1}});
  add({2, 3, {7, 7}}, {2, 2}, {3, 4}, {0, 0, 0, 0}, false, {2, 3, {2, 2}});
  add({2, 3, {6, 8}}, {3, 3}, {2, 2}, {0, 0, 1, 1}, true, {2, 3, {3, 5}});
  add({2, 4, {5, 6}}, {3, 3}, {3, 3}, {1, 1, 1, 1}, true, {2, 4, {2, 3}});
  return rows;
}

}  // namespace trainctl
