// Checkpoints of all earlier versions (make.py) can be read: they have the same numbers, and training resumes from
// them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/spec/parse.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/checkpoint/tiling.h"
#include "engine/train/checkpoint/verify_checkpoint.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

struct OldCheckpoint {
  std::string path;
  nlohmann::json expected;
};

std::vector<OldCheckpoint> old_checkpoints() {
  std::vector<OldCheckpoint> all;
  const fs::path here = fs::path(TRAINCTL_SOURCE_DIR) / "tests/checkpoint_files";
  for (const auto& entry : fs::recursive_directory_iterator(here)) {
    if (entry.path().filename() != kManifestName) continue;
    const fs::path folder = entry.path().parent_path();
    std::ifstream expected(folder.parent_path() / "expected.json");
    all.push_back({folder, nlohmann::json::parse(expected)});
  }
  return all;
}

std::string crc32_of(PieceReader& reader, const StoredTensor& tensor) {
  std::string bytes(static_cast<size_t>(num_elements(tensor.shape) * byte_size(tensor.dtype)), '\0');
  reader.read(tensor.name, tensor.slot, whole_box(tensor.shape), tensor.dtype, bytes.data());
  return fmt::format(
      "{:08x}", crc32(0, reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<unsigned>(bytes.size())));
}

}  // namespace

TEST_CASE("checkpoints of every format so far can be verified and have the numbers that were written") {
  const std::vector<OldCheckpoint> all = old_checkpoints();
  CHECK(all.size() == 2);
  for (const OldCheckpoint& old : all) {
    CAPTURE(old.path);
    CHECK(verify_checkpoint(old.path).problems.empty());
    PieceReader reader(read_manifest(old.path), old.path);
    const Manifest& manifest = reader.manifest();
    CHECK(manifest.step == 11);
    CHECK(manifest.epoch == 2);
    CHECK(manifest.epoch_step == 3);
    CHECK(manifest.samples == 88);
    CHECK(manifest.seed == 7);
    CHECK(manifest.tensors.size() == old.expected["tensors"].size());
    for (const StoredTensor& tensor : manifest.tensors) {
      const std::string key = tensor.name + ":" + tensor.slot;
      CAPTURE(key);
      CHECK(crc32_of(reader, tensor) == old.expected["tensors"].value(key, ""));
    }
  }
}

TEST_CASE("a run that resumes from a checkpoint of any format so far has the losses of the run that wrote it") {
  for (const OldCheckpoint& old : old_checkpoints()) {
    CAPTURE(old.path);
    PlannedJob job = plan_job(load_job(old.path + "/job.yaml"));
    const Manifest manifest = read_manifest(old.path);
    require_same_state(job, manifest, old.path, false);
    RunOn on;
    on.from = position_after(job, manifest, old.path);
    on.restore = [&](const Program& program, Executor& executor) {
      PieceReader reader(manifest, old.path);
      restore(program, reader, executor);
    };
    const std::vector<float> losses = run_job(std::move(job), on).losses;
    REQUIRE(losses.size() == old.expected["losses"].size());
    for (size_t i = 0; i < losses.size(); ++i) {
      const double expected = old.expected["losses"][i];
      CHECK(std::abs(double{losses[i]} - expected) <= 1e-4 * std::abs(expected));  // kernels of another CPU
    }
  }
}
