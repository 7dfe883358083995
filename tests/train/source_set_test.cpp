// Tests of the samples of a source as a network reads them: named fields of small types, transforms, broken samples,
// caches.
#include "engine/train/data/source_set.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "engine/base/error.h"
#include "engine/train/data/cached_set.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/loader.h"
#include "tests/train/image_files.h"

using namespace trainctl;

namespace {

/// `pixels` u8 [2, 3, 1] with 10 * sample + i, `depth` u16 [2] with 1000 * sample + i, `id` i64 [] with 7 * sample, and
/// `label` u8 [] with sample % 4.
class Numbered final : public Source {
 public:
  explicit Numbered(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    ++reads;
    if (broken.contains(sample)) throw EnvError(where(sample) + ": is broken");
    if (wanted[0]) put<uint8_t>(out[0], 6, [&](int64_t i) { return 10 * sample + i; });
    if (wanted[1]) put<uint16_t>(out[1], 2, [&](int64_t i) { return 1000 * sample + i; });
    if (wanted[2]) put<int64_t>(out[2], 1, [&](int64_t) { return 7 * sample; });
    if (wanted[3]) put<uint8_t>(out[3], 1, [&](int64_t) { return sample % 4; });
  }
  std::string where(int64_t sample) const override { return "file " + std::to_string(sample); }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }

  std::set<int64_t> broken;
  mutable std::atomic<int64_t> reads = 0;

 private:
  template <class T, class F>
  static void put(FieldBytes& out, int64_t count, F value) {
    out.resize(static_cast<size_t>(count) * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      const T element = static_cast<T>(value(i));
      std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(T), &element, sizeof(T));
    }
  }

  int64_t size_;
  std::vector<SourceField> fields_ = {{"pixels", Encoding::array, ElementType::u8, {2, 3, 1}},
                                      {"depth", Encoding::array, ElementType::u16, {2}},
                                      {"id", Encoding::array, ElementType::i64, {}},
                                      {"label", Encoding::array, ElementType::u8, {}}};
  std::vector<std::string> names_;
};

TransformSpec transform(const std::string& name, const std::string& field, Attrs attrs = {}) {
  return {name, std::move(attrs), "dataset.transforms." + field + "[0]", field};
}

std::unique_ptr<Dataset> open(std::shared_ptr<const Source> source, const DatasetSpec& spec) {
  FieldWays ways(source->fields(), spec);
  return std::make_unique<SourceSet>(std::move(source), std::move(ways));
}

/// A source of images in which the file of sample 3 is truncated.
class SourceSetPictures final : public Source {
 public:
  int64_t size() const override { return 5; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>&, std::span<FieldBytes> out) const override {
    out[0] = write_png(make_picture(4, 6, 3, static_cast<uint64_t>(sample)));
    if (sample == 3) out[0].resize(out[0].size() / 2);
  }
  std::string where(int64_t sample) const override {
    ++names;
    return "shard.tar: " + std::to_string(sample);
  }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }

  mutable std::atomic<int64_t> names = 0;

 private:
  std::vector<SourceField> fields_ = {{"image", Encoding::image, ElementType::u8, {}}};
  std::vector<std::string> names_;
};

DatasetSpec arrays(std::vector<TransformSpec> transforms = {}) {
  DatasetSpec spec;
  spec.type = "npz";
  spec.batch = 4;
  spec.shuffle = false;
  spec.transforms = std::move(transforms);
  return spec;
}

template <class T>
std::vector<T> values(const Dataset& set, const std::string& field, int64_t sample) {
  std::vector<T> out(static_cast<size_t>(set.fields()[static_cast<size_t>(set.find(field))].elements()));
  set.read(field, sample, out.data());
  return out;
}

Instruction load(const std::string& tensor, DType dtype, Shape whole, Shape offset, Shape part) {
  Instruction instruction;
  instruction.opcode = Opcode::load;
  instruction.op = tensor;
  instruction.micro_batch = 0;
  Operand operand;
  operand.dtype = dtype;
  operand.global_shape = whole;
  operand.global_offset = offset;
  operand.shape = part;
  instruction.outputs = {operand};
  return instruction;
}

}  // namespace

