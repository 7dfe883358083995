// Reads a folder of IDX files with MNIST's names, raw or .gz.
#include "engine/train/data/mnist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/sample_transforms.h"

namespace trainctl {
namespace {

/// The names of a split's files.
struct SplitFiles {
  std::string images, labels;
  explicit SplitFiles(const std::string& split)
      : images(split == "test" ? "t10k-images-idx3-ubyte" : "train-images-idx3-ubyte"),
        labels(split == "test" ? "t10k-labels-idx1-ubyte" : "train-labels-idx1-ubyte") {}
};
constexpr int64_t kHeaderBytes = 64 << 10;  ///< more than any header needs, compressed or not

/// The path of a file of the set; the raw file takes precedence over .gz.
std::string find_file(const std::string& folder, const SplitFiles& files, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw SpecError({}, "dataset.path", fmt::format("there is no folder '{}'", folder),
                    "give a folder with the IDX files of MNIST; paths are relative to the job file");
  }
  // Kaggle and 7-Zip write a dot: train-images.idx3-ubyte.
  std::string dotted = name;
  dotted[dotted.find("-idx")] = '.';
  for (const std::string& stem : {name, dotted}) {
    for (const char* suffix : {"", ".gz"}) {
      const fs::path path = fs::path(folder) / (stem + suffix);
      if (fs::is_regular_file(path, ignored)) return path.string();
    }
  }
  throw SpecError({}, "dataset.path",
                  fmt::format("'{}' does not contain {} (looked for {} and {}.gz)", folder, name, name, name),
                  fmt::format("the data set consists of {} and {}, each raw or .gz", files.images, files.labels));
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

/// Turns an EnvError into an error of the job, because the user can mend a broken file by naming another folder.
template <class F>
auto of_the_job(F&& read) {
  try {
    return read();
  } catch (const EnvError& error) {
    throw SpecError({}, "dataset.path", error.what(), "give a folder with the complete IDX files of MNIST");
  }
}

bool is_compressed(const std::vector<uint8_t>& start) {
  return start.size() >= 2 && start[0] == 0x1f && start[1] == 0x8b;
}

/// The inflated length that gzip's trailer gives, modulo 2^32.
int64_t inflated_size(std::ifstream& file, int64_t file_size) {
  uint8_t size[4] = {};
  file.seekg(file_size - static_cast<int64_t>(sizeof(size)));
  file.read(reinterpret_cast<char*>(size), sizeof(size));
  return int64_t{size[0]} | (int64_t{size[1]} << 8) | (int64_t{size[2]} << 16) | (int64_t{size[3]} << 24);
}

/// Compares the file's length with the header's, so that a file that is cut off is found before anything starts.
void check_size(const std::string& path, const IdxHeader& header, bool compressed) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file.tellg(), expected = header.header_bytes() + header.body_bytes();
  const int64_t found = compressed ? inflated_size(file, size) : size;
  if (!file) throw EnvError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  if (compressed) check_inflation(header, size, path);
  if (found == (compressed ? expected & 0xFFFFFFFF : expected)) return;
  throw EnvError(fmt::format("{}: expected {} bytes of {}{}, found {}; download the file again", path,
                             with_commas(expected), to_string(header), compressed ? " in the gzip trailer" : "",
                             with_commas(found)));
}

IdxHeader read_header(const std::string& path, size_t num_dims) {
  return of_the_job([&] {
    const std::vector<uint8_t> start = read_bytes(path, kHeaderBytes);
    const IdxHeader header = parse_idx_header(start, path);
    check_header(header, num_dims, path);
    check_size(path, header, is_compressed(start));
    return header;
  });
}

IdxArray read_array(const std::string& path, size_t num_dims) {
  return of_the_job([&] {
    IdxArray array = parse_idx(read_bytes(path, kMaxIdxBytes), path);
    check_header(array.header, num_dims, path);
    return array;
  });
}

void check_same_size(const std::string& images, const Shape& image_dims, const std::string& labels,
                     const Shape& label_dims) {
  if (image_dims[0] == label_dims[0]) return;
  throw SpecError({}, "dataset.path",
                  fmt::format("{} has {} images, but {} has {} labels", images, image_dims[0], labels, label_dims[0]),
                  "give a folder whose two files belong to the same set");
}

/// Throws an error if a sample is too large. A sample is read into f32.
void check_sample(const std::string& images, const Shape& image_dims) {
  if (image_dims[1] <= kMaxImageElements / image_dims[2]) return;
  throw SpecError({}, "dataset.path", fmt::format("{} has images of {} x {}", images, image_dims[1], image_dims[2]),
                  fmt::format("an image can have at most {} pixels", with_commas(kMaxImageElements)));
}

}  // namespace

MnistSet::MnistSet(const std::string& folder, const std::string& split) {
  const SplitFiles files(split);
  const std::string images = find_file(folder, files, files.images), labels = find_file(folder, files, files.labels);
  images_ = read_array(images, 3);
  labels_ = read_array(labels, 1);
  check_same_size(images, images_.header.dims, labels, labels_.header.dims);
  check_sample(images, images_.header.dims);
}

void check_mnist_files(const std::string& folder, const std::string& split) {
  const SplitFiles files(split);
  for (const auto& [name, num_dims] : {std::pair{files.images, size_t{3}}, {files.labels, size_t{1}}}) {
    const std::string path = find_file(folder, files, name);
    if (is_compressed(of_the_job([&] { return read_bytes(path, 2); }))) read_array(path, num_dims);
  }
}

MnistHeader read_mnist_header(const std::string& folder, const std::string& split) {
  const SplitFiles files(split);
  const std::string images = find_file(folder, files, files.images), labels = find_file(folder, files, files.labels);
  // Reads no more than headers and lengths.
  const Shape image_dims = read_header(images, 3).dims, label_dims = read_header(labels, 1).dims;
  check_same_size(images, image_dims, labels, label_dims);
  check_sample(images, image_dims);
  return {image_dims[0], {image_dims[1], image_dims[2], 1}};
}

std::vector<uint8_t> read_mnist_labels(const std::string& folder, const std::string& split) {
  const SplitFiles files(split);
  return read_array(find_file(folder, files, files.labels), 1).body;
}

}  // namespace trainctl
