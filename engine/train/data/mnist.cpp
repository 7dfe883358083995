// See the header.
#include "engine/train/data/mnist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr const char* kImages = "train-images-idx3-ubyte";
constexpr const char* kLabels = "train-labels-idx1-ubyte";
constexpr int64_t kHeaderBytes = 64 << 10;  ///< more than any header needs, compressed or not

/// The path of a file of the set; the raw file takes precedence over .gz.
std::string find_file(const std::string& folder, const char* name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw SpecError({}, "dataset.path", fmt::format("there is no folder '{}'", folder),
                    "a folder with MNIST's IDX files; a relative path starts at the job file's folder");
  }
  for (const char* suffix : {"", ".gz"}) {
    const fs::path path = fs::path(folder) / (std::string(name) + suffix);
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  throw SpecError({}, "dataset.path", fmt::format("'{}' has no {} (looked for {} and {}.gz)", folder, name, name, name),
                  fmt::format("the set is {} and {}, each raw or .gz", kImages, kLabels));
}

std::vector<uint8_t> read_bytes(const std::string& path, int64_t most) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const int64_t size = file.tellg();
  if (!file || size < 0) throw EnvError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(size, most)));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw EnvError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return bytes;
}

void check_header(const IdxHeader& header, size_t num_dims, const std::string& path) {
  if (header.type == kIdxU8 && header.dims.size() == num_dims) return;
  throw EnvError(fmt::format("{}: byte 2: expected u8 of {} dims (magic number 0000080{}), found {}", path, num_dims,
                             num_dims, to_string(header)));
}

/// The user can fix a damaged header by choosing another folder.
IdxHeader read_header(const std::string& path, size_t num_dims) {
  const std::vector<uint8_t> start = read_bytes(path, kHeaderBytes);
  IdxHeader header;
  try {
    header = parse_idx_header(start, path);
  } catch (const EnvError& error) {
    throw SpecError({}, "dataset.path", error.what(), "a folder with MNIST's IDX files, whole");
  }
  check_header(header, num_dims, path);
  return header;
}

IdxArray read_array(const std::string& path, size_t num_dims) {
  IdxArray array = parse_idx(read_bytes(path, kMaxIdxBytes), path);
  check_header(array.header, num_dims, path);
  return array;
}

}  // namespace

MnistSet::MnistSet(const std::string& folder) {
  const std::string images = find_file(folder, kImages), labels = find_file(folder, kLabels);
  images_ = read_array(images, 3);
  labels_ = read_array(labels, 1);
  if (labels_.header.dims[0] != size()) {
    throw EnvError(fmt::format("{}: byte 4: expected {} labels, as many as there are images in {}, found {}", labels,
                               size(), images, labels_.header.dims[0]));
  }
}

void MnistSet::read_image(int64_t sample, float* out) const {
  const int64_t pixels = images_.header.dims[1] * images_.header.dims[2];
  const uint8_t* in = images_.body.data() + sample * pixels;
  for (int64_t i = 0; i < pixels; ++i) out[i] = in[i];
}

MnistHeader read_mnist_header(const std::string& folder) {
  const std::string images = find_file(folder, kImages), labels = find_file(folder, kLabels);
  const Shape image_dims = read_header(images, 3).dims, label_dims = read_header(labels, 1).dims;
  if (image_dims[0] != label_dims[0]) {
    throw SpecError({}, "dataset.path",
                    fmt::format("{} has {} images, but {} has {} labels", images, image_dims[0], labels, label_dims[0]),
                    "a folder whose two files are of one set");
  }
  return {image_dims[0], {image_dims[1], image_dims[2], 1}};
}

std::vector<uint8_t> read_mnist_labels(const std::string& folder) {
  return read_array(find_file(folder, kLabels), 1).body;
}

}  // namespace trainctl
