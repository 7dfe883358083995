// Checks that every byte of a checkpoint is as it was written.
#include "engine/train/checkpoint/verify_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/disk.h"
#include "engine/train/files/input_file.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

constexpr int64_t kVerifiedBlockBytes = int64_t{4} << 20;

struct ExpectedPiece {
  std::string key;
  StoredType type;
  const Shape* shape;
};

class Verifier {
 public:
  explicit Verifier(const std::string& directory) : directory_(directory) {}

  Verification verify() {
    attempt([&] {
      const std::string path = path_of(std::string(kManifestName)), text = read_whole_file(path);
      found_.bytes += static_cast<int64_t>(text.size());
      ++found_.files;
      manifest_ = parse_manifest(text, path);
    });
    const auto pieces = pieces_by_file();
    for (const StoredFile& file : manifest_.files) {
      attempt([&] { check_content(file); });
      if (const auto expected = pieces.find(file.name); expected != pieces.end())
        attempt([&] { check_header(file.name, expected->second); });
      else if (file.name.ends_with(".safetensors"))
        attempt([&] { check_whole_tensors(file.name); });
    }
    return std::move(found_);
  }

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }

  template <class Work>
  void attempt(const Work& work) {
    try {
      work();
    } catch (const EnvError& error) {
      found_.problems.push_back(error.what());
    }
  }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw EnvError(path_of(name) + ": " + what);
  }

  std::unordered_map<std::string, std::vector<ExpectedPiece>> pieces_by_file() const {
    std::unordered_map<std::string, std::vector<ExpectedPiece>> pieces;
    for (const StoredTensor& tensor : manifest_.tensors)
      for (const StoredPiece& piece : tensor.pieces)
        pieces[piece.file].push_back({piece_key(tensor.name, tensor.slot, tensor.shape, piece.box),
                                      stored_type(tensor.dtype), &piece.box.shape});
    return pieces;
  }

  void check_content(const StoredFile& stored) {
    const InputFile file(path_of(stored.name));
    ++found_.files;
    Digest digest;
    std::vector<uint8_t> block(static_cast<size_t>(std::min(kVerifiedBlockBytes, file.bytes())));
    for (int64_t at = 0, size; at < file.bytes(); at += size) {
      size = std::min(kVerifiedBlockBytes, file.bytes() - at);
      const auto bytes = std::span(block).first(static_cast<size_t>(size));
      file.read(at, bytes);
      digest.add(bytes);
      found_.bytes += size;
    }
    if (file.bytes() != stored.bytes)
      fail(stored.name, fmt::format("has {} bytes, expected {}", file.bytes(), stored.bytes));
    if (const std::string digits = digest.digits(); digits != stored.xxh128)
      fail(stored.name, fmt::format("its content has changed since it was written: expected XXH128 {}, found {}",
                                    stored.xxh128, digits));
  }

  void check_header(const std::string& name, const std::vector<ExpectedPiece>& expected) const {
    const SafetensorsFile file(path_of(name));
    for (const ExpectedPiece& piece : expected) {
      const SafetensorsEntry* entry = file.find(piece.key);
      if (entry == nullptr) fail(name, "has no tensor '" + printable(piece.key) + "', which checkpoint.json lists");
      if (entry->type != piece.type || entry->shape != *piece.shape)
        fail(name,
             fmt::format("tensor '{}': expected {} of {}, found {} of {}", printable(piece.key), to_string(piece.type),
                         to_string(*piece.shape), to_string(entry->type), to_string(entry->shape)));
    }
    if (file.header().entries.size() != expected.size())
      fail(name, fmt::format("contains {} tensors, but checkpoint.json lists {}", file.header().entries.size(),
                             expected.size()));
  }

  /// Checks a file without pieces, as train.checkpoint.integrated writes it. Its tensors are also stored in other
  /// files.
  void check_whole_tensors(const std::string& name) const {
    const SafetensorsFile file(path_of(name));
    std::unordered_map<std::string, const StoredTensor*> tensors;
    for (const StoredTensor& tensor : manifest_.tensors)
      tensors.emplace(piece_key(tensor.name, tensor.slot, tensor.shape, whole_box(tensor.shape)), &tensor);
    for (const SafetensorsEntry& entry : file.header().entries) {
      const auto found = tensors.find(entry.name);
      if (found == tensors.end()) fail(name, "tensor '" + printable(entry.name) + "' is not in checkpoint.json");
      const StoredTensor& tensor = *found->second;
      if (entry.type != stored_type(tensor.dtype) || entry.shape != tensor.shape)
        fail(name, fmt::format("tensor '{}': expected {} of {}, found {} of {}", printable(entry.name),
                               to_string(stored_type(tensor.dtype)), to_string(tensor.shape), to_string(entry.type),
                               to_string(entry.shape)));
    }
  }

  const std::string& directory_;
  Manifest manifest_;
  Verification found_;
};

std::string record_of(const std::string& directory) { return directory + "/.verified"; }

}  // namespace

Verification verify_checkpoint(const std::string& directory) { return Verifier(directory).verify(); }

bool record_verified(const std::string& directory) {
  try {
    const std::string text = read_whole_file(directory + "/" + std::string(kManifestName));
    const std::string digits(checksum_of(text));
    DiskFile file(record_of(directory));
    file.write(0, {reinterpret_cast<const uint8_t*>(digits.data()), digits.size()});
    file.sync_and_close();
    return true;
  } catch (const EnvError&) {
    return false;
  }
}

void forget_verified(const std::string& directory) { real_disk().unlink(record_of(directory)); }

bool is_recorded_verified(const std::string& directory, std::string_view checksum) {
  try {
    return read_whole_file(record_of(directory)) == checksum;
  } catch (const EnvError&) {
    return false;
  }
}

}  // namespace trainctl
