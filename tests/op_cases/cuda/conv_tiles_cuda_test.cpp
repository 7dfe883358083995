// Tests the gradient of convolution weights by tiles on tensor cores against float64.
#include "engine/ops/conv2d/conv_tiles_cuda.h"

#include <doctest/doctest.h>

#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/device_tensors.h"
#include "tests/op_cases/image_cases.h"

namespace trainctl {
namespace {

struct TileCase {
  SquareConvolution of;
  bool aligned = true;
  bool accumulate = false;
  DType result = DType::f32;
};

struct Sides {
  Images x, y;
  ConvShape shape;
};

Sides sides_of(const SquareConvolution& c) {
  Window window{
      .kernel = {c.weight[2], c.weight[3]}, .stride = {c.stride, c.stride}, .dilation = {c.dilation, c.dilation}};
  window.before = window.after = {c.padding, c.padding};
  const Images y{c.x.n, c.weight[0], {window.count(0, c.x.size[0]), window.count(1, c.x.size[1])}};
  return {c.x, y, {c.x, y, c.groups, window, true}};
}

/// The expected value of element [k, c, r, s], and the sum of the magnitudes of its terms.
std::pair<double, double> expected(const SquareConvolution& c, const Sides& sides, const std::vector<float>& x,
                                   const std::vector<float>& dy, int64_t k, int64_t channel, int64_t r, int64_t s) {
  const Images &in = sides.x, &out = sides.y;
  const int64_t from = k / (out.c / c.groups) * c.weight[1] + channel;
  double sum = 0, terms = 0;
  for (int64_t n = 0; n < out.n; ++n) {
    for (int64_t p = 0; p < out.size[0]; ++p) {
      for (int64_t q = 0; q < out.size[1]; ++q) {
        const int64_t h = p * c.stride + r * c.dilation - c.padding, w = q * c.stride + s * c.dilation - c.padding;
        if (!naive::is_inside(in, h, w)) continue;
        const double term = double{x[static_cast<size_t>(((n * in.size[0] + h) * in.size[1] + w) * in.c + from)]} *
                            dy[static_cast<size_t>(((n * out.size[0] + p) * out.size[1] + q) * out.c + k)];
        sum += term;
        terms += std::fabs(term);
      }
    }
  }
  return {sum, terms};
}

void check_tiles(const TileCase& tile) {
  const SquareConvolution& c = tile.of;
  CAPTURE(to_string(c.x.shape(true)));
  CAPTURE(to_string(c.weight));
  CAPTURE(c.stride);
  CAPTURE(tile.aligned);
  CAPTURE(to_string(tile.result));
  const Sides sides = sides_of(c);
  Tensors tensors(tile.aligned);
  const int x = tensors.add(sides.x.shape(true), 1.0f, DType::bf16),
            dy = tensors.add(sides.y.shape(true), 1.0f, DType::bf16),
            dw = tensors.add(c.weight, tile.accumulate ? 1.0f : 0.0f, tile.result);
  std::vector<float> once;
  for (int time = 0; time < 2; ++time) {
    tensors.upload();
    CudaScratch scratch;
    const CudaKernel kernel = weight_grad_by_tiles(
        sides.shape, {tensors.arg(x), tensors.arg(dw, tile.accumulate), tensors.arg(dy)}, &scratch);
    REQUIRE(kernel);
    void* memory = nullptr;
    must(cudaMalloc(&memory, static_cast<size_t>(scratch.bytes())));
    must(cudaMemset(memory, 0xff, static_cast<size_t>(scratch.bytes())));
    scratch.set_memory(memory);
    run(kernel);
    must(cudaFree(memory));
    const std::vector<float> after = tensors.download();
    if (time > 0) {
      CHECK(std::memcmp(once.data(), after.data(), once.size() * sizeof(float)) == 0);
      break;
    }
    once = after;
    const std::vector<float> xs = tensors.values(x, after), dys = tensors.values(dy, after),
                             got = tensors.values(dw, after), before = tensors.values(dw, tensors.before());
    Worst worst;
    // Checks only every 97th element of large weights; this stride meets every channel and every pixel of the
    // window.
    const size_t step = got.size() > 20000 ? 97 : 1;
    for (size_t i = 0; i < got.size(); i += step) {
      const auto at = static_cast<int64_t>(i);
      const int64_t s = at % c.weight[3], r = at / c.weight[3] % c.weight[2],
                    channel = at / (c.weight[3] * c.weight[2]) % c.weight[1],
                    k = at / (c.weight[3] * c.weight[2] * c.weight[1]);
      auto [sum, terms] = expected(c, sides, xs, dys, k, channel, r, s);
      if (tile.accumulate) sum += before[i];
      worst.compare(got[i], sum, terms);
    }
    CHECK(worst.relative() < (tile.result == DType::f32 ? 2e-6 : 3e-3));
  }
}

}  // namespace

TEST_CASE("cuda: weight gradients in tiles follow float64, and give the same bits twice") {
  if (!gpu_is_here()) return;
  check_tiles({{{2, 16, {5, 6}}, {8, 16, 3, 3}, 1, 1}});
  check_tiles({{{3, 8, {7, 5}}, {72, 8, 1, 1}}});
  check_tiles({{{2, 24, {9, 8}}, {40, 24, 3, 2}, 2, 1}});
  check_tiles({{{1, 3, {17, 16}}, {16, 3, 7, 7}, 2, 3}});        // three channels, padded to four
  check_tiles({{{2, 12, {6, 6}}, {8, 12, 3, 3}, 1, 2, 2}});      // 8-byte copies, dilation
  check_tiles({{{2, 32, {6, 5}}, {16, 16, 3, 3}, 1, 1, 1, 2}});  // groups
  check_tiles({{{2, 37, {6, 5}}, {41, 37, 3, 3}, 1, 1}});        // both copied
  check_tiles({{{2, 16, {5, 5}}, {16, 16, 1, 1}, 3, 2}});        // windows that lie entirely in the padding
  check_tiles({{{2, 16, {5, 6}}, {8, 16, 3, 3}, 1, 1}, false});  // The images begin at addresses that are not aligned.
  check_tiles({{{2, 16, {5, 6}}, {8, 16, 3, 3}, 1, 1}, true, true});
  check_tiles({{{2, 16, {5, 6}}, {8, 16, 3, 3}, 1, 1}, true, true, DType::bf16});
  check_tiles({{{8, 64, {6, 6}}, {136, 64, 1, 1}}, true, false, DType::bf16});
}

TEST_CASE("cuda: large weight gradients in tiles follow float64, and give the same bits twice") {
  if (!gpu_is_here()) return;
  check_tiles({{{8, 3, {64, 64}}, {64, 3, 7, 7}, 2, 3}});
  check_tiles({{{8, 64, {28, 28}}, {64, 64, 3, 3}, 1, 1}});
  check_tiles({{{8, 128, {28, 28}}, {128, 128, 3, 3}, 2, 1}});
  check_tiles({{{16, 256, {14, 14}}, {512, 256, 1, 1}, 2}});
  check_tiles({{{16, 256, {7, 7}}, {256, 256, 3, 3}, 1, 1}});
  check_tiles({{{64, 64, {28, 28}}, {256, 64, 1, 1}}});
}

}  // namespace trainctl
