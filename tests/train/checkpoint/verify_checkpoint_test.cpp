// Tests that verify finds damage of every kind, and that damaged data are never loaded.
#include "engine/train/checkpoint/verify_checkpoint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "engine/base/error.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/write_whole.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"
#include "tests/train/checkpoint/sample.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

struct SavedSample {
  ScratchFolder scratch;
  CheckpointDirectory directory{scratch.path() + "/checkpoints"};
  std::string path;

  SavedSample() : path(save_sample(directory, two_small_tensors(), 7, directory.claim_attempt())) {}
};

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

std::vector<std::string> problems(const std::string& path) { return verify_checkpoint(path).problems; }

bool names(const std::vector<std::string>& found, const std::string& words) {
  for (const std::string& problem : found)
    if (problem.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("verify reads every byte of a whole checkpoint and finds nothing") {
  const SavedSample saved;
  const Verification found = verify_checkpoint(saved.path);
  CHECK(found.problems.empty());
  CHECK(found.files == 4);
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(saved.path)) bytes += static_cast<int64_t>(entry.file_size());
  CHECK(found.bytes == bytes);
}

TEST_CASE("each flipped byte of a checkpoint is detected, and the file is named") {
  const SavedSample saved;
  int flipped = 0;
  for (const auto& entry : fs::directory_iterator(saved.path)) {
    const std::string path = entry.path(), text = read_whole_file(path);
    for (size_t i = 0; i < text.size(); ++i)
      for (const int mask : {1, 128}) {
        std::string changed = text;
        changed[i] = static_cast<char>(changed[i] ^ mask);
        put(path, changed);
        const auto found = problems(saved.path);
        REQUIRE_FALSE(found.empty());
        REQUIRE(names(found, entry.path().filename().string() + ": "));
        ++flipped;
      }
    put(path, text);
  }
  CHECK(flipped > 2000);
  CHECK(problems(saved.path).empty());
}

namespace {

/// Reads a checkpoint without verifying it first. Returns all numbers or nothing.
std::optional<std::vector<ByteVector>> read_all(const std::string& path) {
  try {
    PieceReader reader(read_manifest(path), path);
    std::vector<ByteVector> numbers;
    for (const SampleTensor& tensor : two_small_tensors()) {
      numbers.emplace_back(static_cast<size_t>(num_elements(tensor.shape) * byte_size(tensor.dtype)));
      reader.read(tensor.name, tensor.slot, whole_box(tensor.shape), tensor.dtype, numbers.back().data());
    }
    return numbers;
  } catch (const EnvError&) {
    return {};
  }
}

}  // namespace

TEST_CASE("a flipped byte outside the numbers never makes a reader return other numbers") {
  const SavedSample saved;
  const auto sound = read_all(saved.path);
  REQUIRE(sound);
  int refused = 0, survived = 0;
  for (const auto& entry : fs::directory_iterator(saved.path)) {
    const std::string path = entry.path(), text = read_whole_file(path);
    // The numbers themselves have only their XXH128: the test above.
    const bool has_numbers = path.ends_with(".safetensors");
    const size_t end = has_numbers ? static_cast<size_t>(SafetensorsFile(path).header().data_at) : text.size();
    for (size_t i = 0; i < end; ++i)
      for (const int mask : {1, 2, 16, 128}) {
        std::string changed = text;
        changed[i] = static_cast<char>(changed[i] ^ mask);
        put(path, changed);
        const auto numbers = read_all(saved.path);
        CAPTURE(path);
        CAPTURE(i);
        if (numbers) REQUIRE(*numbers == *sound);
        ++(numbers ? survived : refused);
      }
    put(path, text);
  }
  CHECK(refused > 4000);
  CHECK(survived >= 4 * 12);  // job.yaml, which a reader of tensors does not need
}

TEST_CASE("a file that is truncated at any byte, or has an extra byte, is detected") {
  const SavedSample saved;
  for (const auto& entry : fs::directory_iterator(saved.path)) {
    const std::string path = entry.path(), text = read_whole_file(path);
    for (size_t size = 0; size < text.size(); size += 1 + size / 40) {
      put(path, text.substr(0, size));
      REQUIRE_FALSE(problems(saved.path).empty());
      REQUIRE_FALSE(saved.directory.newest_complete());
    }
    put(path, text + '\0');
    REQUIRE_FALSE(problems(saved.path).empty());
    REQUIRE_FALSE(saved.directory.newest_complete());
    fs::remove(path);
    CHECK(names(problems(saved.path), "No such file"));
    put(path, text);
  }
  CHECK(saved.directory.newest_complete());
}

TEST_CASE("all damaged files are named, not only the first") {
  const SavedSample saved;
  put(saved.path + "/job.yaml", "name: sampla\n");
  fs::remove(saved.path + "/rank.0001.safetensors");
  CHECK(names(problems(saved.path), "job.yaml: its content has changed since it was written"));
  CHECK(names(problems(saved.path), "rank.0001.safetensors: cannot be read"));
}

TEST_CASE("a file whose tensors are not those of the manifest is detected although its checksum agrees") {
  const SavedSample saved;
  const std::string path = saved.path + "/rank.0000.safetensors";
  const auto rewrite = [&](std::vector<SafetensorsEntry> entries) {
    SafetensorsWriter writer(path, entries);
    for (size_t i = 0; i < entries.size(); ++i)
      writer.write(i, 0, ByteVector(static_cast<size_t>(writer.header().entries[i].bytes())));
    const FileDigest digest = writer.finish();
    Manifest manifest = parse_manifest(read_whole_file(saved.path + "/checkpoint.json"), "c");
    for (StoredFile& file : manifest.files)
      if (file.name == "rank.0000.safetensors") file = {file.name, digest.bytes, digest.xxh128};
    put(saved.path + "/checkpoint.json", to_json(manifest));
  };
  const SafetensorsEntry weight{.name = "fc.weight:weight[0:2, 0:3]", .type = StoredType::f32, .shape = {2, 3}};
  const SafetensorsEntry bias{.name = "fc.bias:weight", .type = StoredType::bf16, .shape = {4}};
  rewrite({weight, bias});
  CHECK(problems(saved.path).empty());
  rewrite({weight});
  CHECK(names(problems(saved.path), "has no tensor 'fc.bias:weight', which checkpoint.json lists"));
  rewrite({weight, bias, {.name = "more", .type = StoredType::u8, .shape = {1}}});
  CHECK(names(problems(saved.path), "contains 3 tensors, but checkpoint.json lists 2"));
  rewrite({weight, {.name = "fc.bias:weight", .type = StoredType::f32, .shape = {4}}});
  CHECK(names(problems(saved.path), "expected BF16 of [4], found F32 of [4]"));
  PieceReader reader(read_manifest(saved.path), saved.path);
  std::vector<float> values(4);
  CHECK_THROWS_WITH_AS(reader.read("fc.bias", "weight", {{0}, {4}}, DType::f32, values.data()),
                       doctest::Contains("has no tensor 'fc.bias:weight' of type BF16"), EnvError);
}

TEST_CASE("the integrated file is verified: its bytes, and that its tensors are those of the checkpoint") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(scratch.path() + "/checkpoints");
  const int attempt = directory.claim_attempt();
  const std::string folder = directory.begin(7, attempt);
  Manifest written = write_sample_files(folder, two_small_tensors(), 7, attempt);
  written.files.push_back(write_whole(written, folder, folder + "/model.safetensors", {"weight"}));
  const std::string path = directory.commit(written, "name: sample\n");
  CHECK(problems(path).empty());
  const std::string file = path + "/model.safetensors", text = read_whole_file(file);
  std::string damaged = text;
  damaged.back() ^= 1;
  put(file, damaged);
  CHECK(names(problems(path), "model.safetensors: its content has changed since it was written"));
  // A checksum that agrees does not excuse other tensors.
  const SafetensorsEntry other{.name = "fc.bias:weight", .type = StoredType::f32, .shape = {4}};
  for (const auto& [entry, words] : {std::pair<SafetensorsEntry, const char*>{
                                         other, "tensor 'fc.bias:weight': expected BF16 of [4], found F32 of [4]"},
                                     {{.name = "fc.extra:weight", .type = StoredType::u8, .shape = {1}},
                                      "tensor 'fc.extra:weight' is not in checkpoint.json"}}) {
    SafetensorsWriter writer(file, {entry});
    writer.write(0, 0, ByteVector(static_cast<size_t>(writer.header().entries[0].bytes())));
    const FileDigest digest = writer.finish();
    Manifest manifest = parse_manifest(read_whole_file(path + "/checkpoint.json"), "c");
    for (StoredFile& stored : manifest.files)
      if (stored.name == "model.safetensors") stored = {stored.name, digest.bytes, digest.xxh128};
    put(path + "/checkpoint.json", to_json(manifest));
    CHECK(names(problems(path), words));
  }
}

TEST_CASE("that a checkpoint was verified is known until it changes") {
  const SavedSample saved;
  CHECK_FALSE(saved.directory.list()[0].verified);
  CHECK(record_verified(saved.path));
  CHECK(saved.directory.list()[0].verified);
  forget_verified(saved.path);
  CHECK_FALSE(saved.directory.list()[0].verified);
  CHECK(record_verified(saved.path));
  put(saved.path + "/.verified", std::string(kDigestDigits, '0'));
  CHECK_FALSE(saved.directory.list()[0].verified);
}
