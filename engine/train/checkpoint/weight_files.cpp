// The weights of a model as other tools keep them: one safetensors file, or several with an index.
#include "engine/train/checkpoint/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/graph/bf16.h"
#include "engine/train/checkpoint/values.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnd = ".json";
constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

constexpr const char* kConvert =
    "  python3 -c 'import sys, torch, safetensors.torch as s; "
    "s.save_file({k: v.contiguous().clone() for k, v in torch.load(sys.argv[1], weights_only=True).items()}, "
    "sys.argv[2])' "
    "IN.bin OUT.safetensors";

constexpr const char* kConvertFolder =
    "  python3 -c 'import glob, sys, torch, safetensors.torch as s; "
    "s.save_file({k: v.contiguous().clone() for f in glob.glob(sys.argv[1] + \"/pytorch_model*.bin\") "
    "for k, v in torch.load(f, weights_only=True).items()}, sys.argv[1] + \"/model.safetensors\", "
    "{\"format\": \"pt\"})' FOLDER";

/// Returns whether the file is a pickle, or the zip archive in which torch stores one. A safetensors file begins with a
/// length, whose bytes may look like a pickle (80 02 is the length 640), but the length is followed by a brace.
bool is_of_torch(const std::string& path) {
  const InputFile file(path);
  std::array<uint8_t, 9> start{};
  if (file.bytes() < static_cast<int64_t>(start.size())) return false;
  file.read(0, start);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), sizeof header_bytes);
  const auto room = static_cast<uint64_t>(file.bytes()) - sizeof header_bytes;
  if (header_bytes <= room && start.back() == '{') return false;
  constexpr std::array<uint8_t, 4> kZip = {'P', 'K', 3, 4};
  const bool is_zip = std::equal(kZip.begin(), kZip.end(), start.begin());
  return is_zip || (start[0] == 0x80 && start[1] >= 2 && start[1] <= 5);
}

/// Returns whether a folder has pytorch_model.bin, or parts of it.
bool has_pickles(const std::string& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename();
    return name.starts_with("pytorch_model") && name.ends_with(".bin");
  });
}

std::string in_folder(const std::string& folder) {
  for (const char* name : {kFileName, kIndexName})
    if (fs::exists(folder + "/" + name)) return folder + "/" + name;
  if (fs::exists(folder + "/adapter_model.safetensors"))
    throw EnvError(folder +
                   ": contains adapters in PEFT's format; name its base model in weights.from and this folder in "
                   "adapters.lora.from");
  if (has_pickles(folder))
    throw EnvError(folder +
                   ": contains the weights only as PyTorch pickles, which can execute code when they are loaded; "
                   "convert them to safetensors:\n" +
                   kConvertFolder);
  throw EnvError(fmt::format("{}: contains neither {} nor {}", folder, kFileName, kIndexName));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) : path_(fs::is_directory(path) ? in_folder(path) : path) {
  if (path_.ends_with(kIndexEnd))
    open_index(path_);
  else
    open(path_);
  find_quantized();
}

/// MXFP4 weights are recognized by the names of their two tensors and by the type of the first, U8.
void WeightFiles::find_quantized() {
  const auto of_blocks = [&](const std::string& name) {
    return name.ends_with(kMxfp4Blocks) && places_.at(name).entry->type == StoredType::u8;
  };
  std::set<std::string> parts;
  for (const std::string& blocks : names_) {
    if (!of_blocks(blocks)) continue;
    const std::string name = blocks.substr(0, blocks.size() - kMxfp4Blocks.size());
    const auto scales = places_.find(name + std::string(kMxfp4Scales));
    const Place none{nullptr, nullptr}, &of_scales = scales == places_.end() ? none : scales->second,
                                        &place = places_.at(blocks);
    quantized_[name] = std::make_unique<Mxfp4Tensor>(name, *place.file, *place.entry, of_scales.file, of_scales.entry);
    parts.insert(name + std::string(kMxfp4Scales));
  }
  for (std::string& name : names_)
    if (of_blocks(name)) name.resize(name.size() - kMxfp4Blocks.size());
  std::erase_if(names_, [&](const std::string& name) { return parts.contains(name); });
}

void WeightFiles::open(const std::string& path) {
  if (is_of_torch(path))
    throw EnvError(path +
                   ": is a PyTorch pickle, which can execute code when it is loaded; convert it to "
                   "safetensors:\n" +
                   kConvert);
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsEntry& entry : file.header().entries) {
    const auto [at, is_new] = places_.try_emplace(entry.name, Place{&file, &entry});
    if (!is_new)
      throw EnvError(
          fmt::format("{}: tensor '{}' is also in {}", path, printable(entry.name), at->second.file->path()));
    names_.push_back(entry.name);
  }
}

