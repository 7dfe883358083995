// Writes a checkpoint of many ranks as one file.
#include "engine/train/checkpoint/write_whole.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

constexpr int64_t kWholeBlockElements = int64_t{1} << 20;

std::string key_of(const StoredTensor& tensor) {
  return piece_key(tensor.name, tensor.slot, tensor.shape, whole_box(tensor.shape));
}

std::vector<const StoredTensor*> chosen(const Manifest& manifest, const std::vector<std::string>& slots) {
  std::vector<const StoredTensor*> tensors;
  for (const StoredTensor& tensor : manifest.tensors)
    if (slots.empty() || std::find(slots.begin(), slots.end(), tensor.slot) != slots.end()) tensors.push_back(&tensor);
  return tensors;
}

/// Writes whole tensors, block by block, to one safetensors file. Returns the digest of the file.
FileDigest write_tensors(const std::vector<const StoredTensor*>& tensors, PieceReader& reader, const std::string& path,
                         Disk& disk) {
  std::vector<SafetensorsEntry> entries;
  std::unordered_map<std::string, const StoredTensor*> by_key;
  for (const StoredTensor* tensor : tensors) {
    entries.push_back({.name = key_of(*tensor), .type = stored_type(tensor->dtype), .shape = tensor->shape});
    by_key.emplace(entries.back().name, tensor);
  }
  const Manifest& manifest = reader.manifest();
  SafetensorsWriter writer(
      path, std::move(entries),
      {{"trainctl", manifest.trainctl}, {"name", manifest.name}, {"step", std::to_string(manifest.step)}}, disk);
  std::vector<uint8_t> block;
  for (size_t i = 0; i < writer.header().entries.size();
       ++i) {  // in the order of the file, which is digested on the way
    const StoredTensor& tensor = *by_key.at(writer.header().entries[i].name);
    const int64_t width = byte_size(tensor.dtype);
    for_each_block(tensor.shape, kWholeBlockElements, [&](const Box& box, int64_t first) {
      block.resize(static_cast<size_t>(num_elements(box.shape) * width));
      reader.read(tensor.name, tensor.slot, box, tensor.dtype, block.data());
      writer.write(i, first * width, block);
    });
  }
  return writer.finish();
}

}  // namespace

StoredFile write_whole(const Manifest& manifest, const std::string& directory, const std::string& path,
                       const std::vector<std::string>& slots, Disk& disk) {
  const std::vector<const StoredTensor*> tensors = chosen(manifest, slots);
  PieceReader reader(manifest, directory);
  const std::string part = path + ".part";
  try {
    const FileDigest digest = write_tensors(tensors, reader, part, disk);
    if (disk.rename(part, path) != 0)
      throw EnvError(fmt::format("{}: cannot be renamed to {}: {}", part, path, std::strerror(errno)));
    const std::filesystem::path file = path;
    sync_directory(file.has_parent_path() ? file.parent_path().string() : ".", disk);
    return {file.filename(), digest.bytes, digest.xxh128};
  } catch (...) {
    disk.unlink(part);
    throw;
  }
}

}  // namespace trainctl
