// Tests of fields that stay bytes until they are loaded: the floats that a worker computes, and those of a device's
// table, have the same bits as after the transforms.
#include "engine/train/data/byte_map.h"

#include <doctest/doctest.h>

#include <cstring>

#include "engine/graph/bf16.h"
#include "engine/train/data/batch_mixing.h"
#include "engine/train/data/cached_set.h"
#include "engine/train/data/cut_transforms.h"
#include "engine/train/data/loader.h"
#include "engine/train/data/source_set.h"

using namespace trainctl;

namespace {

TransformSpec byte_map_transform(const char* name, Attrs attrs = {}) {
  return {name, std::move(attrs), "dataset.transforms[0]"};
}

const TransformSpec kToFloat = byte_map_transform("to_float"), kLayout = byte_map_transform("hwc2chw");
const TransformSpec kNormalize = byte_map_transform(
    "normalize", {{"mean", std::vector<double>{0.1, 0.2, 0.3}}, {"std", std::vector<double>{0.5, 0.3, 0.7}}});
const TransformSpec kRescale = byte_map_transform("rescale", {{"scale", 0.3}, {"shift", -1.7}});
const TransformSpec kFlip = byte_map_transform("horizontal_flip");
const TransformSpec kErase = byte_map_transform("random_erasing", {{"p", 1.0}});
const TransformSpec kResize = byte_map_transform("resize", {{"size", Ints{5, 4}}, {"method", "area"}});

/// Applies the table to a sample in the way that a device does: see ByteTable.
std::vector<float> mapped(const ByteTable& table, const uint8_t* bytes) {
  std::vector<float> out(static_cast<size_t>(table.sample_elements()));
  for (int64_t c = 0; c < table.channels; ++c)
    for (int64_t p = 0; p < table.pixels; ++p) {
      const int64_t in = table.from_planes ? c * table.pixels + p : p * table.channels + c;
      const int64_t to = table.to_planes ? c * table.pixels + p : p * table.channels + c;
      out[static_cast<size_t>(to)] = table.values[static_cast<size_t>(c * ByteTable::kValues + bytes[in])];
    }
  return out;
}

/// A source whose sample s has a u8 "image" [6, 7, 3], and the label s % 3.
class ByteMapPictures final : public Source {
 public:
  int64_t size() const override { return 24; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    for (int64_t i = 0; wanted[0] && i < 126; ++i) {
      out[0].resize(126);
      out[0][static_cast<size_t>(i)] = static_cast<std::byte>(sample * 37 + i * i * 11);
    }
    if (wanted[1]) out[1].assign(1, static_cast<std::byte>(sample % 3));
  }
  std::string where(int64_t sample) const override { return "picture " + std::to_string(sample); }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }

 private:
  std::vector<SourceField> fields_ = {{"image", Encoding::array, ElementType::u8, {6, 7, 3}},
                                      {"label", Encoding::array, ElementType::u8, {}}};
  std::vector<std::string> names_;
};

DatasetSpec byte_map_spec_of(std::vector<TransformSpec> transforms) {
  DatasetSpec spec;
  spec.type = "npy";
  spec.transforms = std::move(transforms);
  spec.batch = 8;
  return spec;
}

std::unique_ptr<Dataset> pictures(const DatasetSpec& spec, FieldWays::Bytes bytes) {
  const auto source = std::make_shared<ByteMapPictures>();
  return std::make_unique<SourceSet>(source, FieldWays(source->fields(), spec, bytes));
}

/// Loads all of "image", in rows of bf16 or f32, and the label.
Program program_of(const Dataset& set, DType type) {
  Program program;
  for (const SampleField& field : set.fields()) {
    Instruction load;
    load.opcode = Opcode::load;
    load.op = field.name;
    Operand operand;
    operand.dtype = field.is_integer ? DType::i32 : type;
    operand.global_shape = field.shape;
    operand.global_shape.insert(operand.global_shape.begin(), 8);
    operand.shape = operand.global_shape;
    operand.global_offset = Shape(operand.shape.size(), 0);
    load.outputs = {operand};
    program.instructions.push_back(load);
  }
  return program;
}

ByteTable table_of(const SampleField& field) {
  ByteTable table = field.map->table();
  table.tensor = field.name;
  return table;
}

