// Tests of chains of transforms: what they check, which types they keep, and that joining transforms and decoding parts
// of images change no bit. tests/equivalence/images compares the values of single transforms with numpy and Pillow.
#include "engine/train/data/sample_transforms.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/image/batch_mix.h"
#include "engine/train/data/image/crop_choice.h"
#include "tests/train/image_files.h"

using namespace trainctl;

namespace {

const SampleType kPhotos{ElementType::u8, {kAnySize, kAnySize, 3}};

TransformSpec sample_transforms_transform(const std::string& name, Attrs attrs = {}) {
  return {name, attrs, "dataset.transforms[0]"};
}
TransformSpec sized(const std::string& name, int64_t height, int64_t width) {
  return sample_transforms_transform(name, {{"size", Ints{height, width}}});
}
TransformSpec normalize() {
  return sample_transforms_transform("normalize", {{"mean", std::vector<double>{0.485, 0.456, 0.406}},
                                                   {"std", std::vector<double>{0.229, 0.224, 0.225}}});
}

std::string spec_error(const std::vector<TransformSpec>& specs, const SampleType& input) {
  try {
    SampleTransforms chain(specs, input);
  } catch (const SpecError& error) {
    return error.diagnostics().at(0).path + ": " + error.diagnostics().at(0).message;
  }
  return "no error";
}

template <class T>
std::vector<T> run(const std::vector<TransformSpec>& specs, const SampleType& input, const SampleView& view,
                   SampleRng rng = SampleRng(1, 0, 0)) {
  const SampleTransforms chain(specs, input);
  std::vector<T> out(static_cast<size_t>(num_elements(chain.result().shape)));
  REQUIRE(static_cast<int64_t>(sizeof(T)) == byte_size(chain.result().type));
  TransformScratch scratch;
  chain.run(view, rng, scratch, out.data());
  return out;
}

SampleView view_of(const Picture& picture) {
  return {picture.pixels.data(), picture.height, picture.width, picture.channels, picture.width * picture.channels};
}

const std::vector<TransformSpec> kTraining = {
    sized("random_resized_crop", 24, 32),
    sample_transforms_transform("horizontal_flip"),
    sample_transforms_transform("color_jitter",
                                {{"brightness", 0.4}, {"contrast", 0.4}, {"saturation", 0.4}, {"hue", 0.1}}),
    sample_transforms_transform("to_float"),
    normalize(),
    sample_transforms_transform("hwc2chw"),
    sample_transforms_transform("random_erasing"),
};

}  // namespace

TEST_CASE("photos of different sizes are refused until a transform gives them one") {
  CHECK(spec_error({}, kPhotos) ==
        "dataset.transforms: images of a folder may have any size, but a batch needs a single "
        "size");
  CHECK(spec_error({sample_transforms_transform("to_float"), sample_transforms_transform("hwc2chw")}, kPhotos) ==
        "dataset.transforms: images of a folder may have any size, but a batch needs a single size");
  CHECK(spec_error({sample_transforms_transform("pad", {{"padding", int64_t{2}}})}, kPhotos) ==
        "dataset.transforms: images of a folder may have any size, but a batch needs a single size");
  for (const char* name : {"resize", "center_crop", "random_crop", "random_resized_crop", "center_resized_crop"})
    CHECK(SampleTransforms({sized(name, 8, 6)}, kPhotos).result().shape == Shape{8, 6, 3});
  CHECK(SampleTransforms(kTraining, kPhotos).result().shape == Shape{3, 24, 32});
}

TEST_CASE("u8 stays u8 until a transform computes in f32") {
  const auto type_of = [](const std::vector<TransformSpec>& specs) {
    return SampleTransforms(specs, kPhotos).result().type;
  };
  CHECK(type_of({sized("random_resized_crop", 8, 8), sample_transforms_transform("horizontal_flip"),
                 sample_transforms_transform("hwc2chw")}) == ElementType::u8);
  CHECK(type_of({sample_transforms_transform("resize", {{"size", Ints{8, 8}}, {"method", std::string("area")}})}) ==
        ElementType::u8);
  CHECK(type_of({sized("resize", 8, 8)}) == ElementType::f32);
  CHECK(type_of({sized("center_crop", 8, 8), sample_transforms_transform("to_float")}) == ElementType::f32);
  CHECK(type_of({sized("center_crop", 8, 8),
                 sample_transforms_transform("type_cast", {{"dtype", std::string("i32")}})}) == ElementType::i32);
}

