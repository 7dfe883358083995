// Tests of transforms of samples: what each computes, in which order they run, and what they refuse.
#include <doctest/doctest.h>

#include <set>

#include "engine/train/data/dataset.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/data/sample_transforms.h"
#include "tests/train/data_specs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

/// The chain of transforms for f32 samples of this shape.
SampleTransforms chain_of(const std::vector<TransformSpec>& specs, const Shape& shape) {
  return SampleTransforms(specs, {ElementType::f32, shape});
}

std::vector<float> apply(const std::vector<TransformSpec>& specs, const Shape& shape, const std::vector<float>& sample,
                         uint64_t seed = 1) {
  const SampleTransforms chain = chain_of(specs, shape);
  SampleRng rng(seed, 0, 0);
  TransformScratch scratch;
  std::vector<float> out(static_cast<size_t>(num_elements(chain.result().shape)));
  chain.run(trainctl::view_of(sample.data(), shape), rng, scratch, out.data());
  return out;
}

}  // namespace

TEST_CASE("resize is bilinear with half-pixel centres") {
  const auto up = apply({named_transform("resize", {{"size", Ints{1, 4}}})}, {1, 2, 1}, {0, 1});
  CHECK(up == std::vector<float>{0, 0.25f, 0.75f, 1});
  const auto down = apply({named_transform("resize", {{"size", Ints{1, 2}}})}, {1, 4, 1}, {0, 1, 2, 3});
  CHECK(down == std::vector<float>{0.5f, 2.5f});
  const auto channels = apply({named_transform("resize", {{"size", Ints{2, 1}}})}, {1, 1, 2}, {3, 4});
  CHECK(channels == std::vector<float>{3, 4, 3, 4});
}

TEST_CASE("hwc2chw moves the channels first even if no transform computes before it") {
  // A regression: the pass that hwc2chw began was taken to be channels first already, and moved nothing.
  const std::vector<float> pixels = {1, 2, 3, 4, 5, 6};
  CHECK(apply({named_transform("hwc2chw")}, {1, 3, 2}, pixels) == std::vector<float>{1, 3, 5, 2, 4, 6});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 2}}}), named_transform("hwc2chw")}, {1, 3, 2},
              pixels) == std::vector<float>{1, 3, 2, 4});
}

TEST_CASE("transforms compose in order and know where the channels are") {
  const std::vector<TransformSpec> specs = {
      named_transform("rescale", {{"scale", 0.5}, {"shift", 1.0}}), named_transform("hwc2chw"),
      named_transform("normalize", {{"mean", std::vector<double>{1, 2}}, {"std", std::vector<double>{1, 0.5}}})};
  // A sample [1, 2, 2], which is channels 0 and 1 of two pixels, becomes (x / 2 + 1 - mean) / std with the channels
  // first.
  CHECK(apply(specs, {1, 2, 2}, {0, 2, 4, 6}) == std::vector<float>{0, 2, 0, 4});
  CHECK(chain_of(specs, {1, 2, 2}).result().shape == Shape{2, 1, 2});
}

TEST_CASE("center_crop selects the middle, and pads a smaller image with zeros") {
  const std::vector<float> image = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // [3, 4, 1]
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 2}}})}, {3, 4, 1}, image) == std::vector<float>{6, 7});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{2, 1}}})}, {3, 4, 1}, image) == std::vector<float>{2, 6});
  CHECK(apply({named_transform("center_crop", {{"size", Ints{1, 3}}})}, {1, 1, 2}, {5, 6}) ==
        std::vector<float>{0, 0, 5, 6, 0, 0});
}