TEST_CASE("integers are stored in their own type and loaded as i32, and results of float transforms as f32") {
  DatasetSpec spec = arrays({transform("rescale", "pixels", {{"scale", 0.5}, {"shift", 0.0}})});
  const auto set = open(std::make_shared<Numbered>(9), spec);
  REQUIRE(set->fields().size() == 4);
  CHECK(set->fields()[0].type == ElementType::f32);
  CHECK(set->fields()[1].type == ElementType::u16);
  CHECK(set->fields()[2].type == ElementType::i64);
  CHECK(set->fields()[3].bytes() == 1);
  const DataShapes shapes = set->shapes();
  CHECK(shapes ==
        DataShapes{{{"pixels", {2, 3, 1}, false}, {"depth", {2}, true}, {"id", {}, true}, {"label", {}, true}}});
  CHECK(shapes.find("data") == shapes.find("pixels"));
  CHECK(values<float>(*set, "pixels", 2) == std::vector<float>{10, 10.5f, 11, 11.5f, 12, 12.5f});
  CHECK(values<int32_t>(*set, "depth", 8) == std::vector<int32_t>{8000, 8001});
  CHECK(values<int32_t>(*set, "id", 5) == std::vector<int32_t>{35});
  spec.label_dtype = "f32";
  CHECK(values<float>(*open(std::make_shared<Numbered>(9), spec), "label", 7) == std::vector<float>{3});
}

TEST_CASE("the name of an image is asked for when it is broken, and not when it is read") {
  // A regression: reading the name of a sample in a tar file is a separate read, which made small images slower by a
  // quarter.
  DatasetSpec spec = arrays({transform("resize", "image", {{"size", Ints{4, 6}}, {"method", std::string("area")}})});
  spec.type = "tar";
  const auto source = std::make_shared<SourceSetPictures>();
  const auto set = open(source, spec);
  for (const int64_t sample : {0, 1, 2, 4}) CHECK(values<float>(*set, "image", sample).size() == 4 * 6 * 3);
  CHECK(source->names == 0);
  std::string error;
  try {
    values<float>(*set, "image", 3);
  } catch (const EnvError& thrown) {
    error = thrown.what();
  }
  CHECK(error.starts_with("shard.tar: 3: "));
  CHECK(error.find("PNG") != std::string::npos);
}

TEST_CASE("transforms apply to the field that they name, by default to the first one that is not the label") {
  const std::vector<SourceField> fields = {{"label", Encoding::array, ElementType::u8, {}},
                                           {"a", Encoding::array, ElementType::u8, {4}},
                                           {"b", Encoding::array, ElementType::u8, {4}}};
  const DatasetSpec unnamed = arrays({transform("rescale", "")}), named = arrays({transform("rescale", "b")});
  CHECK(transforms_of(unnamed, fields, "a").size() == 1);
  CHECK(transforms_of(unnamed, fields, "b").empty());
  CHECK(transforms_of(unnamed, fields, "label").empty());
  CHECK(transforms_of(named, fields, "a").empty());
  CHECK(transforms_of(named, fields, "b").size() == 1);
}

TEST_CASE("a batch has every field that the program loads, whole or cut, in the type of its load") {
  Program program;
  program.instructions = {load("depth", DType::i32, {4, 2}, {0, 1}, {4, 1}),
                          load("pixels", DType::bf16, {4, 2, 3, 1}, {2, 0, 0, 0}, {2, 2, 3, 1}),
                          load("pixels", DType::f32, {4, 2, 3, 1}, {0, 1, 0, 0}, {4, 1, 3, 1}),
                          load("label", DType::i32, {4}, {0}, {4})};
  const DatasetSpec spec = arrays({transform("rescale", "pixels", {{"scale", 1.0}, {"shift", 0.0}})});
  Loader loader(open(std::make_shared<Numbered>(8), spec), spec, program, 1, {.num_steps = 2});
  loader.next_step();
  loader.release_step();
  const std::byte* block = loader.next_step();
  const std::vector<int64_t> at = input_layout(program).offsets;
  const auto* depth = reinterpret_cast<const int32_t*>(block + at[0]);
  CHECK(std::vector<int32_t>(depth, depth + 4) == std::vector<int32_t>{4001, 5001, 6001, 7001});
  const auto* rows = reinterpret_cast<const uint16_t*>(block + at[1]);
  CHECK(rows[0] == 0x4270);  // 60
  const auto* lower = reinterpret_cast<const float*>(block + at[2]);
  CHECK(std::vector<float>(lower, lower + 6) == std::vector<float>{43, 44, 45, 53, 54, 55});
  const auto* label = reinterpret_cast<const int32_t*>(block + at[3]);
  CHECK(std::vector<int32_t>(label, label + 4) == std::vector<int32_t>{0, 1, 2, 3});
}

