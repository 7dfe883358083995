// Cases of conv2d: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Window window_of(const Attrs& attrs, const Shape& weight) {
  Window window = Window::of(attrs);
  window.kernel = {weight[2], weight[3]};
  return window;
}

/// The pixel of x in channel c under pixel (r, s) of window (p, q); 0 in the padding.
double under_window(const Tensor64& x, bool last, const Window& w, int64_t n, int64_t c, std::array<int64_t, 2> at,
                    std::array<int64_t, 2> pixel) {
  std::array<int64_t, 2> place{};
  for (size_t d = 0; d < 2; ++d) place[d] = at[d] * w.stride[d] + pixel[d] * w.dilation[d] - w.before[d];
  return pixel_or_zero(x, last, n, c, place[0], place[1]);
}

/// The convolution by its definition: each output is the sum over the pixels under its window.
Outputs conv2d(const Inputs& in, const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  const Shape& weight = in[1].shape;
  const Window w = window_of(attrs, weight);
  const Images x = Images::of(in[0].shape, last);
  const int64_t k_of_group = weight[0] / attrs.integer("groups", 1);
  const Images y{x.n, weight[0], {w.count(0, x.size[0]), w.count(1, x.size[1])}};
  const Epilogue epilogue = epilogue_of(attrs);
  const Strides of_x = Strides::of(x, last);
  const Tensor64 sums = make(y.shape(last), [&](const Index& i) {
    const Pixel at = pixel_of(i, last);
    double sum = epilogue.bias ? in[2].values[static_cast<size_t>(at.c)] : 0;
    // Offsets are faster than indices, and finite differences call this function for each element of each case.
    const double* factor = in[1].values.data() + at.c * weight[1] * weight[2] * weight[3];
    const double* image = in[0].values.data() + at.n * of_x.n + at.c / k_of_group * weight[1] * of_x.c;
    for (int64_t c = 0; c < weight[1]; ++c) {
      for (int64_t r = 0; r < weight[2]; ++r) {
        const int64_t h = at.h * w.stride[0] + r * w.dilation[0] - w.before[0];
        for (int64_t s = 0; s < weight[3]; ++s, ++factor) {
          const int64_t along = at.w * w.stride[1] + s * w.dilation[1] - w.before[1];
          if (is_inside(x, h, along)) sum += image[c * of_x.c + h * of_x.h + along * of_x.w] * *factor;
        }
      }
    }
    return sum;
  });
  Attrs after = attrs;
  after.erase("bias");
  return with_epilogue(sums, in, after);
}

/// (x, dy) -> dw, and with bias_grad db.
Outputs conv2d_weight_grad(const NaiveCall& call) {
  const bool last = is_channels_last(call.attrs);
  const Images x = Images::of(call.in[0].shape, last), dy = Images::of(call.in[1].shape, last);
  const int64_t groups = call.attrs.integer("groups", 1);
  const Window w = Window::of(call.attrs);
  const auto sum_over_windows = [&](auto term) {
    double sum = 0;
    for (int64_t n = 0; n < dy.n; ++n)
      for (int64_t p = 0; p < dy.size[0]; ++p)
        for (int64_t q = 0; q < dy.size[1]; ++q) sum += term(n, p, q);
    return sum;
  };
  Outputs out = {make({dy.c, x.c / groups, w.kernel[0], w.kernel[1]}, [&](const Index& i) {
    const int64_t c = i[0] / (dy.c / groups) * (x.c / groups) + i[1];
    return sum_over_windows([&](int64_t n, int64_t p, int64_t q) {
      return under_window(call.in[0], last, w, n, c, {p, q}, {i[2], i[3]}) *
             pixel_or_zero(call.in[1], last, n, i[0], p, q);
    });
  })};
  if (!epilogue_of(call.attrs).bias_grad) return out;
  out.push_back(make({dy.c}, [&](const Index& i) {
    return sum_over_windows(
        [&](int64_t n, int64_t p, int64_t q) { return pixel_or_zero(call.in[1], last, n, i[0], p, q); });
  }));
  return out;
}