TEST_CASE("a transform that does not fit its input is an error at that transform") {
  const SampleType floats{ElementType::f32, {8, 8, 3}}, grey{ElementType::u8, {8, 8, 1}},
      text{ElementType::u8, {kAnySize}};
  CHECK(spec_error({sample_transforms_transform("color_jitter")}, floats) ==
        "dataset.transforms[0]: color_jitter: needs u8 [h, w, 3], but the sample is f32 [8, 8, 3]");
  CHECK(spec_error({sample_transforms_transform("color_jitter")}, grey) ==
        "dataset.transforms[0]: color_jitter: needs u8 [h, w, 3], but the sample is u8 [8, 8, 1]");
  CHECK(spec_error({sample_transforms_transform("to_float")}, floats) ==
        "dataset.transforms[0]: to_float: needs u8 samples, not f32");
  CHECK(spec_error({sample_transforms_transform("hwc2chw"), sized("random_resized_crop", 4, 4)}, grey) ==
        "dataset.transforms[0]: random_resized_crop: needs an image [h, w, c], but the sample is [1, 8, 8]");
  CHECK(spec_error({sized("resize", 4, 4)}, text) ==
        "dataset.transforms[0]: resize: needs an image [h, w, c], but the sample is [any]");
  CHECK(spec_error({sample_transforms_transform("tokenize_bytes", {{"length", int64_t{4}}})}, grey) ==
        "dataset.transforms[0]: tokenize_bytes: needs bytes, but the sample is u8 [8, 8, 1]");
  CHECK(spec_error({sample_transforms_transform("one_hot", {{"classes", int64_t{4}}})}, floats) ==
        "dataset.transforms[0]: one_hot: needs classes of u8 or i32, but the sample is f32 [8, 8, 3]");
  CHECK(spec_error({sample_transforms_transform("random_erasing", {{"value", 0.5}})}, grey) ==
        "dataset.transforms[0]: random_erasing: the value 0.5 is not valid for u8 images");
  CHECK(spec_error({sample_transforms_transform("random_resized_crop",
                                                {{"size", Ints{4, 4}}, {"scale", std::vector<double>{0.9, 0.1}}})},
                   grey) == "dataset.transforms[0]: random_resized_crop: scale [0.9, 0.1] is not a valid range");
}

TEST_CASE("neighbours in one pass have the bits of one after another") {
  const Picture picture = make_picture(20, 30, 3);
  const SampleType input{ElementType::u8, {20, 30, 3}};
  const std::vector<TransformSpec> chain = {sample_transforms_transform("horizontal_flip", {{"p", 1.0}}),
                                            sample_transforms_transform("to_float"),
                                            sample_transforms_transform("rescale", {{"scale", 3.0}, {"shift", 0.1}}),
                                            normalize(), sample_transforms_transform("hwc2chw")};
  const auto joined = run<float>(chain, input, view_of(picture));
  const float mean[] = {0.485f, 0.456f, 0.406f};
  const double deviation[] = {0.229, 0.224, 0.225};
  int differing = 0;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < 20; ++y)
      for (int64_t x = 0; x < 30; ++x) {
        volatile float value =
            static_cast<float>(picture.at(y, 29 - x, c)) / 255.0f;  // volatile: no fused multiply-add
        value = value * 3.0f;
        value = value + 0.1f;
        value = (value - mean[c]) * static_cast<float>(1.0 / deviation[c]);
        differing += joined[static_cast<size_t>((c * 20 + y) * 30 + x)] != value ? 1 : 0;
      }
  CHECK(differing == 0);
}

TEST_CASE("a photo of which only a region is decoded has the bits of one that is decoded whole") {
  const SampleTransforms chain(kTraining, kPhotos);
  TransformScratch scratch;
  std::vector<float> part(static_cast<size_t>(num_elements(chain.result().shape))), whole(part);
  for (int64_t sample = 0; sample < 40; ++sample) {
    const Picture picture =
        make_picture(50 + sample, 120 - 2 * sample, sample % 2 == 0 ? 3 : 1, static_cast<uint64_t>(sample));
    const FileBytes file =
        sample % 4 == 3 ? write_png(picture) : write_jpeg(picture, {.orientation = static_cast<int>(sample % 9)});
    SampleRng rng(3, 1, sample), again(3, 1, sample);
    chain.run_encoded(file, "p", rng, scratch, part.data());
    Image image;
    decode_image(file, "p", {}, image);
    chain.run(view_of(image.view()), again, scratch, whole.data());
    CHECK(part == whole);
    CHECK(rng.next() == again.next());
  }
}

