// Tests of initial weights: under any layout, bucket or shard, the value of an element depends only on its index in the
// whole tensor.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/base/text.h"
#include "engine/graph/bf16.h"
#include "engine/ops/random.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/parts.h"

using namespace trainctl;

namespace {

const Init kUniform{Init::Kind::uniform, 0.25};
const Init kNormal{Init::Kind::normal, 2.0};

Variable variable(const std::string& name, const Init& init, Shape whole, Shape offset, Shape part) {
  Variable v;
  v.name = name;
  v.init = init;
  v.global_shape = whole;
  v.offset = offset;
  v.shape = part;
  return v;
}

}  // namespace

TEST_CASE("runs of a part are the part's elements in order, as long as they can be") {
  std::vector<std::vector<int64_t>> runs;
  const auto add = [&](int64_t part, int64_t whole, int64_t length) { runs.push_back({part, whole, length}); };
  for_each_run({4, 3, 2}, {1, 0, 0}, {2, 3, 2}, add);
  CHECK(runs == std::vector<std::vector<int64_t>>{{0, 6, 12}});
  runs.clear();
  for_each_run({4, 3, 2}, {2, 1, 0}, {2, 2, 2}, add);
  CHECK(runs == std::vector<std::vector<int64_t>>{{0, 14, 4}, {4, 20, 4}});
  runs.clear();
  for_each_run({2, 2, 3}, {0, 1, 2}, {2, 1, 1}, add);
  CHECK(runs == std::vector<std::vector<int64_t>>{{0, 5, 1}, {1, 11, 1}});
  runs.clear();
  for_each_run({}, {}, {}, add);
  CHECK(runs == std::vector<std::vector<int64_t>>{{0, 0, 1}});
}

TEST_CASE("a uniform weight is bound * (2u - 1) with u the element's own random number") {
  std::vector<float> values(10);
  initial_values("layer1.weight", kUniform, 7, 3, 10, values.data());
  const uint64_t key = stream_key(7, stable_hash("layer1.weight"));
  for (int i = 0; i < 10; ++i) CHECK(values[i] == 0.25f * (2.0f * philox_uniform(key, i + 3, 0) - 1.0f));
}

TEST_CASE("normal weights have the standard deviation asked for") {
  std::vector<float> values(20000);
  initial_values("e", kNormal, 1, 0, 20000, values.data());
  double sum = 0, squares = 0;
  for (float v : values) {
    sum += v;
    squares += double(v) * v;
  }
  CHECK(std::abs(sum / 20000) < 0.05);
  CHECK(std::sqrt(squares / 20000) == doctest::Approx(2.0).epsilon(0.02));
}

TEST_CASE("a slice has the values of the whole tensor at its position") {
  for (const Init& init : {kUniform, kNormal}) {
    std::vector<float> whole(5 * 7), part(3 * 2);
    initial_values("w", init, 3, 0, 35, whole.data());
    initial_values(variable("w", init, {5, 7}, {1, 4}, {3, 2}), 3, 0, 6, part.data());
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 2; ++c) CHECK(part[r * 2 + c] == whole[(r + 1) * 7 + c + 4]);
    }
  }
}

TEST_CASE("shards of a level-3 bucket together hold the bucket, wherever variables are cut") {
  Program program;
  program.variables = {variable("a", kUniform, {5, 3}, {0, 0}, {5, 3}), variable("b", kNormal, {8, 7}, {4, 0}, {4, 7}),
                       variable("c", {Init::Kind::constant, 1.5}, {9}, {0}, {9})};
  program.variables[1].bucket_element = 15;
  program.variables[2].bucket_element = 43;
  for (Variable& v : program.variables) v.bucket = 0;
  Bucket bucket;
  bucket.elements = 96;
  bucket.level = 3;
  bucket.weights_offset = 64;

  const auto fill = [&](int shards, int shard) {
    bucket.shards = shards;
    bucket.shard = shard;
    program.buckets = {bucket};
    std::vector<std::byte> arena(static_cast<size_t>(64 + 96 * 4));
    write_initial_weights(program, 11, arena.data());
    std::vector<float> weights(static_cast<size_t>(96 / shards));
    std::memcpy(weights.data(), arena.data() + 64, weights.size() * 4);
    return weights;
  };
  const std::vector<float> whole = fill(1, 0);
  std::vector<float> expected(96, 0.0f);
  initial_values(program.variables[0], 11, 0, 15, expected.data());
  initial_values(program.variables[1], 11, 0, 28, expected.data() + 15);
  for (int i = 43; i < 52; ++i) expected[i] = 1.5f;
  CHECK(whole == expected);
  for (int shards : {2, 3, 6}) {
    std::vector<float> together;
    for (int s = 0; s < shards; ++s) {
      const auto part = fill(shards, s);
      together.insert(together.end(), part.begin(), part.end());
    }
    CHECK(together == whole);
  }
}

TEST_CASE("a rank keeps a shard of each piece of a bucket, one after another") {
  Program program;
  program.variables = {variable("a", kUniform, {12, 8}, {0, 0}, {12, 8})};
  program.variables[0].bucket = 0;
  std::vector<float> whole(96);
  initial_values(program.variables[0], 11, 0, 96, whole.data());
  Bucket bucket{.name = "bucket0", .elements = 96};
  bucket.level = 2;
  bucket.shards = 2;
  bucket.shard = 1;
  bucket.pieces = 3;
  bucket.weights_offset = 0;
  bucket.compute_offset = 48 * 4;
  program.buckets = {bucket};
  std::vector<float> arena(96);
  write_initial_weights(program, 11, reinterpret_cast<std::byte*>(arena.data()));
  const auto* halves = reinterpret_cast<const uint16_t*>(arena.data() + 48);
  for (size_t i = 0; i < 48; ++i) CHECK(arena[i] == whole[i / 16 * 32 + 16 + i % 16]);
  for (size_t i = 0; i < 96; ++i) CHECK(halves[i] == to_bf16(whole[i]));
}

TEST_CASE("bf16: the copy that kernels read starts as the f32 weights rounded, each cut as it is kept") {
  Program program;
  program.variables = {variable("a", kUniform, {5, 7}, {0, 0}, {5, 7}), variable("b", kNormal, {9}, {0}, {9})};
  program.variables[1].bucket_element = 35;
  for (Variable& v : program.variables) v.bucket = 0;
  std::vector<float> whole(64, 0.0f);
  initial_values(program.variables[0], 11, 0, 35, whole.data());
  initial_values(program.variables[1], 11, 0, 9, whole.data() + 35);
  for (int level = 0; level <= 3; ++level) {
    CAPTURE(level);
    Bucket bucket{.name = "bucket0", .elements = 64};
    bucket.level = level;
    bucket.shards = level == 0 ? 1 : 4;
    bucket.shard = level == 0 ? 0 : 2;
    bucket.weights_offset = 0;
    bucket.compute_offset = 256;
    program.buckets = {bucket};
    std::vector<float> arena(256);
    write_initial_weights(program, 11, reinterpret_cast<std::byte*>(arena.data()));
    const int64_t master = level == 0 ? 0 : 32, copy = level == 3 ? 32 : 0;
    const auto* halves = reinterpret_cast<const uint16_t*>(arena.data() + 64);
    for (int64_t i = 0; i < bucket.shard_elements(); ++i) CHECK(arena[size_t(i)] == whole[size_t(master + i)]);
    for (int64_t i = 0; i < (level == 3 ? 16 : 64); ++i) CHECK(halves[i] == to_bf16(whole[size_t(copy + i)]));
  }
}