std::vector<std::byte> bytes_of(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

const TransformSpec kInside = byte_map_transform("random_crop", {{"size", Ints{4, 5}}});

const std::vector<std::vector<TransformSpec>> kChains = {
    {kToFloat},
    {kToFloat, kNormalize, kInside, kFlip, kLayout},
    {kRescale, kFlip, byte_map_transform("center_crop", {{"size", Ints{2, 2}}})},
    {kToFloat, kNormalize, kLayout},
    {kLayout, kToFloat, kNormalize},
    {kResize, kRescale},
    {kFlip, kNormalize, kLayout},
    {kLayout, kErase, kToFloat, kNormalize},
    {kErase, kLayout, kRescale},
    {kFlip, byte_map_transform("type_cast", {{"dtype", "f32"}})}};

}  // namespace

TEST_CASE("bytes that stay become the floats of the transforms, by a worker and by a device's table") {
  for (const std::vector<TransformSpec>& specs : kChains) {
    CAPTURE(specs.back().name);
    const SampleType input{ElementType::u8, {6, 7, 3}};
    const SampleTransforms floats(specs, input), bytes(specs, input, "dataset.transforms", true);
    REQUIRE(bytes.byte_map() != nullptr);
    CHECK(bytes.result().type == ElementType::u8);
    CHECK(bytes.result().shape == floats.result().shape);
    std::vector<uint8_t> picture(126);
    for (size_t i = 0; i < picture.size(); ++i) picture[i] = static_cast<uint8_t>(i * i * 7);
    TransformScratch scratch;
    for (int64_t sample = 0; sample < 4; ++sample) {
      const auto count = static_cast<size_t>(num_elements(floats.result().shape));
      std::vector<float> expected(count), loaded(count);
      std::vector<uint8_t> left(count);
      std::vector<uint16_t> rounded(count), expected_rounded(count);
      SampleRng first(3, 0, sample), second(3, 0, sample);
      floats.run(view_of(picture.data(), {6, 7, 3}), first, scratch, expected.data());
      bytes.run(view_of(picture.data(), {6, 7, 3}), second, scratch, left.data());
      bytes.byte_map()->load(left.data(), DType::f32, loaded.data());
      CHECK(bytes_of(loaded.data(), int64_t(4 * count)) == bytes_of(expected.data(), int64_t(4 * count)));
      const std::vector<float> by_table = mapped(bytes.byte_map()->table(), left.data());
      CHECK(bytes_of(by_table.data(), int64_t(4 * count)) == bytes_of(expected.data(), int64_t(4 * count)));
      bytes.byte_map()->load(left.data(), DType::bf16, rounded.data());
      for (size_t i = 0; i < count; ++i) expected_rounded[i] = to_bf16(expected[i]);
      CHECK(rounded == expected_rounded);
    }
  }
}

TEST_CASE("a chain that does more than map bytes, a chain whose rows are mixed, and a label have no map") {
  const SampleType input{ElementType::u8, {6, 7, 3}};
  for (const std::vector<TransformSpec>& specs : std::vector<std::vector<TransformSpec>>{
           {kResize}, {kToFloat, kErase}, {byte_map_transform("resize", {{"size", Ints{5, 4}}}), kNormalize}})
    CHECK(SampleTransforms(specs, input, "dataset.transforms", true).byte_map() == nullptr);
  CHECK(SampleTransforms({kRescale}, {ElementType::f32, {4}}, "p", true).byte_map() == nullptr);
  CHECK_FALSE(may_keep_bytes("image", {kToFloat, byte_map_transform("mixup")}));
  CHECK_FALSE(may_keep_bytes("label", {kToFloat}));
}

TEST_CASE("values that are the same in each channel need one table, whatever the dims are") {
  const SampleTransforms chain({kRescale}, {ElementType::u8, {2, 3, 5, 7}}, "p", true);
  const ByteTable table = chain.byte_map()->table();
  CHECK(table.channels == 1);
  CHECK(table.pixels == 210);
  CHECK(table.values.size() == 256);
  const SampleTransforms many({kToFloat, kRescale}, {ElementType::u8, {3, 32, 32}}, "p", true);
  CHECK(many.byte_map()->table().channels == 1);
}