TEST_CASE("every sample draws the same count of numbers, whatever its size and content") {
  const SampleTransforms chain(kTraining, kPhotos);
  TransformScratch scratch;
  std::vector<float> out(static_cast<size_t>(num_elements(chain.result().shape)));
  SampleRng expected(1, 0, 0);
  bool is_first = true;
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 500}, {80, 60}, {224, 224}}) {
    const Picture picture = make_picture(height, width, 3);
    SampleRng rng(1, 0, 0);
    chain.run(view_of(picture), rng, scratch, out.data());
    if (std::exchange(is_first, false)) expected = rng;
    CHECK(rng.next() == SampleRng(expected).next());
  }
}

TEST_CASE("the same random numbers give the same bits with scratch memory that other samples have used") {
  const SampleTransforms chain(kTraining, kPhotos);
  const size_t elements = static_cast<size_t>(num_elements(chain.result().shape));
  const Picture picture = make_picture(70, 90, 3), other = make_picture(200, 300, 3);
  TransformScratch used, fresh;
  std::vector<float> first(elements), second(elements);
  SampleRng rng(5, 0, 1);
  chain.run(view_of(other), rng, used, first.data());
  for (std::pair<TransformScratch*, std::vector<float>*> each :
       {std::pair(&used, &first), std::pair(&fresh, &second)}) {
    SampleRng own(5, 0, 9);
    chain.run(view_of(picture), own, *each.first, each.second->data());
  }
  CHECK(first == second);
}

TEST_CASE(
    "random_resized_crop stays within the image, the area and the ratio, and selects the middle if nothing fits") {
  SampleRng rng(1, 0, 0);
  int tops = 0;
  for (int i = 0; i < 2000; ++i) {
    const PixelBox box = draw_resized_box({375, 500}, {0.08, 1.0}, {0.75, 4.0 / 3}, rng);
    REQUIRE(box.is_inside({375, 500}));
    const double area = static_cast<double>(box.height * box.width) / (375 * 500);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    CHECK(area > 0.079);
    CHECK(ratio > 0.73);
    CHECK(ratio < 1.36);
    tops += box.top > 0 ? 1 : 0;
  }
  CHECK(tops > 1000);
  CHECK(draw_resized_box({10, 1000}, {1.0, 1.0}, {0.75, 4.0 / 3}, rng) == PixelBox{0, 493, 10, 13});
  CHECK(draw_resized_box({1000, 10}, {1.0, 1.0}, {0.75, 4.0 / 3}, rng) == PixelBox{493, 0, 13, 10});
}

TEST_CASE("center_resized_crop selects the same region as a resize to 256 and a crop of 224") {
  CHECK(central_resized_box({375, 500}, {224, 224}, 0.875) == PixelBox{23, 86, 328, 328});
  CHECK(central_resized_box({500, 375}, {224, 224}, 1.0) == PixelBox{62, 0, 375, 375});
  CHECK(central_resized_box({100, 400}, {50, 100}, 1.0) == PixelBox{0, 100, 100, 200});
}

TEST_CASE("images are decoded at a smaller scale only on request, and never smaller than the result") {
  TransformSpec crop = sized("center_resized_crop", 32, 32);
  crop.attrs.set("fraction", 1.0);
  SampleRng rng(1, 0, 0);
  CHECK(SampleTransforms({crop}, kPhotos).plan_crop({256, 300}, rng).scale == 1);
  crop.attrs.set("scaled_decode", true);
  const SampleTransforms chain({crop}, kPhotos);
  CHECK(chain.plan_crop({256, 300}, rng).scale == 8);
  CHECK(chain.plan_crop({255, 300}, rng).scale == 4);
  CHECK(chain.plan_crop({63, 300}, rng).scale == 1);
  // The result is close to that of exact decoding.
  const FileBytes file = write_jpeg(make_picture(133, 171, 3), {.quality = 95});
  TransformScratch scratch;
  std::vector<uint8_t> scaled(32 * 32 * 3), exact(scaled);
  chain.run_encoded(file, "p", rng, scratch, scaled.data());
  crop.attrs.set("scaled_decode", false);
  SampleTransforms({crop}, kPhotos).run_encoded(file, "p", rng, scratch, exact.data());
  double sum = 0;
  for (size_t i = 0; i < scaled.size(); ++i) sum += std::abs(int{scaled[i]} - int{exact[i]});
  CHECK(sum / static_cast<double>(scaled.size()) < 3);
}

