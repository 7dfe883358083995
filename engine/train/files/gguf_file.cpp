// Files in the format of llama.cpp (GGUF, version 3): typed metadata key-value pairs, and tensors.
#include "engine/train/files/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/f16.h"

namespace trainctl {
namespace {

constexpr int64_t kGgufAlignment = 32;
constexpr uint32_t kGgufVersion = 3;
constexpr int64_t kGgufBlockBytes = 2 + kGgufBlock;

// Types of metadata values in the format.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

int64_t gguf_aligned(int64_t bytes) { return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

class GgufBytes {
 public:
  template <class T>
  void number(T value) {
    const auto* begin = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof value);
  }
  void text(const std::string& text) {
    number(static_cast<uint64_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }

  void operator()(uint32_t value) { typed(kUint32, value); }
  void operator()(float value) { typed(kFloat32, value); }
  void operator()(bool value) { typed(kBool, static_cast<uint8_t>(value)); }
  void operator()(const std::string& value) {
    number(kString);
    text(value);
  }
  void operator()(const std::vector<std::string>& values) {
    array(kString, values.size());
    for (const std::string& value : values) text(value);
  }
  void operator()(const std::vector<int32_t>& values) {
    array(kInt32, values.size());
    for (const int32_t value : values) number(value);
  }
  void operator()(const std::vector<float>& values) {
    array(kFloat32, values.size());
    for (const float value : values) number(value);
  }

  const std::vector<uint8_t>& all() const { return bytes_; }

 private:
  template <class T>
  void typed(uint32_t type, T value) {
    number(type);
    number(value);
  }
  void array(uint32_t type, size_t count) {
    number(kArray);
    number(type);
    number(static_cast<uint64_t>(count));
  }

  std::vector<uint8_t> bytes_;
};

/// Writes a q8_0 block: an f16 scale and 32 int8 values. The scale maps the largest magnitude to 127.
void add_block(const float* values, uint8_t* to) {
  float most = 0;
  for (int64_t i = 0; i < kGgufBlock; ++i) most = std::max(most, std::abs(values[i]));
  const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
  const uint16_t stored = to_f16(scale);
  std::memcpy(to, &stored, sizeof stored);
  for (int64_t i = 0; i < kGgufBlock; ++i)
    to[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

}  // namespace

int64_t gguf_bytes(GgufType type, int64_t elements) {
  if (type == GgufType::q8_0) return elements / kGgufBlock * kGgufBlockBytes;
  return elements * (type == GgufType::f16 ? 2 : 4);
}

std::vector<uint8_t> gguf_values(GgufType type, std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(gguf_bytes(type, count)));
  if (type == GgufType::f32) std::memcpy(bytes.data(), values.data(), bytes.size());
  for (int64_t i = 0; type == GgufType::f16 && i < count; ++i) {
    const uint16_t stored = to_f16(values[static_cast<size_t>(i)]);
    std::memcpy(&bytes[static_cast<size_t>(2 * i)], &stored, sizeof stored);
  }
  check(type != GgufType::q8_0 || count % kGgufBlock == 0, "q8_0 has whole blocks");
  for (int64_t i = 0; type == GgufType::q8_0 && i < count; i += kGgufBlock)
    add_block(&values[static_cast<size_t>(i)], &bytes[static_cast<size_t>(gguf_bytes(type, i))]);
  return bytes;
}

GgufWriter::GgufWriter(const std::string& path, const std::vector<std::pair<std::string, GgufSetting>>& settings,
                       const std::vector<GgufTensor>& tensors, Disk& disk)
    : tensors_(tensors), file_(path, disk) {
  GgufBytes head;
  for (const char c : {'G', 'G', 'U', 'F'}) head.number(c);
  head.number(kGgufVersion);
  head.number(static_cast<uint64_t>(tensors.size()));
  head.number(static_cast<uint64_t>(settings.size()));
  for (const auto& [key, value] : settings) {
    head.text(key);
    std::visit(head, value);
  }
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    head.text(tensor.name);
    head.number(static_cast<uint32_t>(tensor.shape.size()));
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) head.number(static_cast<uint64_t>(*dim));
    head.number(static_cast<uint32_t>(tensor.type));
    head.number(static_cast<uint64_t>(offset));
    places_.push_back(offset);
    offset += gguf_aligned(gguf_bytes(tensor.type, num_elements(tensor.shape)));
  }
  const int64_t data = gguf_aligned(static_cast<int64_t>(head.all().size()));
  for (int64_t& place : places_) place += data;
  bytes_ = data + offset;
  file_.write(0, head.all());
  const std::vector<uint8_t> last = {0};  // zeros up to the end of the last tensor, which a reader maps
  if (bytes_ > 0) file_.write(bytes_ - 1, last);
}

void GgufWriter::write(size_t tensor, int64_t first, std::span<const float> values) {
  const GgufType type = tensors_[tensor].type;
  file_.write(places_[tensor] + gguf_bytes(type, first), gguf_values(type, values));
}

int64_t GgufWriter::finish() {
  file_.sync_and_close();
  return bytes_;
}

}  // namespace trainctl