/// Opens the files that an index of safetensors files lists, and checks that each has its tensors.
void WeightFiles::open_index(const std::string& path) {
  const nlohmann::json index = nlohmann::json::parse(read_whole_file(path), nullptr, false);
  const bool has_map = index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  if (!has_map) throw EnvError(path + ": is not an index of safetensors files: it has no object \"weight_map\"");
  std::map<std::string, std::string> files;  // of each tensor
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const bool is_plain = file.is_string() && file.get<std::string>().find('/') == std::string::npos;
    if (!is_plain)
      throw EnvError(
          fmt::format("{}: the file of '{}' is not the name of a file in that folder", path, printable(tensor)));
    files[tensor] = file.get<std::string>();
  }
  std::map<std::string, const SafetensorsFile*> opened;
  const fs::path folder = fs::path(path).parent_path();
  for (const auto& [tensor, file] : files) {
    if (opened.contains(file)) continue;
    open((folder / file).string());
    opened[file] = files_.back().get();
  }
  for (const auto& [tensor, file] : files) {
    const auto found = places_.find(tensor);
    if (found == places_.end() || found->second.file != opened[file])
      throw EnvError(fmt::format("{}: tensor '{}' is not in {}, although the index lists it there", path,
                                 printable(tensor), file));
  }
}

std::string WeightFiles::fingerprint() const {
  constexpr int64_t kSampledBytes = 4096;
  Digest digest;
  std::vector<uint8_t> bytes;
  for (const auto& [name, place] : std::map<std::string, Place>(places_.begin(), places_.end())) {
    const SafetensorsEntry& entry = *place.entry;
    const std::string head = fmt::format("{} {} {}\n", name, to_string(entry.type), to_string(entry.shape));
    digest.add({reinterpret_cast<const uint8_t*>(head.data()), head.size()});
    bytes.resize(static_cast<size_t>(std::min(kSampledBytes, entry.bytes())));
    for (const int64_t at : {int64_t{0}, entry.bytes() - static_cast<int64_t>(bytes.size())}) {
      place.file->read(entry, at, bytes);
      digest.add(bytes);
    }
  }
  return digest.digits();
}

const SafetensorsEntry* WeightFiles::find(const std::string& name) const {
  if (const auto quantized = quantized_.find(name); quantized != quantized_.end()) return &quantized->second->entry();
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.entry;
}

const WeightFiles::Place& WeightFiles::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  check(found != places_.end(), "the tensor is there");
  return found->second;
}

void WeightFiles::read(const std::string& name, int64_t at, std::span<uint8_t> to) const {
  const Place& place = place_of(name);
  place.file->read(*place.entry, at, to);
}

void WeightFiles::read_f32(const std::string& name, int64_t first, int64_t count, float* to) const {
  if (const auto quantized = quantized_.find(name); quantized != quantized_.end())
    return quantized->second->read_f32(first, count, to);
  const Place& place = place_of(name);
  const StoredType type = place.entry->type;
  const bool fits =
      type == StoredType::f32 || type == StoredType::bf16 || type == StoredType::f16 || type == StoredType::f64;
  if (!fits)
    throw EnvError(fmt::format("{}: tensor '{}' is {}; supported types of weights are F32, F64, F16 and BF16",
                               place.file->path(), printable(name), to_string(type)));
  const int64_t width = bits_of(type) / 8;
  if (type == StoredType::f32)
    return place.file->read(*place.entry, first * width,
                            {reinterpret_cast<uint8_t*>(to), static_cast<size_t>(count * width)});
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::vector<uint8_t> block;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t size = std::min(kBlock, count - done);
    block.resize(static_cast<size_t>(size * width));
    place.file->read(*place.entry, (first + done) * width, block);
    if (type == StoredType::bf16) {
      for (int64_t i = 0; i < size; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, block.data() + i * width, sizeof bits);
        to[done + i] = from_bf16(bits);
      }
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double value = value_of(type, block.data() + i * width);
      to[done + i] = static_cast<float>(value);
      if (std::isinf(to[done + i]) && std::isfinite(value))
        throw EnvError(fmt::format("{}: tensor '{}': element {} is {}, which is too large for f32", place.file->path(),
                                   printable(name), first + done + i, value));
    }
  }
}

}  // namespace trainctl