/// Each pixel of x adds its multiple of the window to y.
Outputs conv_transpose2d(const Inputs& in, const Attrs& attrs) {
  const bool last = is_channels_last(attrs);
  const Shape& weight = in[1].shape;
  const Window w = window_of(attrs, weight);
  const Images x = Images::of(in[0].shape, last);
  const Ints size = attrs.ints("size");
  const int64_t groups = attrs.integer("groups", 1);
  const Images y{x.n, weight[1] * groups, {size[0], size[1]}};
  const Strides of_x = Strides::of(x, last), of_y = Strides::of(y, last);
  Tensor64 out{y.shape(last), std::vector<double>(static_cast<size_t>(num_elements(y.shape(last))), 0.0)};
  for (int64_t n = 0; n < x.n; ++n)
    for (int64_t k = 0; k < x.c; ++k)
      for (int64_t p = 0; p < x.size[0]; ++p)
        for (int64_t q = 0; q < x.size[1]; ++q) {
          const double pixel = in[0].values[static_cast<size_t>(n * of_x.n + k * of_x.c + p * of_x.h + q * of_x.w)];
          const double* factor = in[1].values.data() + k * weight[1] * weight[2] * weight[3];
          const int64_t first = k / (x.c / groups) * weight[1];
          for (int64_t c = first; c < first + weight[1]; ++c)
            for (int64_t r = 0; r < weight[2]; ++r)
              for (int64_t s = 0; s < weight[3]; ++s, ++factor) {
                const int64_t h = p * w.stride[0] + r * w.dilation[0] - w.before[0];
                const int64_t along = q * w.stride[1] + s * w.dilation[1] - w.before[1];
                if (!is_inside(y, h, along)) continue;
                out.values[static_cast<size_t>(n * of_y.n + c * of_y.c + h * of_y.h + along * of_y.w)] +=
                    pixel * *factor;
              }
        }
  return {out};
}

Attrs conv(Ints stride, Ints padding, Ints dilation = {1, 1}, int64_t groups = 1) {
  return {{"stride", std::move(stride)},
          {"padding", std::move(padding)},
          {"dilation", std::move(dilation)},
          {"groups", groups}};
}

const Attrs kPlain = conv({1, 1}, {0, 0, 0, 0});

