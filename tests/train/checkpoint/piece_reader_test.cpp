// Reads boxes of tensors from checkpoints with arbitrary shards, and merges checkpoints into one file.
#include "engine/train/checkpoint/piece_reader.h"

#include <doctest/doctest.h>

#include <numeric>

#include "engine/base/error.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/write_whole.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"
#include "tests/train/checkpoint/sample.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

ByteVector read(PieceReader& reader, const SampleTensor& tensor, const Box& box, DType dtype) {
  ByteVector bytes(static_cast<size_t>(num_elements(box.shape) * byte_size(dtype)), 0xee);
  reader.read(tensor.name, tensor.slot, box, dtype, bytes.data());
  return bytes;
}

DType other(DType type) { return type == DType::f32 ? DType::bf16 : type == DType::bf16 ? DType::f32 : DType::i32; }

}  // namespace

TEST_CASE("a box read from any tiling equals that part of the whole tensor, and reads at most 1.1 times its bytes") {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const ScratchFolder scratch;
    const std::vector<SampleTensor> tensors = sample_tensors(1 + round % 5, random);
    PieceReader reader(write_sample_files(scratch.path(), tensors, 1, 1), scratch.path());
    for (int i = 0; i < 60; ++i) {
      const SampleTensor& tensor = tensors[random() % tensors.size()];
      const Box box = random_box(tensor.shape, random);
      const DType dtype = random() % 3 == 0 ? other(tensor.dtype) : tensor.dtype;
      INFO(tensor.name << to_string(box.offset) << to_string(box.shape));
      const int64_t before = reader.bytes_read(), asked = num_elements(box.shape) * byte_size(tensor.dtype);
      REQUIRE(read(reader, tensor, box, dtype) == sample_bytes(tensor, box, dtype));
      REQUIRE(reader.bytes_read() - before >= asked);
      REQUIRE(static_cast<double>(reader.bytes_read() - before) <= 1.1 * static_cast<double>(asked));
    }
  }
}

TEST_CASE("boxes larger than the reader's buffer are converted in parts") {
  const ScratchFolder scratch;
  const SampleTensor tensor{"big", "weight", DType::f32, {3, 700'000}, {{{{0, 0}, {3, 700'000}}}}};
  PieceReader reader(write_sample_files(scratch.path(), {tensor}, 1, 1), scratch.path());
  for (const Box& box : {whole_box(tensor.shape), Box{{0, 1}, {3, 699'998}}, Box{{1, 0}, {2, 5}}})
    for (const DType dtype : {DType::f32, DType::bf16})
      CHECK(read(reader, tensor, box, dtype) == sample_bytes(tensor, box, dtype));
}

TEST_CASE("an integer tensor is not read as another type, and a missing tensor is named") {
  const ScratchFolder scratch;
  const SampleTensor tensor{"table", "weight", DType::i32, {4}, {{{{0}, {4}}}}};
  PieceReader reader(write_sample_files(scratch.path(), {tensor}, 1, 1), scratch.path());
  float values[4];
  CHECK_THROWS_WITH_AS(reader.read("table", "weight", {{0}, {4}}, DType::f32, values),
                       doctest::Contains("tensor table, slot weight: is i32, but f32 is needed"), EnvError);
  CHECK_THROWS_WITH_AS(reader.read("table", "momentum", {{0}, {4}}, DType::i32, values),
                       doctest::Contains("has no tensor table, slot momentum"), EnvError);
  CHECK_THROWS_AS(reader.read("table", "weight", {{1}, {4}}, DType::i32, values), InternalError);
}

TEST_CASE("a checkpoint with more files than may be open at once is read") {
  const ScratchFolder scratch;
  SampleTensor tensor{"wide", "weight", DType::f32, {600, 3}, {}};
  for (int64_t i = 0; i < 600; ++i) tensor.boxes.push_back({{{i, 0}, {1, 3}}});
  PieceReader reader(write_sample_files(scratch.path(), {tensor}, 1, 1), scratch.path());
  for (int i = 0; i < 2; ++i)
    CHECK(read(reader, tensor, whole_box(tensor.shape), DType::f32) ==
          sample_bytes(tensor, whole_box(tensor.shape), DType::f32));
}

TEST_CASE("blocks tile a tensor in row-major order") {
  for (const Shape& shape : {Shape{}, Shape{10}, Shape{3, 5}, Shape{4, 3, 7}, Shape{2, 1, 9, 2}})
    for (const int64_t most : {1, 2, 5, 7, 20, 1000}) {
      int64_t next = 0;
      for_each_block(shape, most, [&](const Box& box, int64_t first) {
        CHECK(first == next);
        CHECK(num_elements(box.shape) <= most);
        next += num_elements(box.shape);
        int64_t at = 0;
        for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + box.offset[d];
        CHECK(at == first);
      });
      CHECK(next == num_elements(shape));
    }
}

TEST_CASE("a merged file has every tensor whole") {
  std::mt19937 random(5);
  const ScratchFolder scratch;
  const std::vector<SampleTensor> tensors = sample_tensors(4, random);
  const Manifest manifest = write_sample_files(scratch.path(), tensors, 40, 1);
  const StoredFile stored = write_whole(manifest, scratch.path(), scratch.path() + "/whole.safetensors");
  CHECK(stored.name == "whole.safetensors");
  CHECK(stored.xxh128 == digest_of(read_whole_file(scratch.path() + "/whole.safetensors")));
  const SafetensorsFile file(scratch.path() + "/whole.safetensors");
  CHECK(file.header().entries.size() == tensors.size());
  CHECK(file.header().metadata.at("step") == "40");
  for (const SampleTensor& tensor : tensors) {
    const SafetensorsEntry* entry = file.find(tensor.name + ":" + tensor.slot);
    REQUIRE(entry != nullptr);
    CHECK(entry->shape == tensor.shape);
    ByteVector bytes(static_cast<size_t>(entry->bytes()));
    file.read(*entry, 0, bytes);
    CHECK(bytes == sample_bytes(tensor, whole_box(tensor.shape), tensor.dtype));
  }
  write_whole(manifest, scratch.path(), scratch.path() + "/whole.safetensors", {"exp_avg", "state"});
  CHECK(SafetensorsFile(scratch.path() + "/whole.safetensors").header().entries.size() == 2);
}

TEST_CASE("a merge that fails leaves no file") {
  std::mt19937 random(6);
  const ScratchFolder scratch, out;
  const Manifest manifest = write_sample_files(scratch.path(), sample_tensors(2, random), 1, 1);
  std::filesystem::remove(scratch.path() + "/rank.0001.safetensors");
  CHECK_THROWS_AS(write_whole(manifest, scratch.path(), out.path() + "/w.safetensors"), EnvError);
  CHECK(std::filesystem::is_empty(out.path()));
}
