// The ways to compute a convolution, and how a choice of them is stored.
#include "engine/ops/conv2d/conv_ways.h"

#include <doctest/doctest.h>

#include "engine/ops/cuda/cudnn_plans.h"

namespace trainctl {
namespace {

/// The stem of ResNet-50.
ConvShape stem(int64_t images) {
  ConvShape s;
  s.x = {images, 3, {224, 224}};
  s.y = {images, 64, {112, 112}};
  s.window = {.kernel = {7, 7}, .stride = {2, 2}, .before = {3, 3}, .after = {3, 3}};
  s.channels_last = true;
  return s;
}

}  // namespace

TEST_CASE("numbers of slices divide the batch, and each is at least twice the previous one") {
  CHECK(slice_counts(1) == std::vector<int64_t>{1});
  CHECK(slice_counts(7) == std::vector<int64_t>{1, 7});
  CHECK(slice_counts(12) == std::vector<int64_t>{1, 2, 4, 12});
  CHECK(slice_counts(256) == std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256});
}

TEST_CASE("tensor cores need multiples of 16 bytes of channels, other arithmetic accepts any number") {
  CHECK(channel_unit(DType::bf16, false) == 8);
  CHECK(channel_unit(DType::f32, true) == 4);
  CHECK(channel_unit(DType::f32, false) == 1);
}

TEST_CASE("only images that are channels last and without groups are padded, and only if padding changes a size") {
  ConvShape s = stem(4);
  CHECK(can_pad(s, 8));
  CHECK(!can_pad(s, 1));
  s.x.c = 16;
  CHECK(!can_pad(s, 8));
  s.y.c = 66;
  CHECK(can_pad(s, 8));
  s.groups = 2;
  CHECK(!can_pad(s, 8));
  s.groups = 1;
  s.channels_last = false;
  CHECK(!can_pad(s, 8));
}

TEST_CASE("one call computes a slice of the batch, with padded channels") {
  const ConvShape s = stem(256);
  const ConvShape whole = call_of(s, {}, 8), part = call_of(s, {.slices = 4, .padded = true}, 8);
  CHECK(whole.x.n == 256);
  CHECK(whole.x.c == 3);
  CHECK(part.x.n == 64);
  CHECK(part.y.n == 64);
  CHECK(part.x.c == 8);
  CHECK(part.y.c == 64);
  CHECK(part.x.size == s.x.size);
}

TEST_CASE("a way is stored as one word, and any other word is invalid") {
  for (const ConvWay way :
       {ConvWay{}, ConvWay{.slices = 8}, ConvWay{.slices = 2, .padded = true}, ConvWay{.fused = true},
        ConvWay{.rounded = true}, ConvWay{.slices = 2, .padded = true, .rounded = true},
        ConvWay{.slices = 4, .padded = true, .fused = true}}) {
    CHECK(parse_way(to_string(way)) == way);
  }
  CHECK(to_string(ConvWay{.slices = 2, .padded = true}) == "2+padded");
  for (const char* text : {"", "0", "-1", "x", "2+", "2padded", "+padded", "2+padded+padded", "2+fused+padded", "02"})
    CHECK(parse_way(text).slices == 0);
}

TEST_CASE("the scratch memory that a plan states covers the weight and its sum, padded") {
  CHECK(most_conv_scratch({64, 3, 7, 7}) >= kMostCudnnWorkspace + 2 * 4 * 64 * 8 * 49);
  CHECK(most_conv_scratch({1, 1, 1, 1}) == kMostCudnnWorkspace + 2 * 256);
}

TEST_CASE("two convolutions have one key if cuDNN computes them alike") {
  cuda::CudnnConvolution c;
  c.x = {{2, 8, 5, 5}, {200, 1, 40, 8}};
  c.w = {{8, 8, 3, 3}, {72, 1, 24, 8}};
  c.y = {{2, 8, 5, 5}, {200, 1, 40, 8}};
  c.before = c.after = c.stride = c.dilation = {1, 1};
  const std::string key = cuda::key_of(c);
  CHECK(key.find(' ') == std::string::npos);
  CHECK(cuda::key_of(c) == key);
  for (const auto change : {+[](cuda::CudnnConvolution& other) { other.kind = cuda::CudnnConvolution::Kind::weight; },
                            +[](cuda::CudnnConvolution& other) { other.dtype = DType::f32; },
                            +[](cuda::CudnnConvolution& other) { other.w_dtype = DType::f32; },
                            +[](cuda::CudnnConvolution& other) { other.tf32 = true; },
                            +[](cuda::CudnnConvolution& other) { other.relu = true; },
                            +[](cuda::CudnnConvolution& other) {
                              other.after = {2, 1};
                            },
                            +[](cuda::CudnnConvolution& other) { other.x.strides[1] = 25; }}) {
    cuda::CudnnConvolution other = c;
    change(other);
    CHECK(cuda::key_of(other) != key);
  }
}

}  // namespace trainctl