TEST_CASE("pad puts its value around an image, and crops of a photo that is smaller put zeros there") {
  const std::vector<uint8_t> image = {1, 2};
  const SampleType input{ElementType::u8, {1, 2, 1}};
  CHECK(run<uint8_t>({sample_transforms_transform("pad", {{"padding", int64_t{1}}, {"value", 9.0}})}, input,
                     view_of(image.data(), {1, 2, 1})) == std::vector<uint8_t>{9, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 9});
  const SampleType photos{ElementType::u8, {kAnySize, kAnySize, 1}};
  for (const char* name : {"center_crop", "random_crop"})
    CHECK(run<uint8_t>({sized(name, 1, 4)}, photos, view_of(image.data(), {1, 2, 1})) ==
          std::vector<uint8_t>{0, 1, 2, 0});
}

TEST_CASE("classes become one_hot, and texts become tokens of one length") {
  const std::vector<int32_t> classes = {2, 0};
  const SampleType labels{ElementType::i32, {2}};
  CHECK(run<float>({sample_transforms_transform("one_hot", {{"classes", int64_t{3}}})}, labels,
                   view_of(classes.data(), {2})) == std::vector<float>{0, 0, 1, 1, 0, 0});
  CHECK_THROWS_WITH_AS(run<float>({sample_transforms_transform("one_hot", {{"classes", int64_t{2}}})}, labels,
                                  view_of(classes.data(), {2})),
                       "the data set contains class 2, but the 2 classes of one_hot are numbered from 0", EnvError);
  const SampleType text{ElementType::u8, {kAnySize}};
  const std::vector<TransformSpec> tokens = {
      sample_transforms_transform("tokenize_bytes", {{"length", int64_t{3}}, {"filler", int64_t{7}}})};
  CHECK(run<int32_t>(tokens, text, view_of("ab", {2})) == std::vector<int32_t>{'a', 'b', 7});
  CHECK(run<int32_t>(tokens, text, view_of("abcd", {4})) == std::vector<int32_t>{'a', 'b', 'c'});
}

TEST_CASE("mixup and cutmix draw a share of Beta(alpha, alpha), and cut that share of the area") {
  for (const double alpha : {0.2, 1.0, 4.0}) {
    CHECK(beta_quantile(alpha, 0.5) == doctest::Approx(0.5));
    double sum = 0, squares = 0;
    const int draws = 4000;
    for (int i = 0; i < draws; ++i) {
      SampleRng rng(1, 0, i);
      const double share = draw_mixup(alpha, rng).share;
      REQUIRE(share >= 0);
      REQUIRE(share <= 1);
      sum += share;
      squares += (share - 0.5) * (share - 0.5);
    }
    CHECK(std::abs(sum / draws - 0.5) < 0.03);
    CHECK(squares / draws == doctest::Approx(1 / (4 * (2 * alpha + 1))).epsilon(0.06));  // the variance of Beta(a, a)
  }
  CHECK(beta_quantile(1.0, 0.3) == doctest::Approx(0.3));
  CHECK(beta_quantile(2.0, 0.15625) == doctest::Approx(0.25));  // 3 x^2 - 2 x^3
  for (int i = 0; i < 200; ++i) {
    SampleRng rng(2, 0, i);
    const BatchMix mixed = draw_cutmix(1.0, {32, 48}, rng);
    REQUIRE(mixed.box.is_inside({32, 48}));
    CHECK(mixed.share == doctest::Approx(1.0 - static_cast<double>(mixed.box.height * mixed.box.width) / (32 * 48)));
  }
}

TEST_CASE("rows are mixed with the next, the last with the first, in values or in a box") {
  CHECK(mixed_with(0, 3) == 1);
  CHECK(mixed_with(2, 3) == 0);
  std::vector<float> own = {1, 2, 3, 4, 5, 6}, other = {10, 20, 30, 40, 50, 60}, out(6);
  mix(0.75, own.data(), other.data(), 6, out.data());
  CHECK(out == std::vector<float>{3.25f, 6.5f, 9.75f, 13, 16.25f, 19.5f});
  std::vector<float> planes = own;
  paste_box({0, 1, 1, 2}, other.data(), {1, 3}, 2, true, planes.data());
  CHECK(planes == std::vector<float>{1, 20, 30, 4, 50, 60});
  paste_box({0, 1, 1, 2}, other.data(), {1, 3}, 2, false, own.data());
  CHECK(own == std::vector<float>{1, 2, 30, 40, 50, 60});
}