std::vector<OpCase> conv2d_rows() {
  std::vector<OpCase> conv2d_rows;
  const auto add = [&](Images x, Shape weight, const Attrs& attrs, Images y) {
    for (const bool last : {false, true}) {
      conv2d_rows.push_back({"conv2d", {{x.shape(last)}, {weight}}, in_format(attrs, last), {y.shape(last)}, 5e-6});
    }
  };
  add({2, 3, {7, 5}}, {4, 3, 3, 3}, kPlain, {2, 4, {5, 3}});
  add({1, 1, {1, 1}}, {1, 1, 1, 1}, kPlain, {1, 1, {1, 1}});
  add({4, 1, {9, 9}}, {6, 1, 5, 5}, conv({1, 1}, {2, 2, 2, 2}), {4, 6, {9, 9}});
  add({3, 2, {7, 8}}, {5, 2, 3, 2}, conv({2, 2}, {1, 0, 2, 1}), {3, 5, {3, 5}});
  add({2, 4, {11, 10}}, {6, 4, 3, 3}, conv({3, 2}, {1, 1, 1, 1}, {2, 1}), {2, 6, {3, 5}});
  add({2, 3, {9, 9}}, {4, 3, 3, 3}, conv({1, 3}, {2, 2, 2, 2}, {2, 2}), {2, 4, {9, 3}});
  add({4, 6, {5, 5}}, {4, 3, 3, 2}, conv({1, 1}, {1, 1, 0, 1}, {1, 1}, 2), {4, 4, {5, 5}});
  add({2, 6, {7, 6}}, {6, 1, 3, 3}, conv({1, 1}, {1, 1, 1, 1}, {1, 1}, 6), {2, 6, {7, 6}});
  add({2, 3, {5, 6}}, {12, 1, 3, 3}, conv({2, 2}, {1, 1, 1, 1}, {1, 1}, 3), {2, 12, {3, 3}});
  add({3, 12, {4, 5}}, {8, 12, 1, 1}, kPlain, {3, 8, {4, 5}});
  add({2, 17, {5, 5}}, {16, 17, 1, 1}, conv({2, 2}, {0, 0, 0, 0}), {2, 16, {3, 3}});
  add({4, 3, {5, 4}}, {7, 3, 5, 4}, kPlain, {4, 7, {1, 1}});
  const auto add_transposed = [&](Images x, Shape weight, Attrs attrs, Images y) {
    attrs.set("size", Ints{y.size[0], y.size[1]});
    for (const bool last : {false, true})
      conv2d_rows.push_back(
          {"conv_transpose2d", {{x.shape(last)}, {weight}}, in_format(attrs, last), {y.shape(last)}, 5e-6});
  };
  add_transposed({2, 4, {5, 3}}, {4, 3, 3, 3}, kPlain, {2, 3, {7, 5}});
  add_transposed({3, 5, {3, 5}}, {5, 2, 3, 2}, conv({2, 2}, {1, 1, 0, 0}), {3, 2, {5, 10}});
  add_transposed({2, 6, {3, 4}}, {6, 4, 3, 3}, conv({3, 2}, {1, 1, 1, 1}, {2, 1}), {2, 4, {10, 8}});
  add_transposed({2, 6, {3, 4}}, {6, 2, 3, 2}, conv({2, 1}, {1, 0, 0, 1}, {1, 1}, 3), {2, 6, {6, 4}});
  // Windows that cover only padding.
  add({2, 2, {3, 3}}, {3, 2, 1, 1}, conv({1, 1}, {1, 1, 1, 1}), {2, 3, {5, 5}});
  add({2, 2, {2, 3}}, {3, 2, 2, 3}, conv({1, 1}, {3, 3, 3, 3}), {2, 3, {7, 7}});
  const auto fused = [&](const Epilogue& epilogue) {
    for (const bool last : {false, true}) {
      const Shape y = Images{2, 5, {6, 4}}.shape(last);
      conv2d_rows.push_back(fused_case("conv2d", {{Images{2, 5, {7, 5}}.shape(last)}, {{5, 5, 2, 2}}, {{5}}},
                                       in_format(kPlain, last), epilogue,
                                       epilogue.keep_input ? std::vector<Shape>{y, y} : std::vector<Shape>{y}));
    }
  };
  fused({.bias = true});
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
    fused({.bias = true, .activation = activation});
    fused({.bias = true, .activation = activation, .keep_input = true});
  }
  return conv2d_rows;
}

/// Weight gradients with the operations that the compiler fuses into them.
std::vector<KernelCase> conv2d_kernels() {
  std::vector<KernelCase> calls;
  for (const bool last : {false, true}) {
    for (const int64_t groups : {1, 2}) {
      for (const bool accumulate : {false, true}) {
        KernelCase call{"conv2d_weight_grad",
                        {{Images{3, 4, {7, 6}}.shape(last)}, {Images{3, 6, {5, 4}}.shape(last)}},
                        {{{6, 4 / groups, 3, 3}}, {{6}}},
                        in_format(conv({1, 1}, {0, 0, 0, 0}, {1, 1}, groups), last),
                        1e-5};
        call.attrs.set("kernel", Ints{3, 3});
        call.attrs.set("bias_grad", true);
        for (CaseOperand& out : call.out) out.accumulate = accumulate;
        calls.push_back(std::move(call));
      }
    }
  }
  return calls;
}

const Given kGiven{"conv2d", {{{2, 3, 7, 6}}, {{4, 3, 3, 3}}}, kPlain};
const Given kLast{"conv2d", {{{2, 7, 6, 3}}, {{4, 3, 3, 3}}}, in_format(kPlain, true)};
const Given kTransposed{"conv_transpose2d",
                        {{{2, 4, 5, 4}}, {{4, 3, 3, 3}}},
                        {{"stride", Ints{1, 1}}, {"padding", Ints{0, 0, 0, 0}}, {"size", Ints{7, 6}}}};