TEST_CASE("rows that pad a batch of an evaluation have no label, even if labels are bytes") {
  Program program;
  program.instructions = {load("label", DType::i32, {4}, {0}, {4})};
  DatasetSpec spec = arrays();
  spec.drop_last = false;
  Loader loader(open(std::make_shared<Numbered>(6), spec), spec, program, 1, {.num_steps = 2, .no_label = -100});
  loader.next_step();
  loader.release_step();
  const auto* label = reinterpret_cast<const int32_t*>(loader.next_step());
  CHECK(std::vector<int32_t>(label, label + 4) == std::vector<int32_t>{0, 1, -100, -100});
  CHECK(loader.oldest_samples() == 2);
}

TEST_CASE("an integer that does not fit in 32 bits is an error, not another number") {
  const int64_t values[] = {1, int64_t{1} << 31};
  int32_t out[2];
  CHECK_NOTHROW(convert_elements(values, ElementType::i64, 1, DType::i32, out));
  CHECK_THROWS_AS(convert_elements(values, ElementType::i64, 2, DType::i32, out), EnvError);
}

TEST_CASE("a broken sample is an error that names it, or is replaced by another one without a change of the others") {
  const DatasetSpec spec = arrays();
  const auto ids = [&](std::set<int64_t> broken, uint64_t seed) {
    auto source = std::make_shared<Numbered>(40);
    source->broken = std::move(broken);
    const auto set = replace_broken(open(source, spec), seed);
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < set->size(); ++i) {
      taken.push_back(values<int32_t>(*set, "id", i)[0] / 7);
      // If a sample is replaced by another one, a rank that reads only the label takes the label of the same
      // replacement.
      CHECK(values<int32_t>(*set, "label", i)[0] == taken.back() % 4);
    }
    CHECK(set->skipped().count >= 2 * static_cast<int64_t>(source->broken.size()));
    return taken;
  };
  const auto whole = ids({}, 1), some = ids({3, 17, 39}, 1);
  for (int64_t i = 0; i < 40; ++i) {
    const auto at = static_cast<size_t>(i);
    CHECK(whole[at] == i);
    if (i != 3 && i != 17 && i != 39) CHECK(some[at] == i);
  }
  for (const size_t at : {3, 17, 39}) CHECK(std::set<int64_t>{3, 17, 39}.count(some[at]) == 0);
  CHECK(ids({3, 17, 39}, 1) == some);
  CHECK(ids({3, 17, 39}, 2) != some);

  auto source = std::make_shared<Numbered>(40);
  source->broken = {17};
  const auto plain = open(source, spec);
  CHECK_THROWS_WITH_AS(values<int32_t>(*plain, "id", 17), "file 17: is broken", EnvError);
  source->broken.clear();
  for (int64_t i = 0; i < 40; ++i) source->broken.insert(i);
  const auto hopeless = replace_broken(open(source, spec), 1);
  CHECK_THROWS_AS(values<int32_t>(*hopeless, "id", 1), EnvError);
}

TEST_CASE("the skipped samples are counted, and the first one is named") {
  auto source = std::make_shared<Numbered>(40);
  source->broken = {5};
  const auto set = replace_broken(open(source, arrays()), 1);
  CHECK(set->skipped().count == 0);
  for (int64_t i = 0; i < 10; ++i) values<int32_t>(*set, "id", i);
  CHECK(set->skipped().count >= 1);
  CHECK(set->skipped().first == "file 5: is broken");
}

TEST_CASE("a cache reads each field of a sample once, in memory and on the disk alike") {
  for (const CachePlace place : {CachePlace::memory, CachePlace::disk}) {
    const auto source = std::make_shared<Numbered>(12);
    const auto set = keep_samples(open(source, arrays()), place);
    CHECK(cached_bytes(*set) == 12 * (6 + 4 + 8 + 1));
    for (int round = 0; round < 3; ++round)
      for (int64_t i = 0; i < 12; ++i) {
        CHECK(values<int32_t>(*set, "depth", i) == std::vector<int32_t>{int32_t(1000 * i), int32_t(1000 * i + 1)});
        CHECK(values<int32_t>(*set, "label", i)[0] == i % 4);
      }
    CHECK(source->reads == 24);
  }
}
