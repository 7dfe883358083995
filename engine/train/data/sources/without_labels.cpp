// Samples without labels, for predictions.
#include "engine/train/data/sources/without_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/idx.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

class IdxImages final : public Source {
 public:
  explicit IdxImages(const std::string& path) : path_(path) {
    try {
      const std::string text = read_whole_file(path);
      images_ = parse_idx({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, path);
    } catch (const EnvError& error) {
      throw SpecError({}, "dataset.path", error.what());
    }
    const Shape& dims = images_.header.dims;
    if (images_.header.type != kIdxU8 || dims.size() != 3)
      throw SpecError({}, "dataset.path",
                      path + " has " + to_string(images_.header) + ", expected images u8 [n, h, w]");
    fields_ = {{"data", Encoding::array, ElementType::u8, {dims[1], dims[2], 1}}};
  }
  int64_t size() const override { return images_.header.dims[0]; }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    if (!wanted[0]) return;
    const auto pixels = static_cast<size_t>(num_elements(fields_[0].shape));
    const std::span image =
        std::as_bytes(std::span(images_.body)).subspan(static_cast<size_t>(sample) * pixels, pixels);
    out[0].assign(image.begin(), image.end());
  }
  std::string where(int64_t sample) const override { return path_ + ": sample " + std::to_string(sample); }
  int64_t memory_bytes() const override { return static_cast<int64_t>(images_.body.size()); }
  const std::vector<std::string>& class_names() const override { return no_names_; }

 private:
  std::string path_;
  IdxArray images_;
  std::vector<SourceField> fields_;
  std::vector<std::string> no_names_;
};

}  // namespace

WithoutLabels::WithoutLabels(std::unique_ptr<Source> inner, SourceField label, const std::string& first,
                             const std::vector<SampleFieldSpec>& order)
    : inner_(std::move(inner)), fields_(inner_->fields()) {
  if (!first.empty()) fields_.front().name = first;
  const auto at =
      std::find_if(order.begin(), order.end(), [](const SampleFieldSpec& field) { return field.name == "label"; });
  label_at_ = std::min(fields_.size(), static_cast<size_t>(at - order.begin()));
  if (order.empty()) label_at_ = fields_.size();
  fields_.insert(fields_.begin() + static_cast<std::ptrdiff_t>(label_at_), std::move(label));
}

void WithoutLabels::read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const {
  thread_local std::vector<bool> inner_wanted;
  thread_local std::vector<FieldBytes> bytes;
  inner_wanted.assign(fields_.size() - 1, false);
  bytes.resize(std::max(bytes.size(), inner_wanted.size()));
  const auto outer = [&](size_t field) { return field + (field >= label_at_ ? 1 : 0); };
  for (size_t i = 0; i < inner_wanted.size(); ++i) {
    inner_wanted[i] = wanted[outer(i)];
    bytes[i].swap(out[outer(i)]);
  }
  inner_->read(sample, inner_wanted, std::span(bytes).first(inner_wanted.size()));
  for (size_t i = 0; i < inner_wanted.size(); ++i) bytes[i].swap(out[outer(i)]);
  const SourceField& label = fields_[label_at_];
  if (wanted[label_at_])
    out[label_at_].assign(static_cast<size_t>(num_elements(label.shape) * byte_size(label.type)), std::byte{0});
}

bool is_idx_file(const std::string& path) {
  std::array<unsigned char, 4> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(start.data()), start.size());
  const bool is_raw = start[0] == 0 && start[1] == 0 && start[2] >= 0x08 && start[2] <= 0x0e;
  return file && (is_raw || (start[0] == 0x1f && start[1] == 0x8b));
}

std::unique_ptr<Source> open_idx_images(const std::string& path) { return std::make_unique<IdxImages>(path); }

}  // namespace trainctl
