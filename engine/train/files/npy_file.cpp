// Tensors in files that numpy.load reads.
#include "engine/train/files/npy_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/graph/half.h"

namespace trainctl {
namespace {

static_assert(std::endian::native == std::endian::little, "the data of the file is little-endian");

namespace fs = std::filesystem;

constexpr int64_t kElementBytes = 4;
constexpr const char* kPart = ".part.";
constexpr size_t kLongestHead = 128;

std::string sizes_text(const Shape& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

/// Sizes of at most nine digits each; nullopt for any other text.
std::optional<Shape> parse_part_sizes(const std::string& text) {
  Shape sizes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, 'x');) {
    if (word.empty() || word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos) return {};
    sizes.push_back(std::stoll(word));
  }
  return sizes;
}

struct PartName {
  std::string tensor;
  Shape first, shape, whole;
};

/// The part that a file of write_npy_shard holds; nullopt for any other file, and for a part outside its tensor.
std::optional<PartName> parse_part_name(const std::string& name) {
  const size_t at = name.rfind(kPart);
  if (at == std::string::npos || !name.ends_with(".npy")) return {};
  PartName part;
  part.tensor = name.substr(0, at);
  std::string rest = name.substr(at + std::strlen(kPart));
  for (Shape* sizes : {&part.first, &part.shape, &part.whole}) {
    const size_t end = rest.find('.');
    const std::optional<Shape> found = end == std::string::npos ? std::nullopt : parse_part_sizes(rest.substr(0, end));
    if (!found) return {};
    *sizes = *found;
    rest.erase(0, end + 1);
  }
  if (part.tensor.empty() || rest != "npy" || part.first.size() != part.whole.size()) return {};
  if (part.shape.size() != part.whole.size()) return {};
  int64_t elements = 1;
  for (size_t d = 0; d < part.whole.size(); ++d) {
    if (part.first[d] + part.shape[d] > part.whole[d]) return {};
    elements = capped_product(elements, std::max<int64_t>(part.whole[d], 1));
  }
  if (elements > kCapped / kElementBytes) return {};
  return part;
}

class NpyFile {
 public:
  explicit NpyFile(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666)) {
    if (fd_ < 0) fail();
  }
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;
  ~NpyFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  void write(int64_t at, const void* data, int64_t bytes) const {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = pwrite(fd_, from, static_cast<size_t>(bytes), at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail();
      from += written;
      at += written;
      bytes -= written;
    }
  }

  /// Some file systems report a full disk only here.
  void close() {
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0 && errno != EINTR) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw EnvError("cannot write the printed tensor " + path_ + ": " + describe_errno(errno));
  }

  const std::string path_;
  int fd_;
};

/// The elements as the file has them.
std::vector<float> widened(DType dtype, const void* data, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  halves_to_floats(dtype, static_cast<const uint16_t*>(data), elements, values.data());
  return values;
}

}  // namespace

std::string npy_head(const Shape& shape, DType dtype) {
  constexpr size_t kBeforeHeader = 10, kAlignment = 64;
  std::string header =
      std::string("{'descr': '") + (dtype == DType::i32 ? "<i4" : "<f4") + "', 'fortran_order': False, 'shape': (";
  for (int64_t size : shape) header += std::to_string(size) + ", ";
  if (shape.size() > 1) header.resize(header.size() - 2);
  if (shape.size() == 1) header.resize(header.size() - 1);
  header += "), }";
  header.resize((kBeforeHeader + header.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - kBeforeHeader - 1,
                ' ');
  header += '\n';
  std::string head = "\x93NUMPY";
  head += '\x01';
  head += '\x00';
  head += static_cast<char>(header.size() & 0xff);
  head += static_cast<char>(header.size() >> 8);
  return head + header;
}

void write_npy_shard(const std::string& folder, const std::string& name, const Shape& whole, DType dtype,
                     const Shape& first, const Shape& shape, const void* data) {
  const std::string path =
      folder + "/" + name + kPart + sizes_text(first) + "." + sizes_text(shape) + "." + sizes_text(whole) + ".npy";
  write_npy_part(path, shape, dtype, Shape(shape.size(), 0), shape, data);
}

void join_npy_shards(const std::string& folder) {
  std::error_code not_there;
  std::vector<std::pair<fs::file_time_type, fs::path>> parts;
  for (const auto& entry : fs::recursive_directory_iterator(folder, not_there))
    if (parse_part_name(entry.path().filename().string()))
      parts.emplace_back(entry.last_write_time(not_there), entry.path());
  std::sort(parts.begin(), parts.end());
  for (const auto& [time, path] : parts) {
    const PartName part = *parse_part_name(path.filename().string());
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    const bool is_integer = bytes.find("'<i4'") < kLongestHead;
    const DType dtype = is_integer ? DType::i32 : DType::f32;
    const std::string head = npy_head(part.shape, dtype);
    const auto data_bytes = static_cast<size_t>(num_elements(part.shape) * kElementBytes);
    if (!bytes.starts_with(head) || bytes.size() != head.size() + data_bytes) continue;
    write_npy_part((path.parent_path() / (part.tensor + ".npy")).string(), part.whole, dtype, part.first, part.shape,
                   bytes.data() + head.size());
    fs::remove(path, not_there);
  }
}

void write_npy_part(const std::string& path, const Shape& whole, DType dtype, const Shape& first, const Shape& shape,
                    const void* data) {
  write_tensor_part(path, npy_head(whole, dtype), whole, dtype, first, shape, data);
}

void write_tensor_part(const std::string& path, const std::string& head, const Shape& whole, DType dtype,
                       const Shape& first, const Shape& shape, const void* data) {
  check(whole.size() == shape.size() && first.size() == shape.size(), "a part has the dims of its tensor");
  NpyFile file(path);
  file.write(0, head.data(), static_cast<int64_t>(head.size()));
  std::vector<float> wide;
  if (is_half(dtype)) {
    wide = widened(dtype, data, num_elements(shape));
    data = wide.data();
  }
  // Whole dims at the end are contiguous in the file, with one block of the last dim that is cut.
  size_t cut = shape.size();
  int64_t run = 1, stride = 1;  // elements of a run, and of all dims after `cut` in the whole
  while (cut > 0 && shape[cut - 1] == whole[cut - 1]) run *= shape[--cut];
  stride = run;
  if (cut > 0) run *= shape[cut - 1];
  const int64_t runs = run == 0 ? 0 : num_elements(shape) / run;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t at = cut == 0 ? 0 : first[cut - 1] * stride, rest = r;
    int64_t outer = stride * (cut == 0 ? 1 : whole[cut - 1]);
    for (size_t d = cut == 0 ? 0 : cut - 1; d-- > 0;) {
      at += (first[d] + rest % shape[d]) * outer;
      rest /= shape[d];
      outer *= whole[d];
    }
    file.write(static_cast<int64_t>(head.size()) + at * kElementBytes,
               static_cast<const char*>(data) + r * run * kElementBytes, run * kElementBytes);
  }
  file.close();
}

}  // namespace trainctl