const Given kTransposedGroups{
    "conv_transpose2d",
    {{{2, 4, 5, 4}}, {{4, 3, 3, 3}}},
    {{"stride", Ints{1, 1}}, {"padding", Ints{0, 0, 0, 0}}, {"size", Ints{7, 6}}, {"groups", int64_t{2}}}};
const Given kGroups{"conv2d", {{{2, 6, 7, 6}}, {{4, 3, 3, 3}}}, conv({1, 1}, {0, 0, 0, 0}, {1, 1}, 2)};

}  // namespace

extern const OpCases conv2d_cases = {
    .rows = conv2d_rows(),
    .references = {{"conv2d", conv2d}, {"conv_transpose2d", conv_transpose2d}},
    .rules = {{kGiven, "nchw,kcrs->nkpq", "hwpqrs", {{2, 4, 5, 4}}},
              {kLast, "nhwc,kcrs->npqk", "hwpqrs", {{2, 5, 4, 4}}},
              {kGroups, "n(gc)hw,(gk)crs->n(gk)pq", "hwpqrskc", {{2, 4, 5, 4}}},
              {kTransposed, "nkpq,kcrs->nchw", "hwpqrs", {{2, 3, 7, 6}}},
              {kTransposedGroups, "n(gk)pq,(gk)crs->n(gc)hw", "hwpqrskc", {{2, 6, 7, 6}}}},
    .gradients = {{kGiven,
                   {"conv2d_input_grad nkpq,kcrs->nchw sums krspq", "conv2d_weight_grad nchw,nkpq->kcrs sums nhwpq"},
                   "dx sums over the output channels, dw over the images; a cut of c cuts both results",
                   "hwpqrs"},
                  {kLast,
                   {"conv2d_input_grad npqk,kcrs->nhwc sums krspq", "conv2d_weight_grad nhwc,npqk->kcrs sums nhwpq"},
                   "the same",
                   "hwpqrs"},
                  {kGroups,
                   {"conv2d_input_grad n(gk)pq,(gk)crs->n(gc)hw sums krspq",
                    "conv2d_weight_grad n(gc)hw,n(gk)pq->(gk)crs sums nhwpq"},
                   "each group has its own channels in every operand",
                   "hwpqrskc"},
                  {kTransposed,
                   {"conv2d nchw,kcrs->nkpq sums crshw", "conv2d_weight_grad nchw,nkpq->kcrs sums npqhw"},
                   "dx sums over the output channels, dw over the images; a cut of k cuts both results",
                   "hwpqrs"},
                  {kTransposedGroups,
                   {"conv2d n(gc)hw,(gk)crs->n(gk)pq sums crshw",
                    "conv2d_weight_grad n(gc)hw,n(gk)pq->(gk)crs sums npqhw"},
                   "each group has its own channels in every operand",
                   "hwpqrskc"}},
    .shape_errors =
        {{{"conv2d", {{{2, 3, 7}}, {{4, 3, 3, 3}}}}, "conv2d needs images [n, c, h, w], but got [2, 3, 7]"},
         {{"conv2d", {{{2, 3, 7, 6}}, {{4, 3, 3}}}}, "conv2d needs a weight [k, c, r, s], but got [4, 3, 3]"},
         {{"conv2d", {{{2, 3, 7, 6}}, {{4, 2, 3, 3}}}},
          "conv2d: [2, 3, 7, 6] with a weight of [4, 2, 3, 3] in 1 group: the input has 3 channels, but the weight "
          "needs 2 and produces 4"},
         {{"conv2d", {{{2, 6, 7, 6}}, {{5, 3, 3, 3}}}, {{"groups", int64_t{2}}}},
          "conv2d: [2, 6, 7, 6] with a weight of [5, 3, 3, 3] in 2 groups: the input has 6 channels, but the weight "
          "needs 6 and produces 5"},
         {{"conv_transpose2d", {{{2, 3, 7, 6}}, {{4, 3, 3, 3}}}},
          "conv_transpose2d: [2, 3, 7, 6] needs a weight [3, c, r, s], but got [4, 3, 3, 3]"},
         {{"conv_transpose2d", {{{2, 3, 7, 6}}, {{3, 3, 3, 3}}}, {{"groups", int64_t{2}}}},
          "conv_transpose2d: 2 groups do not divide the 3 channels of [2, 3, 7, 6]"},
         {{"conv2d", {{{2, 3, 7, 6}}, {{4, 3, 8, 3}}}}, "conv2d: a kernel of 8x3 does not fit into images of 7x6"},
         {{"conv2d", {{{2, 3, 7, 6}}, {{4, 3, 5, 3}}}, conv({1, 1}, {0, 1, 0, 0}, {2, 1})},
          "conv2d: a kernel of 5x3, 9x3 with its dilation, does not fit into images of 7x6, 8x6 with their padding"}},
    .kernels = conv2d_kernels(),
    .kernel_references = {{"conv2d_weight_grad", conv2d_weight_grad}},
    .allocating = {{"conv2d", kOneDnnAllocates},
                   {"conv2d_input_grad", kOneDnnAllocates},
                   {"conv_transpose2d", kOneDnnAllocates},
                   {"conv2d_weight_grad", kOneDnnAllocates}},
    .layers =
        {{"conv1d", ", channels: 4, kernel: 4, padding: same", {8, 4, 4}, false, {6, 4}},
         {"conv1d", ", channels: 4, kernel: 3, padding: [2, 0]", {8, 4, 4}, false, {6, 4}},
         {"conv1d", ", channels: 5, kernel: 3", {8, 5, 2}, false, {3, 4}},
         {"conv1d",
          ", channels: 6, kernel: 2, stride: 2, padding: 1, dilation: 2, bias: false",
          {8, 6, 2},
          false,
          {3, 4}},
         {"conv1d",
          ", channels: 6, kernel: 3, padding: 2, padding_mode: circular, groups: 3",
          {8, 6, 6},
          false,
          {3, 4}},
         {"conv_transpose2d", ", channels: 5, kernel: 3", {8, 5, 6, 5}, false, {3, 4, 3}},
         {"conv_transpose2d",
          ", channels: 2, kernel: [2, 3], stride: 2, padding: [0, 1], output_padding: [1, 0], bias: false",
          {8, 2, 9, 5},
          false,
          {3, 4, 3}},
         {"conv_transpose2d", ", channels: 6, kernel: 2, stride: 2, groups: 3", {8, 6, 8, 6}, false, {3, 4, 3}},
         {"conv_transpose1d",
          ", channels: 4, kernel: 3, stride: 2, padding: 1, output_padding: 1, groups: 2",
          {8, 4, 8},
          false,
          {6, 4}},
         {"conv_transpose1d", ", channels: 3, kernel: 2, dilation: 3, groups: 3", {8, 3, 7}, false, {3, 4}},
         {"conv2d",
          ", channels: 6, kernel: 3, padding: 1, padding_mode: replicate, groups: 3",
          {8, 6, 4, 3},
          false,
          {3, 4, 3}},
         {"conv2d", ", channels: 5, kernel: 3", {8, 5, 2, 1}, false, {3, 4, 3}},
         {"conv2d", ", channels: 5, kernel: 3, padding: [1, 2], padding_mode: reflect", {8, 5, 4, 5}, false, {3, 4, 3}},
         {"conv2d",
          ", channels: 6, kernel: [3, 2], padding: same, groups: 3, bias: false",
          {8, 6, 4, 3},
          false,
          {3, 4, 3}},
         {"conv2d",
          ", channels: 4, kernel: 2, stride: [2, 1], padding: [1, 0, 0, 2], dilation: [1, 2], init: {type: "
          "normal, std: 0.1}",
          {8, 4, 2, 3},
          false,
          {3, 4, 3}}},
};

}  // namespace trainctl
