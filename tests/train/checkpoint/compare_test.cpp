// Tests of `checkpoint diff`: which tensors differ, and by how much.
#include "engine/train/checkpoint/compare.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/train/checkpoint/values.h"
#include "engine/train/checkpoint/write_whole.h"
#include "engine/train/files/input_file.h"
#include "tests/train/checkpoint/sample.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Written {
  SafetensorsEntry entry;
  std::vector<uint8_t> bytes;
};

std::unique_ptr<WholeTensors> file(const ScratchFolder& scratch, const std::string& name,
                                   const std::vector<Written>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const Written& one : tensors) entries.push_back(one.entry);
  SafetensorsWriter writer(scratch.path() + "/" + name, entries);
  for (const Written& one : tensors) writer.write(writer.index_of(one.entry.name), 0, one.bytes);
  writer.finish();
  return open_tensors(scratch.path() + "/" + name);
}

SafetensorsEntry entry(const std::string& name, StoredType type, Shape shape) {
  return {.name = name, .type = type, .shape = std::move(shape)};
}

double value(StoredType type, std::vector<uint8_t> bytes) { return value_of(type, bytes.data()); }

}  // namespace

TEST_CASE("a checkpoint equals itself, cut in another way or merged into one file") {
  const ScratchFolder scratch;
  std::mt19937 random(3);
  CheckpointDirectory one(scratch.path() + "/one"), three(scratch.path() + "/three");
  const std::string a = save_sample(one, sample_tensors(1, random), 7, one.claim_attempt());
  const std::string b = save_sample(three, sample_tensors(3, random), 7, three.claim_attempt());
  const std::string merged = scratch.path() + "/all.safetensors";
  write_whole(read_manifest(a), a, merged);
  for (const std::string& other : {a, b, merged}) {
    const Comparison found = compare(*open_tensors(a), *open_tensors(other));
    CHECK(found.equal());
    CHECK(found.num_tensors() == 6);
    CHECK(found.num_equal() == 6);
  }
}

TEST_CASE("the largest absolute and relative difference of a tensor, and where it is") {
  const ScratchFolder scratch;
  const auto a = file(scratch, "a", {{entry("w", StoredType::f32, {2, 3}), bytes_of<float>({1, 2, 3, 4, 5, 6})}});
  const auto b = file(scratch, "b", {{entry("w", StoredType::f32, {2, 3}), bytes_of<float>({1, 1, 3, 4, 5, 8})}});
  const Comparison found = compare(*a, *b);
  CHECK_FALSE(found.equal());
  REQUIRE(found.compared.size() == 1);
  const TensorDifference& w = found.compared[0];
  CHECK(w.key == "w:weight");
  CHECK(w.elements == 6);
  CHECK(w.differing == 2);
  CHECK(w.max_abs == 2);
  CHECK(w.place() == Shape{1, 2});
  CHECK(w.max_rel == 0.5);
}

TEST_CASE("a nan differs from a number and not from a nan of the same bits") {
  const ScratchFolder scratch;
  const float nan = std::nanf("");
  const auto a = file(scratch, "a", {{entry("w", StoredType::f32, {2}), bytes_of<float>({nan, 1})}});
  const auto b = file(scratch, "b", {{entry("w", StoredType::f32, {2}), bytes_of<float>({nan, nan})}});
  CHECK(compare(*a, *a).equal());
  const Comparison found = compare(*a, *b);
  CHECK(found.compared[0].differing == 1);
  CHECK(std::isinf(found.compared[0].max_abs));
}

TEST_CASE("zeros of two signs differ, by nothing") {
  const ScratchFolder scratch;
  const auto a = file(scratch, "a", {{entry("w", StoredType::f32, {1}), bytes_of<float>({0.0f})}});
  const auto b = file(scratch, "b", {{entry("w", StoredType::f32, {1}), bytes_of<float>({-0.0f})}});
  const Comparison found = compare(*a, *b);
  CHECK_FALSE(found.equal());
  CHECK(found.compared[0].differing == 1);
  CHECK(found.compared[0].max_abs == 0);
}

