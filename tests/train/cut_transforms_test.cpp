// Tests of a cache that keeps samples before their first random transform.
#include "engine/train/data/cut_transforms.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "engine/base/error.h"
#include "engine/train/data/cached_set.h"

using namespace trainctl;

namespace {

/// Picture s: u8 [6, 6, 3]; label s % 3. Counts its reads; those in `broken` cannot be read.
class CutTransformsPictures final : public Source {
 public:
  int64_t size() const override { return 10; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    if (sample == broken) throw EnvError("picture is broken");
    if (wanted[0]) {
      ++reads;
      out[0].resize(6 * 6 * 3);
      for (size_t i = 0; i < out[0].size(); ++i)
        out[0][i] = static_cast<std::byte>((static_cast<size_t>(sample) * 37 + i * 11) % 251);
    }
    if (wanted[1]) out[1].assign(1, static_cast<std::byte>(sample % 3));
  }
  std::string where(int64_t sample) const override { return "picture " + std::to_string(sample); }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }
  mutable std::atomic<int> reads = 0;
  int64_t broken = -1;

 private:
  std::vector<SourceField> fields_ = {{"image", Encoding::array, ElementType::u8, {6, 6, 3}},
                                      {"label", Encoding::array, ElementType::u8, {}}};
  std::vector<std::string> names_;
};

TransformSpec cut_transforms_transform(const char* name, Attrs attrs = {}) {
  return {name, std::move(attrs), "dataset.transforms[0]"};
}

DatasetSpec cut_transforms_spec_of(std::vector<TransformSpec> transforms) {
  DatasetSpec spec;
  spec.type = "npy";
  spec.transforms = std::move(transforms);
  return spec;
}

const TransformSpec kCutTransformsResize =
    cut_transforms_transform("resize", {{"size", Ints{5, 5}}, {"method", "area"}});
const TransformSpec kCrop = cut_transforms_transform("random_crop", {{"size", Ints{4, 4}}, {"padding", int64_t{1}}});

std::unique_ptr<Dataset> cut(const std::shared_ptr<CutTransformsPictures>& source, const DatasetSpec& spec,
                             int shared = -1) {
  std::optional<CutTransforms> cut = cut_at_first_random(source->fields(), spec);
  REQUIRE(cut.has_value());
  auto before = keep_samples(std::make_unique<SourceSet>(source, std::move(cut->before)), CachePlace::memory, shared);
  return continue_samples(std::move(before), FieldWays(source->fields(), spec).fields, std::move(cut->after));
}

std::vector<float> picture(const Dataset& set, int64_t sample, uint64_t pass) {
  ReadState state;
  state.rng = SampleRng(7, pass, sample);
  std::vector<std::byte> image(static_cast<size_t>(set.fields()[0].bytes()));
  void* const to[] = {image.data(), nullptr};
  set.read(sample, state, to);
  std::vector<float> values(image.size() / sizeof(float));
  std::copy_n(reinterpret_cast<const float*>(image.data()), values.size(), values.data());
  return values;
}

}  // namespace

TEST_CASE("samples are kept before their first random transform, and have the bits that they have without a cache") {
  for (const std::vector<TransformSpec>& chain :
       {std::vector{kCutTransformsResize, kCrop, cut_transforms_transform("horizontal_flip"),
                    cut_transforms_transform("to_float"), cut_transforms_transform("hwc2chw")},
        std::vector{kCutTransformsResize, cut_transforms_transform("to_float"), cut_transforms_transform("hwc2chw"),
                    cut_transforms_transform("random_erasing", {{"p", 1.0}})},
        std::vector{kCutTransformsResize, cut_transforms_transform("to_float"), kCrop,
                    cut_transforms_transform("hwc2chw")},
        std::vector{kCrop, cut_transforms_transform("to_float")}}) {
    const auto source = std::make_shared<CutTransformsPictures>();
    const DatasetSpec spec = cut_transforms_spec_of(chain);
    CAPTURE(chain.back().name);
    const auto kept = cut(source, spec);
    const SourceSet plain(std::make_shared<CutTransformsPictures>(), FieldWays(source->fields(), spec));
    for (uint64_t pass = 0; pass < 3; ++pass)
      for (int64_t i = 0; i < 10; ++i) CHECK(picture(*kept, i, pass) == picture(plain, i, pass));
    CHECK(source->reads == 10);
    CHECK(picture(*kept, 3, 0) != picture(*kept, 3, 1));
  }
}

TEST_CASE("photos whose first transform is a random crop are not cached, because they have no common size before it") {
  const std::vector<SourceField> photos = {{"image", Encoding::image, ElementType::u8, {}}};
  CHECK_FALSE(cut_at_first_random(photos, cut_transforms_spec_of({cut_transforms_transform("random_resized_crop",
                                                                                           {{"size", Ints{4, 4}}})}))
                  .has_value());
  CHECK(cut_at_first_random(photos, cut_transforms_spec_of({kCutTransformsResize, kCrop})).has_value());
}

TEST_CASE("bytes are cached if only elementwise maps convert them to floats before the first random transform") {
  const std::vector<SourceField> pictures = CutTransformsPictures().fields();
  const auto kept_type = [&](const std::vector<TransformSpec>& chain) {
    return cut_at_first_random(pictures, cut_transforms_spec_of(chain))->before.fields[0].type;
  };
  const TransformSpec to_float = cut_transforms_transform("to_float"),
                      rescale = cut_transforms_transform("rescale", {{"scale", 2.0}});
  CHECK(kept_type({kCutTransformsResize, to_float, rescale, kCrop}) == ElementType::u8);
  CHECK(kept_type({to_float, rescale}) == ElementType::u8);
  CHECK(kept_type({cut_transforms_transform("resize", {{"size", Ints{5, 5}}}), rescale, kCrop}) == ElementType::f32);
}

TEST_CASE("ranks that share a cache read each sample once together") {
  const int file = memfd_create("samples", MFD_CLOEXEC);
  const auto source = std::make_shared<CutTransformsPictures>();
  const DatasetSpec spec = cut_transforms_spec_of({kCutTransformsResize, kCrop, cut_transforms_transform("to_float")});
  const auto first = cut(source, spec, file), second = cut(source, spec, file);
  for (int64_t i = 0; i < 10; ++i) picture(i % 2 == 0 ? *first : *second, i, 0);
  for (int64_t i = 0; i < 10; ++i) CHECK(picture(*first, i, 1) == picture(*second, i, 1));
  CHECK(source->reads == 10);
  close(file);
}

TEST_CASE("a broken sample is replaced by the same sample with and without a cache before the random transforms") {
  const DatasetSpec spec = cut_transforms_spec_of({kCutTransformsResize, kCrop, cut_transforms_transform("to_float")});
  const auto source = std::make_shared<CutTransformsPictures>();
  source->broken = 4;
  const auto kept = replace_broken(cut(source, spec), 3);
  const auto plain = replace_broken(std::make_unique<SourceSet>(source, FieldWays(source->fields(), spec)), 3);
  for (uint64_t pass = 0; pass < 2; ++pass)
    for (int64_t i = 0; i < 10; ++i) CHECK(picture(*kept, i, pass) == picture(*plain, i, pass));
}
