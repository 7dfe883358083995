// Tests of the files of printed tensors, which are read here in the way numpy reads them.
#include "engine/train/files/npy_file.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "engine/base/error.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string header(const std::string& head) { return head.substr(10); }

std::vector<float> floats(const std::string& path, const Shape& shape) {
  const std::string text = file(path), head = npy_head(shape, DType::f32);
  REQUIRE(text.substr(0, head.size()) == head);
  std::vector<float> values((text.size() - head.size()) / sizeof(float));
  std::memcpy(values.data(), text.data() + head.size(), values.size() * sizeof(float));
  return values;
}

/// The values of a part of a tensor in which every element is its own index: 0, 1, 2, …
std::vector<float> indices(const Shape& whole, const Shape& first, const Shape& shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < num_elements(shape); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      at += (first[d] + rest % shape[d]) * stride;
      rest /= shape[d];
      stride *= whole[d];
    }
    values.push_back(static_cast<float>(at));
  }
  return values;
}

}  // namespace

TEST_CASE("the head of an npy file is the one that numpy writes") {
  const std::string head = npy_head({64, 10}, DType::f32);
  CHECK(head.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK(head.size() % 64 == 0);
  CHECK(static_cast<unsigned char>(head[8]) + 256 * static_cast<unsigned char>(head[9]) == head.size() - 10);
  CHECK(header(head).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (64, 10), }"));
  CHECK(head.back() == '\n');
  CHECK(header(npy_head({7}, DType::i32)).starts_with("{'descr': '<i4', 'fortran_order': False, 'shape': (7,), }"));
  CHECK(header(npy_head({}, DType::bf16)).starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (), }"));
  for (int64_t size = 1; size < 1'000'000'000'000; size *= 10)
    CHECK(npy_head({size, size}, DType::f32).size() % 64 == 0);
}

TEST_CASE("parts written in any order make the whole tensor, however they are cut") {
  const ScratchFolder scratch;
  const Shape whole = {4, 6, 8};
  int number = 0;
  for (const Shape& ways :
       {Shape{1, 1, 1}, Shape{2, 1, 1}, Shape{1, 3, 1}, Shape{1, 1, 4}, Shape{2, 3, 2}, Shape{4, 1, 8}}) {
    CAPTURE(to_string(ways));
    const std::string path = scratch.path() + "/" + std::to_string(number++) + ".npy";
    const Shape shape = {whole[0] / ways[0], whole[1] / ways[1], whole[2] / ways[2]};
    for (int64_t a = ways[0]; a-- > 0;)
      for (int64_t b = 0; b < ways[1]; ++b)
        for (int64_t c = ways[2]; c-- > 0;) {
          const Shape first = {a * shape[0], b * shape[1], c * shape[2]};
          write_npy_part(path, whole, DType::f32, first, shape, indices(whole, first, shape).data());
        }
    CHECK(floats(path, whole) == indices(whole, {0, 0, 0}, whole));
  }
}

TEST_CASE("parts that hosts have written apart are put together, and a newer part counts") {
  const ScratchFolder scratch;
  const std::string step = scratch.path() + "/step.1";
  fs::create_directory(step);
  const Shape whole = {4, 6}, half = {2, 6};
  const std::vector<float> stale(12, -1);
  write_npy_shard(step, "h.0.fc", whole, DType::f32, {0, 0}, half, stale.data());
  const std::string older = step + "/h.0.fc.part.0x0.2x6.4x6.npy";
  fs::last_write_time(older, fs::last_write_time(older) - std::chrono::hours(1));
  write_npy_shard(step, "h.0.fc", whole, DType::f32, {0, 0}, {4, 3}, indices(whole, {0, 0}, {4, 3}).data());
  write_npy_shard(step, "h.0.fc", whole, DType::f32, {0, 3}, {4, 3}, indices(whole, {0, 3}, {4, 3}).data());
  std::ofstream(step + "/x.part.0.2.4.npy") << "not a file of numpy";
  const std::string large = "999999999";  // elements that no int64_t counts
  std::ofstream(step + "/y.part.0x0x0.0x1x1." + large + "x" + large + "x" + large + ".npy")
      << npy_head({0, 1, 1}, DType::f32);
  join_npy_shards(scratch.path());
  CHECK(floats(step + "/h.0.fc.npy", whole) == indices(whole, {0, 0}, whole));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(step)) files += entry.is_regular_file() ? 1 : 0;
  CHECK(files == 3);  // what cannot be read stays
  join_npy_shards(scratch.path() + "/not there");
}

TEST_CASE("bf16 is widened to the float of the same value, and a scalar is a file too") {
  const ScratchFolder scratch;
  const std::vector<uint16_t> values = {0x3f80, 0xc040, 0x7f80};  // 1, -3, infinity
  write_npy_part(scratch.path() + "/b.npy", {3}, DType::bf16, {0}, {3}, values.data());
  const std::vector<float> read = floats(scratch.path() + "/b.npy", {3});
  CHECK(read == std::vector<float>{1, -3, HUGE_VALF});
  const float one = 7;
  write_npy_part(scratch.path() + "/s.npy", {}, DType::f32, {}, {}, &one);
  CHECK(floats(scratch.path() + "/s.npy", {}) == std::vector<float>{7});
}

TEST_CASE("a tensor that cannot be written is an error that names the file") {
  const float one = 1;
  CHECK_THROWS_WITH_AS(write_npy_part("/nonexistent/x.npy", {1}, DType::f32, {0}, {1}, &one),
                       doctest::Contains("/nonexistent/x.npy"), EnvError);
  CHECK_THROWS_WITH_AS(write_npy_part("/dev/full", {1}, DType::f32, {0}, {1}, &one), doctest::Contains("No space left"),
                       EnvError);
}