TEST_CASE("missing, extra and reshaped tensors are named, and slots can be chosen") {
  const ScratchFolder scratch;
  const auto a = file(scratch, "a",
                      {{entry("w:weight", StoredType::f32, {2}), bytes_of<float>({1, 2})},
                       {entry("w:momentum", StoredType::f32, {2}), bytes_of<float>({1, 2})},
                       {entry("v:weight", StoredType::f32, {2}), bytes_of<float>({1, 2})}});
  const auto b = file(scratch, "b",
                      {{entry("w:weight", StoredType::f32, {2}), bytes_of<float>({1, 2})},
                       {entry("v:weight", StoredType::f32, {2, 1}), bytes_of<float>({1, 2})},
                       {entry("u:weight", StoredType::f32, {1}), bytes_of<float>({1})}});
  const Comparison found = compare(*a, *b);
  REQUIRE(found.missing.size() == 1);
  CHECK(found.missing[0].key == "w:momentum");
  REQUIRE(found.extra.size() == 1);
  CHECK(found.extra[0].key == "u:weight");
  REQUIRE(found.other_shape.size() == 1);
  CHECK(found.other_shape[0].second.shape == Shape{2, 1});
  CHECK(found.num_tensors() == 4);
  CHECK(found.num_equal() == 1);
  CHECK(compare(*a, *b, {"momentum"}).missing.size() == 1);
  CHECK(compare(*a, *b, {"momentum"}).num_tensors() == 1);
}

TEST_CASE("two types are compared by value, and are not equal") {
  const ScratchFolder scratch;
  const auto a = file(scratch, "a", {{entry("w", StoredType::f32, {2}), bytes_of<float>({1, 2})}});
  const auto b = file(scratch, "b", {{entry("w", StoredType::bf16, {2}), bytes_of<uint16_t>({0x3f80, 0x4000})}});
  const Comparison found = compare(*a, *b);
  CHECK_FALSE(found.equal());
  CHECK(found.compared[0].differing == 0);
  CHECK(found.compared[0].max_abs == 0);
}

TEST_CASE("tensors of more than a block are compared to their end") {
  const ScratchFolder scratch;
  std::vector<float> values(700'001, 1);
  const auto a = file(scratch, "a", {{entry("w", StoredType::f32, {700'001}), bytes_of(values)}});
  values.back() = 4;
  const auto b = file(scratch, "b", {{entry("w", StoredType::f32, {700'001}), bytes_of(values)}});
  const Comparison found = compare(*a, *b);
  CHECK(found.compared[0].differing == 1);
  CHECK(found.compared[0].place() == Shape{700'000});
}

TEST_CASE("elements of all types as numbers") {
  CHECK(value(StoredType::boolean, {1}) == 1);
  CHECK(value(StoredType::u8, {255}) == 255);
  CHECK(value(StoredType::i8, {255}) == -1);
  CHECK(value(StoredType::i16, {0xfe, 0xff}) == -2);
  CHECK(value(StoredType::u16, {0xfe, 0xff}) == 65534);
  CHECK(value(StoredType::f16, {0x00, 0x3c}) == 1);
  CHECK(value(StoredType::f16, {0x01, 0x00}) == std::ldexp(1.0, -24));
  CHECK(value(StoredType::f16, {0x00, 0xfc}) == -HUGE_VAL);
  CHECK(std::isnan(value(StoredType::f16, {0x01, 0x7c})));
  CHECK(value(StoredType::bf16, {0x40, 0xc0}) == -3);
  CHECK(value(StoredType::bf16, {0x80, 0x7f}) == HUGE_VAL);
  CHECK(value(StoredType::bf16, {0x01, 0x00}) == std::ldexp(1.0, -133));
  CHECK(value(StoredType::f8_e4m3, {0x7e}) == 448);
  CHECK(std::isnan(value(StoredType::f8_e4m3, {0x7f})));
  CHECK(value(StoredType::f8_e4m3, {0x01}) == std::ldexp(1.0, -9));
  CHECK(value(StoredType::f8_e5m2, {0x7b}) == 57344);
  CHECK(value(StoredType::f8_e5m2, {0x7c}) == HUGE_VAL);
  CHECK(value(StoredType::f8_e5m2, {0x80}) == 0);
  CHECK(value(StoredType::f64, bytes_of<double>({1.5})) == 1.5);
  CHECK(value(StoredType::i64, bytes_of<int64_t>({-7})) == -7);
  CHECK_FALSE(has_values(StoredType::f4));
}

TEST_CASE("types without values are compared by their bytes") {
  const ScratchFolder scratch;
  const auto a = file(scratch, "a", {{entry("w", StoredType::f4, {4}), {0x12, 0x34}}});
  const auto b = file(scratch, "b", {{entry("w", StoredType::f4, {4}), {0x12, 0x35}}});
  CHECK(compare(*a, *a).equal());
  CHECK_FALSE(compare(*a, *b).equal());
  CHECK(std::isinf(compare(*a, *b).compared[0].max_abs));
}