TEST_CASE("batches of bytes are the same for workers, for devices that map bytes, and with a cache") {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::vector<TransformSpec>& specs : kChains) {
      CAPTURE(specs.back().name);
      DatasetSpec spec = byte_map_spec_of(specs);
      spec.shuffle = true;
      const auto plain = pictures(spec, FieldWays::Bytes::become_floats);
      const Program program = program_of(*plain, type);
      const InputLayout usual = input_layout(program);
      const auto batches = [&](std::unique_ptr<Dataset> set, const InputLayout& layout) {
        Loader loader(std::move(set), spec, program, 5, {.num_steps = 6, .layout = &layout});
        std::vector<std::vector<std::byte>> all;
        for (int step = 0; step < 6; ++step) {
          all.push_back(bytes_of(loader.next_step(), layout.bytes));
          loader.release_step();
        }
        return all;
      };
      const auto expected = batches(pictures(spec, FieldWays::Bytes::become_floats), usual);
      CHECK(batches(pictures(spec, FieldWays::Bytes::stay), usual) == expected);
      CHECK(pictures(spec, FieldWays::Bytes::stay)->shapes() == plain->shapes());

      const auto source = std::make_shared<ByteMapPictures>();
      std::optional<CutTransforms> cut = cut_at_first_random(source->fields(), spec, FieldWays::Bytes::stay);
      REQUIRE(cut);
      auto kept = keep_samples(std::make_unique<SourceSet>(source, std::move(cut->before)), CachePlace::memory);
      CHECK(batches(continue_samples(std::move(kept), plain->fields(), std::move(cut->after)), usual) == expected);

      auto set = pictures(spec, FieldWays::Bytes::stay);
      const ByteTable table = table_of(set->fields()[0]);
      const InputLayout narrow = input_layout(program, {}, {table});
      CHECK(narrow.as_bytes[0]);
      CHECK_FALSE(narrow.as_bytes[1]);
      CHECK(narrow.bytes < usual.bytes);
      const int64_t elements = table.sample_elements();
      const auto as_bytes = batches(std::move(set), narrow);
      for (size_t step = 0; step < as_bytes.size(); ++step)
        for (int64_t row = 0; row < 8; ++row) {
          const std::vector<float> floats =
              mapped(table, reinterpret_cast<const uint8_t*>(as_bytes[step].data()) + row * elements);
          for (int64_t i = 0; i < elements; ++i) {
            const std::byte* at = expected[step].data() + (row * elements + i) * byte_size(type);
            const float value = floats[static_cast<size_t>(i)];
            const uint16_t rounded = to_bf16(value);
            const void* own = type == DType::f32 ? static_cast<const void*>(&value) : &rounded;
            if (std::memcmp(at, own, static_cast<size_t>(byte_size(type))) != 0)
              FAIL("row " << row << ", element " << i);
          }
        }
    }
  }
}

namespace {

/// A folder of photos, none of which is read.
class Photos final : public Source {
 public:
  int64_t size() const override { return 8; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t, const std::vector<bool>&, std::span<FieldBytes>) const override {}
  std::string where(int64_t) const override { return ""; }
  int64_t memory_bytes() const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }

 private:
  std::vector<SourceField> fields_ = {{"image", Encoding::image, ElementType::u8, {}}};
  std::vector<std::string> names_;
};

std::vector<ByteTable> tables_of_photos(int64_t side, std::vector<TransformSpec> specs) {
  specs.insert(specs.begin(), byte_map_transform("resize", {{"size", Ints{side, side}}, {"method", "area"}}));
  const auto source = std::make_shared<Photos>();
  const SourceSet set(source, FieldWays(source->fields(), byte_map_spec_of(std::move(specs)), FieldWays::Bytes::stay));
  return byte_tables(set, program_of(set, DType::f32));
}

}  // namespace

TEST_CASE("a device gets bytes only for large loads, and pixels without transforms unchanged") {
  CHECK(tables_of_photos(16, {kNormalize, kLayout}).empty());
  const std::vector<ByteTable> normalized = tables_of_photos(64, {kNormalize, kLayout});
  REQUIRE(normalized.size() == 1);
  CHECK(normalized[0].tensor == "image");
  CHECK(normalized[0].to_planes);
  CHECK(normalized[0].channels == 3);
  const std::vector<ByteTable> pixels = tables_of_photos(64, {});
  REQUIRE(pixels.size() == 1);
  CHECK(pixels[0].values[200] == 200);
  CHECK(pixels[0].channels == 1);
}
