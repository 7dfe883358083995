// Damage of every kind is found by verify, and never loaded.
#include "engine/train/checkpoint/verify_checkpoint.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/train/checkpoint/digest.h"
#include "engine/train/checkpoint/input_file.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/safetensors.h"
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

TEST_CASE("each byte of a checkpoint that is flipped is found, and the file is named") {
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

TEST_CASE("a file cut off at any byte, or with a byte more, is found") {
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
  CHECK(names(problems(saved.path), "job.yaml: its bytes are not those that were written"));
  CHECK(names(problems(saved.path), "rank.0001.safetensors: cannot be read"));
}

TEST_CASE("a file whose tensors are not those of the manifest is found though its checksum agrees") {
  const SavedSample saved;
  const std::string path = saved.path + "/rank.0000.safetensors";
  const auto rewrite = [&](std::vector<SafetensorsEntry> entries) {
    SafetensorsWriter writer(path, entries);
    for (size_t i = 0; i < entries.size(); ++i)
      writer.write(i, 0, Bytes(static_cast<size_t>(writer.header().entries[i].bytes())));
    const FileDigest digest = writer.finish();
    Manifest manifest = parse_manifest(read_whole_file(saved.path + "/checkpoint.json"), "c");
    for (StoredFile& file : manifest.files)
      if (file.name == "rank.0000.safetensors") file = {file.name, digest.bytes, digest.sha256};
    put(saved.path + "/checkpoint.json", to_json(manifest));
  };
  const SafetensorsEntry weight{.name = "fc.weight:weight[0:2, 0:3]", .type = StoredType::f32, .shape = {2, 3}};
  const SafetensorsEntry bias{.name = "fc.bias:weight", .type = StoredType::bf16, .shape = {4}};
  rewrite({weight, bias});
  CHECK(problems(saved.path).empty());
  rewrite({weight});
  CHECK(names(problems(saved.path), "has no tensor 'fc.bias:weight', which checkpoint.json lists"));
  rewrite({weight, bias, {.name = "more", .type = StoredType::u8, .shape = {1}}});
  CHECK(names(problems(saved.path), "has 3 tensors, of which checkpoint.json lists 2"));
  rewrite({weight, {.name = "fc.bias:weight", .type = StoredType::f32, .shape = {4}}});
  CHECK(names(problems(saved.path), "expected BF16 of [4], found F32 of [4]"));
  PieceReader reader(read_manifest(saved.path), saved.path);
  std::vector<float> values(4);
  CHECK_THROWS_WITH_AS(reader.read("fc.bias", "weight", {{0}, {4}}, DType::f32, values.data()),
                       doctest::Contains("has no tensor 'fc.bias:weight' of type BF16"), EnvError);
}

TEST_CASE("that a checkpoint was verified is known until it changes") {
  const SavedSample saved;
  CHECK_FALSE(saved.directory.list()[0].verified);
  CHECK(record_verified(saved.path));
  CHECK(saved.directory.list()[0].verified);
  put(saved.path + "/.verified", std::string(64, '0'));
  CHECK_FALSE(saved.directory.list()[0].verified);
}
