// Checks that a manifest is sound; its text is in manifest_text.cpp.
#include "engine/train/checkpoint/manifest.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <unordered_set>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/text_output.h"
#include "engine/ops/moe/expert_load.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

std::string shown(std::string_view text) { return printable(shortened(text)); }

/// Returns whether a name refers to a visible file in the checkpoint's own directory: it has no slash, and does not
/// begin with a dot.
bool is_plain_name(const std::string& name) {
  return !name.empty() && !name.starts_with('.') && name.find_first_of(std::string("/\\\0", 3)) == std::string::npos &&
         name.size() < 256;
}

bool is_digest(const std::string& text) {
  return text.size() == kDigestDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string file_defect(const StoredFile& file, std::set<std::string_view>& names) {
  if (!is_plain_name(file.name)) return "name: '" + shown(file.name) + "' is not a plain file name";
  if (file.name == kManifestName) return fmt::format("name: {} cannot list itself", kManifestName);
  if (!names.insert(file.name).second) return "name: '" + shown(file.name) + "' is listed twice";
  if (file.bytes < 0) return fmt::format("bytes: expected at least 0, found {}", file.bytes);
  if (!is_digest(file.xxh128)) return "xxh128: expected 32 hexadecimal digits, found '" + shown(file.xxh128) + "'";
  return "";
}

std::string tensor_defect(const StoredTensor& tensor, const std::set<std::string_view>& files) {
  if (tensor.name.empty()) return "name: is empty";
  if (tensor.slot.empty() || tensor.slot.find_first_of(":[") != std::string::npos)
    return "slot: expected a name without ':' and '[', found '" + shown(tensor.slot) + "'";
  for (const int64_t size : tensor.shape)
    if (size < 1) return "shape: expected sizes of at least 1, found " + to_string(tensor.shape);
  if (capped_product(capped_product(tensor.shape), byte_size(tensor.dtype)) == kCapped)
    return "shape: " + to_string(tensor.shape) + " has more elements than a file can store";
  std::vector<const Box*> boxes;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const StoredPiece& piece = tensor.pieces[i];
    if (!files.contains(piece.file))
      return fmt::format("pieces[{}]: file: '{}' is not one of files", i, shown(piece.file));
    boxes.push_back(&piece.box);
  }
  return tiling_defect(tensor.shape, boxes);
}

/// Compares the size of a file with the expected one: "has 12 bytes, expected 1,606,000", or "" if they agree.
std::string size_defect(const std::string& path, int64_t bytes) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) return errno == ENOENT ? "is missing" : std::strerror(errno);
  if (!S_ISREG(file.st_mode)) return "is not a regular file";
  if (file.st_size == bytes) return "";
  return fmt::format("has {} bytes, expected {}", with_commas(file.st_size), with_commas(bytes));
}

}  // namespace

bool is_step_statistic(std::string_view tensor) { return is_expert_load(tensor); }

const StoredTensor* Manifest::find(std::string_view tensor, std::string_view slot) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const StoredTensor& one) { return one.name == tensor && one.slot == slot; });
  return found == tensors.end() ? nullptr : &*found;
}

/// Appends the part of a piece's key that follows the name of the tensor. `out` is a TextOutput or a TextLength.
template <class Output>
static void write_piece(Output& out, std::string_view slot, const Shape& shape, const Box& box) {
  out.text(":");
  out.text(slot);
  if (is_whole(box, shape)) return;
  for (size_t d = 0; d < shape.size(); ++d) {
    out.text(d == 0 ? "[" : ", ");
    out.number(box.offset[d]);
    out.text(":");
    out.number(box.offset[d] + box.shape[d]);
  }
  out.text("]");
}

std::string piece_key(std::string_view name, std::string_view slot, const Shape& shape, const Box& box) {
  std::string key(name);
  TextOutput out{key};
  write_piece(out, slot, shape, box);
  return key;
}

int64_t piece_key_bytes_after_name(std::string_view slot, const Shape& shape, const Box& box) {
  TextLength length;
  write_piece(length, slot, shape, box);
  return length.bytes;
}