TEST_CASE("random_crop draws each place of the padded image, and horizontal_flip swaps left and right") {
  const TransformSpec crop = named_transform("random_crop", {{"size", Ints{2, 2}}, {"padding", int64_t{1}}});
  const std::vector<float> image = {1, 2, 3, 4};  // with padding: 0 0 0 0 / 0 1 2 0 / 0 3 4 0 / 0 0 0 0
  std::set<std::vector<float>> found;
  for (uint64_t seed = 0; seed < 200; ++seed) found.insert(apply({crop}, {2, 2, 1}, image, seed));
  CHECK(found == std::set<std::vector<float>>{{0, 0, 0, 1},
                                              {0, 0, 1, 2},
                                              {0, 0, 2, 0},
                                              {0, 1, 0, 3},
                                              {1, 2, 3, 4},
                                              {2, 0, 4, 0},
                                              {0, 3, 0, 0},
                                              {3, 4, 0, 0},
                                              {4, 0, 0, 0}});
  CHECK(apply({named_transform("horizontal_flip", {{"p", 1.0}})}, {1, 2, 2}, {1, 2, 3, 4}) ==
        std::vector<float>{3, 4, 1, 2});
  int flips = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    flips += apply({named_transform("horizontal_flip", {{"p", 0.25}})}, {1, 2, 1}, {1, 2}, seed)[0] == 2 ? 1 : 0;
  CHECK(flips > 200);
  CHECK(flips < 300);
  CHECK(spec_error([] {
          chain_of({named_transform("random_crop", {{"size", Ints{8, 4}}, {"padding", int64_t{1}}})}, {4, 4, 3});
        }) == "dataset.transforms[0]: random_crop: crops [8, 4] from an image of [4, 4, 3]");
}

TEST_CASE("a sample with random transforms is drawn anew in each pass, and never kept") {
  const ScratchFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({5, 9, 9}));
  folder.write("train-labels-idx1-ubyte", idx_bytes({5}));
  DatasetSpec spec = mnist(folder.path());
  spec.transforms = {named_transform("random_crop", {{"size", Ints{3, 3}}, {"padding", int64_t{0}}})};
  const auto set = open_dataset(spec, 1);
  const auto read = [&](uint64_t pass) {
    ReadState state;
    state.rng = SampleRng(1, pass, 2);
    std::vector<float> image(9);
    void* const to[] = {image.data(), nullptr};
    set->read(2, state, to);
    return image;
  };
  std::set<std::vector<float>> found;
  for (uint64_t pass = 0; pass < 20; ++pass) found.insert(read(pass));
  CHECK(found.size() > 10);
  CHECK(read(3) == read(3));
}

TEST_CASE("a validation sees the middle of what training crops, unflipped") {
  JobSpec job;
  job.dataset.transforms = {named_transform("horizontal_flip", {{"p", 0.5}}),
                            named_transform("random_crop", {{"size", Ints{3, 3}}, {"padding", int64_t{2}}})};
  const std::vector<TransformSpec> seen = job.validation_set().transforms;
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].name == "center_crop");
  CHECK(seen[0].attrs.ints("size") == Ints{3, 3});
}

TEST_CASE("a transform that does not fit its sample is a SpecError at that transform") {
  CHECK(spec_error([] {
          chain_of({named_transform("resize", {{"size", Ints{2, 2}}})}, {4});
        }) == "dataset.transforms[0]: resize: needs an image [h, w, c], but the sample is [4]");
  CHECK(spec_error([] {
          chain_of({named_transform("normalize", {{"mean", std::vector<double>{1, 2}}, {"std", 1.0}})}, {4, 4, 3});
        }).find("the sample [4, 4, 3] has 3 channels") != std::string::npos);
  CHECK(spec_error([] {
          chain_of({named_transform("normalize", {{"mean", 0.0}, {"std", 0.0}})}, {4});
        }) == "dataset.transforms[0]: normalize: std is 0");
  CHECK(spec_error([] {
          chain_of({named_transform("type_cast", {{"dtype", std::string("i32")}}), named_transform("hwc2chw")},
                   {4, 4, 1});
        }).find("must come last") != std::string::npos);
}

TEST_CASE("a transform that makes samples of more than a gibibyte is refused before it makes one") {
  const std::string error = spec_error([&] {
    chain_of({named_transform("resize", {{"size", Ints{65536, 65536}}})}, {28, 28, 1});
  });
  CHECK(error == "dataset.transforms[0]: resize: produces samples of [65536, 65536, 1], 16.0 GiB");
}
