// Cases of max_pool2d: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/pool_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs max_pool(const Inputs& in, const Attrs& attrs) {
  return pooled(in[0], attrs, [](const std::vector<double>& pixels, int64_t) {
    return *std::max_element(pixels.begin(), pixels.end());
  });
}

/// The place [h, w] of the first largest pixel of a window, row by row.
std::array<int64_t, 2> first_largest(const Tensor64& x, bool last, const Window& w, const Pixel& window) {
  double largest = 0;
  std::array<int64_t, 2> place{-1, -1};
  for (int64_t r = 0; r < w.kernel[0]; ++r) {
    for (int64_t s = 0; s < w.kernel[1]; ++s) {
      const int64_t h = window.h * w.stride[0] - w.before[0] + r * w.dilation[0],
                    v = window.w * w.stride[1] - w.before[1] + s * w.dilation[1];
      if (!is_inside(Images::of(x.shape, last), h, v)) continue;
      const double pixel = pixel_or_zero(x, last, window.n, window.c, h, v);
      if (place[0] >= 0 && pixel <= largest) continue;
      largest = pixel;
      place = {h, v};
    }
  }
  return place;
}

/// (dy, x) -> dx
Outputs max_pool_grad(const NaiveCall& call) {
  const bool last = is_channels_last(call.attrs);
  const Window w = Window::of(call.attrs);
  const Tensor64 &dy = call.in[0], &x = call.in[1];
  const Images y = Images::of(dy.shape, last);
  return {make(x.shape, [&](const Index& i) {
    const Pixel pixel = pixel_of(i, last);
    double sum = 0;
    for (int64_t p = 0; p < y.size[0]; ++p) {
      for (int64_t q = 0; q < y.size[1]; ++q) {
        if (first_largest(x, last, w, {pixel.n, pixel.c, p, q}) == std::array{pixel.h, pixel.w})
          sum += pixel_or_zero(dy, last, pixel.n, pixel.c, p, q);
      }
    }
    return sum;
  })};
}

/// Windows with gaps between their pixels, in addition to those of both pools.
std::vector<OpCase> max_pool2d_rows() {
  std::vector<OpCase> rows = pool_rows("max_pool2d", {});
  const auto add = [&](Images x, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil_mode, Images y) {
    for (const bool last : {false, true})
      rows.push_back({"max_pool2d",
                      {{.shape = x.shape(last), .distinct = true}},
                      in_format({{"kernel", kernel},
                                 {"stride", stride},
                                 {"padding", padding},
                                 {"dilation", dilation},
                                 {"ceil_mode", ceil_mode}},
                                last),
                      {y.shape(last)}});
  };
  add({2, 3, {9, 8}}, {3, 2}, {2, 1}, {1, 1, 1, 1}, {2, 3}, false, {2, 3, {4, 7}});
  add({2, 16, {7, 6}}, {2, 2}, {1, 2}, {1, 0, 0, 1}, {2, 3}, true, {2, 16, {6, 3}});
  add({1, 5, {9, 9}}, {3, 3}, {3, 2}, {0, 0, 0, 0}, {4, 1}, false, {1, 5, {1, 4}});
  return rows;
}

/// Windows in which many pixels are the largest.
std::vector<KernelCase> max_pool2d_kernels() {
  std::vector<KernelCase> calls;
  for (const bool last : {false, true}) {
    for (const int64_t channels : {1, 3, 16, 17}) {
      const Attrs attrs =
          in_format({{"kernel", Ints{3, 2}}, {"stride", Ints{2, 1}}, {"padding", Ints{1, 1, 1, 0}}}, last);
      CaseOperand x{Images{2, channels, {7, 5}}.shape(last)};
      const Shape dy = Images{2, channels, {4, 5}}.shape(last);
      calls.push_back({"max_pool2d_grad", {{dy}, x}, {unwritten(x.shape)}, attrs, 2e-6});
      x.fill = CaseOperand::Fill::number;
      for (const double number : {0.25, -1e30}) {
        x.number = number;
        calls.push_back({"max_pool2d_grad", {{dy}, x}, {unwritten(x.shape)}, attrs, 2e-6});
      }
    }
  }
  // More pixels in a window than a byte can number.
  for (const bool last : {false, true}) {
    const Attrs attrs = in_format({{"kernel", Ints{17, 16}}, {"stride", Ints{1, 2}}}, last);
    const Shape x = Images{1, 8, {19, 18}}.shape(last);
    calls.push_back({"max_pool2d_grad", {{Images{1, 8, {3, 2}}.shape(last)}, {x}}, {unwritten(x)}, attrs, 2e-6});
  }
  return calls;
}

}  // namespace

extern const OpCases max_pool2d_cases = {
    .rows = max_pool2d_rows(),
    .references = {{"max_pool2d", max_pool}},
    .rules =
        {{{"max_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}, {"stride", Ints{2, 2}}}},
          "nchw->ncpq",
          "hwpq",
          {{2, 3, 3, 3}}},
         {{"max_pool2d", {{{2, 7, 6, 3}}}, {{"kernel", Ints{3, 2}}, {"stride", Ints{2, 2}}, {"channels_last", true}}},
          "nhwc->npqc",
          "hwpq",
          {{2, 3, 3, 3}}}},
    .gradients = {{{"max_pool2d", {{{2, 3, 7, 6}}}, {{"kernel", Ints{3, 2}}}},
                   {"max_pool2d_grad ncpq,nchw->nchw sums pq"},
                   "each channel of an image is independent of the others",
                   "hwpq"}},
    .shape_errors =
        {{{"max_pool2d", {{{2, 3}}}, {{"kernel", Ints{2, 2}}}}, "max_pool2d needs images [n, c, h, w], but got [2, 3]"},
         {{"max_pool2d", {{{2, 3, 4, 4}}}, {{"kernel", Ints{5, 2}}}},
          "max_pool2d: a kernel of 5x2 does not fit into images of 4x4"},
         {{"max_pool2d", {{{2, 3, 4, 4}}}, {{"kernel", Ints{3, 2}}, {"padding", Ints{2, 0, 0, 0}}}},
          "padding of 2 is more than half of a kernel of 3, so a window could lie outside the image"},
         {{"max_pool2d",
           {{{2, 3, 2, 2}}},
           {{"kernel", Ints{2, 2}}, {"padding", Ints{2, 2, 0, 0}}, {"dilation", Ints{4, 1}}}},
          "all pixels of a window are in the padding, because a side of the image has only 2 pixels; lower dilation or "
          "padding"},
         {{"max_pool2d_grad", {{{2, 3, 3, 3}}, {{2, 3, 4, 4}}}, {{"kernel", Ints{2, 2}}, {"stride", Ints{2, 2}}}},
          "max_pool2d_grad: dy is [2, 3, 3, 3], expected [2, 3, 2, 2]"}},
    .kernels = max_pool2d_kernels(),
    .kernel_references = {{"max_pool2d_grad", max_pool_grad}},
    .layers = {{"max_pool2d", ", kernel: 2", {8, 3, 2, 1}, false, {3, 4, 3}},
               {"max_pool2d", ", kernel: 2, ceil_mode: true", {8, 3, 2, 2}, false, {3, 4, 3}},
               {"max_pool2d", ", kernel: [3, 2], stride: 1, padding: 1", {8, 3, 4, 4}, false, {3, 4, 3}},
               {"max_pool2d", ", kernel: 2, stride: 1, dilation: 2", {8, 3, 2, 1}, false, {3, 4, 3}}},
};

}  // namespace trainctl