PieceName parse_piece_key(std::string_view key) {
  const auto wrong = [&] {
    return EnvError("'" + shown(std::string(key)) + "' is not the name of a part of a tensor");
  };
  const size_t bracket = key.find('[');
  const std::string_view front = key.substr(0, bracket);
  const size_t colon = front.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == front.size()) throw wrong();
  PieceName piece{std::string(front.substr(0, colon)), std::string(front.substr(colon + 1)), {}};
  if (bracket == std::string_view::npos) return piece;
  Box& box = piece.box.emplace();
  const char* at = key.data() + bracket;
  const char* const end = key.data() + key.size();
  const auto number = [&] {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0) throw wrong();
    at = next;
    return value;
  };
  const auto take = [&](std::string_view text) {
    if (!std::string_view(at, end).starts_with(text)) return false;
    at += text.size();
    return true;
  };
  for (const char* before = "["; take(before); before = ", ") {
    const int64_t first = number();
    if (!take(":")) throw wrong();
    const int64_t last = number();
    if (last <= first) throw wrong();
    box.offset.push_back(first);
    box.shape.push_back(last - first);
  }
  if (!take("]") || at != end) throw wrong();
  return piece;
}

bool StoredBase::has(std::string_view tensor) const {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first == tensor; });
}

std::vector<StoredTensor> Manifest::with_base() const {
  std::vector<StoredTensor> all = tensors;
  if (base)
    for (const auto& [tensor, sizes] : base->tensors)
      all.push_back({.name = tensor, .slot = "weight", .shape = sizes, .pieces = {}});
  return all;
}

static std::string base_defect(const StoredBase& base) {
  if (!is_digest(base.fingerprint)) return "fingerprint: expected 32 hexadecimal digits";
  std::unordered_set<std::string> names;
  for (const auto& [name, shape] : base.tensors) {
    if (name.empty()) return "tensors: a name is empty";
    if (!names.insert(name).second) return "tensors: " + shown(name) + " is listed twice";
    for (const int64_t size : shape)
      if (size < 1) return "tensors: expected sizes of at least 1, found " + to_string(shape);
    if (capped_product(shape) == kCapped) return "tensors: " + shown(name) + " has too many elements";
  }
  return "";
}

std::string manifest_defect(const Manifest& manifest) {
  for (const auto& [field, value] : {std::pair<const char*, int64_t>{"run", manifest.run},
                                     {"attempt", manifest.attempt},
                                     {"step", manifest.step},
                                     {"epoch", manifest.epoch},
                                     {"epoch_step", manifest.epoch_step},
                                     {"samples", manifest.samples}})
    if (value < 0) return fmt::format("{}: expected at least 0, found {}", field, value);
  std::set<std::string_view> files;
  for (size_t i = 0; i < manifest.files.size(); ++i)
    if (std::string defect = file_defect(manifest.files[i], files); !defect.empty())
      return fmt::format("files[{}]: {}", i, defect);
  if (manifest.base)
    if (const std::string defect = base_defect(*manifest.base); !defect.empty()) return "base." + defect;
  std::unordered_set<std::string> keys;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    const std::string key = tensor.name + ":" + tensor.slot;
    std::string defect = tensor_defect(tensor, files);
    if (!keys.insert(key).second) defect = "is listed twice";
    if (!defect.empty()) return fmt::format("tensors[{}] ({}): {}", i, shown(key), defect);
  }
  return "";
}

std::string files_defect(const Manifest& manifest, const std::string& directory) {
  for (const StoredFile& file : manifest.files)
    if (const std::string defect = size_defect(directory + "/" + file.name, file.bytes); !defect.empty())
      return file.name + ": " + defect;
  return "";
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + std::string(kManifestName);
  Manifest manifest = parse_manifest(read_whole_file(path), path);
  if (const std::string defect = files_defect(manifest, directory); !defect.empty())
    throw EnvError(directory + "/" + defect);
  return manifest;
}

Manifest read_manifest_of_pieces(const std::string& directory) {
  const std::string path = directory + "/" + std::string(kManifestName);
  Manifest manifest = parse_manifest(read_whole_file(path), path);
  const std::vector<std::string> needed = files_with_pieces(manifest);
  std::erase_if(manifest.files,
                [&](const StoredFile& file) { return !std::binary_search(needed.begin(), needed.end(), file.name); });
  if (const std::string defect = files_defect(manifest, directory); !defect.empty())
    throw EnvError(directory + "/" + defect);
  return manifest;
}

std::vector<std::string> files_with_pieces(const Manifest& manifest) {
  std::set<std::string> files;
  for (const StoredTensor& tensor : manifest.tensors)
    for (const StoredPiece& piece : tensor.pieces) files.insert(piece.file);
  return {files.begin(), files.end()};
}

}  // namespace trainctl
