// Compares the tensors of two checkpoints, or of two safetensors files. Blocks of both sides are compared as bytes
// first: most are equal.
#include "engine/train/checkpoint/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/train/checkpoint/blocks.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/checkpoint/values.h"

namespace trainctl {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 18;

class CheckpointTensors : public WholeTensors {
 public:
  explicit CheckpointTensors(const std::string& directory) : reader_(read_manifest(directory), directory) {
    for (const StoredTensor& tensor : reader_.manifest().tensors)
      tensors_.push_back({tensor.name + ":" + tensor.slot, stored_type(tensor.dtype), tensor.shape});
  }
  void read(size_t index, const Box& box, int64_t, std::span<uint8_t> to) override {
    const StoredTensor& tensor = reader_.manifest().tensors[index];
    reader_.read(tensor.name, tensor.slot, box, tensor.dtype, to.data());
  }

 private:
  PieceReader reader_;
};

class FileTensors : public WholeTensors {
 public:
  explicit FileTensors(const std::string& path) : file_(path) {
    for (const SafetensorsEntry& entry : file_.header().entries) {
      const bool has_slot = entry.name.find(':') != std::string::npos;
      tensors_.push_back({has_slot ? entry.name : entry.name + ":weight", entry.type, entry.shape});
    }
  }
  void read(size_t index, const Box&, int64_t first, std::span<uint8_t> to) override {
    const SafetensorsEntry& entry = file_.header().entries[index];
    file_.read(entry, first * bits_of(entry.type) / 8, to);
  }

 private:
  SafetensorsFile file_;
};

bool differ(double a, double b) { return std::isnan(a) != std::isnan(b) || (!std::isnan(a) && a != b); }

double distance(double a, double b) {
  const double apart = std::abs(a - b);
  return differ(a, b) && std::isnan(apart) ? HUGE_VAL : std::isnan(apart) ? 0 : apart;
}

class TensorComparer {
 public:
  TensorComparer(const NamedTensor& a, const NamedTensor& b)
      : a_(a), b_(b), difference_{.key = a.key, .type_a = a.type, .type_b = b.type} {}

  void block(int64_t first, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
    if (a_.type == b_.type && std::equal(a.begin(), a.end(), b.begin(), b.end())) return;
    const size_t width_a = static_cast<size_t>(bits_of(a_.type)) / 8,
                 width_b = static_cast<size_t>(bits_of(b_.type)) / 8;
    for (size_t i = 0; i * width_a < a.size(); ++i) {
      const uint8_t *left = a.data() + i * width_a, *right = b.data() + i * width_b;
      if (a_.type == b_.type && std::memcmp(left, right, width_a) == 0) continue;
      element(first + static_cast<int64_t>(i), value_of(a_.type, left), value_of(b_.type, right));
    }
  }

  /// Compares elements of types that have no numeric value here: only their bytes count.
  void bytes(int64_t elements, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
    if (a_.type == b_.type && a == b) return;
    difference_.differing = elements;
    difference_.max_abs = difference_.max_rel = HUGE_VAL;
  }

  TensorDifference take() { return std::move(difference_); }

 private:
  void element(int64_t at, double a, double b) {
    if (a_.type != b_.type && !differ(a, b)) return;
    ++difference_.differing;
    const double apart = distance(a, b), largest = std::max(std::abs(a), std::abs(b));
    if (difference_.at < 0 || apart > difference_.max_abs) {
      difference_.max_abs = apart;
      difference_.at = at;
    }
    const double relative = std::isinf(apart) ? apart : largest > 0 ? apart / largest : 0;
    difference_.max_rel = std::max(difference_.max_rel, relative);
  }

  const NamedTensor &a_, &b_;
  TensorDifference difference_;
};

TensorDifference compare_tensors(WholeTensors& a, size_t index_a, WholeTensors& b, size_t index_b) {
  const NamedTensor &left = a.tensors()[index_a], &right = b.tensors()[index_b];
  TensorComparer comparer(left, right);
  const bool values = has_values(left.type) && has_values(right.type);
  const int64_t elements = num_elements(left.shape);
  std::vector<uint8_t> bytes_a, bytes_b;
  // Packed elements are not whole bytes, so a tensor of them is one block.
  for_each_block(left.shape, values ? kBlockElements : std::max<int64_t>(elements, 1),
                 [&](const Box& box, int64_t first) {
                   const int64_t count = num_elements(box.shape);
                   bytes_a.resize(static_cast<size_t>(count * bits_of(left.type) / 8));
                   bytes_b.resize(static_cast<size_t>(count * bits_of(right.type) / 8));
                   a.read(index_a, box, first, bytes_a);
                   b.read(index_b, box, first, bytes_b);
                   if (values)
                     comparer.block(first, bytes_a, bytes_b);
                   else
                     comparer.bytes(count, bytes_a, bytes_b);
                 });
  TensorDifference difference = comparer.take();
  difference.shape = left.shape;
  difference.elements = elements;
  return difference;
}

bool is_chosen(const std::string& key, const std::vector<std::string>& slots) {
  return slots.empty() || std::find(slots.begin(), slots.end(), key.substr(key.rfind(':') + 1)) != slots.end();
}

}  // namespace

std::unique_ptr<WholeTensors> open_tensors(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return std::make_unique<CheckpointTensors>(path);
  return std::make_unique<FileTensors>(path);
}

Shape TensorDifference::place() const {
  Shape indices(shape.size());
  int64_t rest = at;
  for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) indices[d] = rest % shape[d];
  return indices;
}

size_t Comparison::num_equal() const {
  return static_cast<size_t>(
      std::count_if(compared.begin(), compared.end(), [](const TensorDifference& one) { return !one.is_different(); }));
}

Comparison compare(WholeTensors& a, WholeTensors& b, const std::vector<std::string>& slots) {
  std::unordered_map<std::string, size_t> in_b;
  for (size_t i = 0; i < b.tensors().size(); ++i)
    if (is_chosen(b.tensors()[i].key, slots)) in_b.emplace(b.tensors()[i].key, i);
  Comparison found;
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const NamedTensor& left = a.tensors()[i];
    if (!is_chosen(left.key, slots)) continue;
    const auto right = in_b.find(left.key);
    if (right == in_b.end()) {
      found.missing.push_back(left);
      continue;
    }
    const size_t index = right->second;
    in_b.erase(right);
    if (left.shape != b.tensors()[index].shape)
      found.other_shape.emplace_back(left, b.tensors()[index]);
    else
      found.compared.push_back(compare_tensors(a, i, b, index));
  }
  for (const NamedTensor& right : b.tensors())
    if (in_b.contains(right.key)) found.extra.push_back(right);
  return found;
}

}  // namespace trainctl
