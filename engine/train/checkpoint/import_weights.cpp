// Weights of another tool as a checkpoint of step 0, from which a run resumes.
#include "engine/train/checkpoint/import_weights.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/delete_checkpoint.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kImportedBlockElements = int64_t{1} << 20;
constexpr const char* kWeightsName = "rank.0000.safetensors";
constexpr const char* kImportedJobName = "job.yaml";

std::vector<StoredTensor> stored_tensors(const MappedWeights& weights) {
  std::vector<StoredTensor> tensors;
  for (const MappedWeights::Variable& v : weights.variables())
    tensors.push_back({v.name,
                       std::string(v.is_parameter ? kWeightSlot : kStateSlot),
                       DType::f32,
                       v.shape,
                       {{kWeightsName, whole_box(v.shape)}}});
  return tensors;
}

StoredFile write_weights(const MappedWeights& weights, const std::vector<StoredTensor>& tensors,
                         const std::string& path, Disk& disk) {
  std::vector<SafetensorsEntry> entries;
  for (const StoredTensor& t : tensors)
    entries.push_back(
        {.name = piece_key(t.name, t.slot, t.shape, whole_box(t.shape)), .type = StoredType::f32, .shape = t.shape});
  SafetensorsWriter writer(path, entries, {}, disk);
  std::vector<float> block;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t entry = writer.index_of(entries[i].name);
    for_each_block(tensors[i].shape, kImportedBlockElements, [&](const Box& box, int64_t first) {
      block.resize(static_cast<size_t>(num_elements(box.shape)));
      weights.read(tensors[i].name, box, DType::f32, block.data());
      writer.write(entry, first * static_cast<int64_t>(sizeof(float)),
                   {reinterpret_cast<const uint8_t*>(block.data()), block.size() * sizeof(float)});
    });
  }
  const FileDigest digest = writer.finish();
  return {kWeightsName, digest.bytes, digest.xxh128};
}

StoredFile write_text(const std::string& folder, const std::string& name, const std::string& text, Disk& disk) {
  DiskFile file(folder + "/" + name, disk);
  file.write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.sync_and_close();
  return {name, static_cast<int64_t>(text.size()), digest_of(text)};
}

}  // namespace

void import_weights(const PlannedJob& job, const MappedWeights& weights, const std::string& directory,
                    const ImportOptions& options, Disk& disk) {
  if (fs::exists(fs::symlink_status(directory)))
    throw EnvError(directory + " already exists; choose another folder with -o");
  Manifest manifest;
  manifest.trainctl = options.version;
  manifest.name = job.spec.name;
  manifest.epoch = 1;
  manifest.seed = job.spec.seed;
  manifest.written = fmt::format(
      "{:%FT%TZ}", fmt::gmtime(std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now())));
  manifest.tensors = stored_tensors(weights);

  const fs::path to = directory;
  const std::string part = directory + ".part";
  if (disk.mkdir(part) != 0) throw EnvError(fmt::format("{}: cannot be created: {}", part, std::strerror(errno)));
  try {
    manifest.files.push_back(write_weights(weights, manifest.tensors, part + "/" + kWeightsName, disk));
    manifest.files.push_back(write_text(part, kImportedJobName, options.job, disk));
    write_text(part, std::string(kManifestName), to_json(manifest), disk);
    sync_directory(part, disk);
    if (disk.rename(part, directory) != 0)
      throw EnvError(fmt::format("{}: cannot be renamed to {}: {}", part, directory, std::strerror(errno)));
    sync_directory(to.has_parent_path() ? to.parent_path().string() : ".", disk);
  } catch (...) {
    try {
      delete_checkpoint(part, disk);
    } catch (const EnvError&) {
      // The error of the import, which is rethrown, says more than an error of this deletion.
    }
    throw;
  }
}

}  // namespace trainctl
