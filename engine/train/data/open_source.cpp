// See the header.
#include "engine/train/data/open_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/sources/arrays.h"
#include "engine/train/data/sources/cifar.h"
#include "engine/train/data/sources/csv.h"
#include "engine/train/data/sources/image_folder.h"
#include "engine/train/data/sources/mix.h"
#include "engine/train/data/sources/split.h"
#include "engine/train/data/sources/tar.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// A folder of IDX files: data, u8 [h, w, 1], and label.
class MnistSource final : public Source {
 public:
  explicit MnistSource(const DatasetSpec& spec)
      : set_(spec.paths.front(), spec.split),
        folder_(spec.paths.front()),
        fields_(mnist_fields(set_.sample_shape())) {}
  int64_t size() const override { return set_.size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    if (wanted[0]) {
      const std::span<const uint8_t> image = set_.image(sample);
      out[0].resize(image.size());
      std::ranges::copy(std::as_bytes(image), out[0].begin());
    }
    if (wanted[1]) out[1].assign(1, static_cast<std::byte>(set_.label(sample)));
  }
  std::string where(int64_t sample) const override { return folder_ + ": sample " + std::to_string(sample); }
  int64_t held_bytes() const override { return set_.size() * (num_elements(set_.sample_shape()) + 1); }
  const std::vector<std::string>& class_names() const override { return no_names_; }

 private:
  MnistSet set_;
  std::string folder_;
  std::vector<SourceField> fields_;
  std::vector<std::string> no_names_;
};

/// Images [c, h, w] of a source as [h, w, c], which transforms take.
class ChannelsLast final : public Source {
 public:
  explicit ChannelsLast(std::unique_ptr<Source> inner) : inner_(std::move(inner)), fields_(inner_->fields()) {
    Shape& shape = fields_.front().shape;
    channels_ = shape[0];
    pixels_ = shape[1] * shape[2];
    shape = {shape[1], shape[2], shape[0]};
  }
  int64_t size() const override { return inner_->size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    inner_->read(sample, wanted, out);
    if (!wanted[0]) return;
    thread_local FieldBytes planes;
    planes.swap(out[0]);
    out[0].resize(planes.size());
    for (int64_t c = 0; c < channels_; ++c)
      for (int64_t i = 0; i < pixels_; ++i)
        out[0][static_cast<size_t>(i * channels_ + c)] = planes[static_cast<size_t>(c * pixels_ + i)];
  }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  int64_t held_bytes() const override { return inner_->held_bytes(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }

 private:
  std::unique_ptr<Source> inner_;
  std::vector<SourceField> fields_;
  int64_t channels_ = 0, pixels_ = 0;
};

/// Some of the fields, under other names.
class ChosenFields final : public Source {
 public:
  ChosenFields(std::unique_ptr<Source> inner, const std::vector<std::pair<std::string, std::string>>& chosen)
      : inner_(std::move(inner)) {
    for (const auto& [name, of] : chosen) {
      const std::vector<SourceField>& all = inner_->fields();
      const auto at = std::find_if(all.begin(), all.end(), [&](const SourceField& f) { return f.name == of; });
      check(at != all.end(), "a chosen field is one of the source's");
      from_.push_back(static_cast<size_t>(at - all.begin()));
      fields_.push_back(*at);
      fields_.back().name = name;
    }
  }
  int64_t size() const override { return inner_->size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    thread_local std::vector<bool> inner_wanted;
    thread_local std::vector<FieldBytes> bytes;
    inner_wanted.assign(inner_->fields().size(), false);
    bytes.resize(inner_->fields().size());
    for (size_t i = 0; i < from_.size(); ++i) inner_wanted[from_[i]] = wanted[i];
    for (size_t i = 0; i < from_.size(); ++i) bytes[from_[i]].swap(out[i]);
    inner_->read(sample, inner_wanted, std::span(bytes).first(inner_->fields().size()));
    for (size_t i = 0; i < from_.size(); ++i) bytes[from_[i]].swap(out[i]);
  }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  int64_t held_bytes() const override { return inner_->held_bytes(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }

 private:
  std::unique_ptr<Source> inner_;
  std::vector<SourceField> fields_;
  std::vector<size_t> from_;
};

std::unique_ptr<Source> open_cifar_folder(const DatasetSpec& spec) {
  const fs::path folder(spec.paths.front());
  const bool is_test = spec.split == "test";
  CifarOptions options;
  options.classes = spec.type == "cifar10" ? 10 : 100;
  if (options.classes == 10)
    options.paths = {(folder / (is_test ? "test_batch.bin" : "data_batch_*.bin")).string()};
  else
    options.paths = {(folder / (is_test ? "test.bin" : "train.bin")).string()};
  const std::string label = options.classes == 100 && spec.label_set == "coarse" ? "coarse" : "label";
  return std::make_unique<ChosenFields>(std::make_unique<ChannelsLast>(open_cifar(options)),
                                        std::vector<std::pair<std::string, std::string>>{{"image", "image"}, {"label", label}});
}

std::vector<SampleFieldSpec> fields_or(const DatasetSpec& spec, std::vector<SampleFieldSpec> fallback) {
  return spec.fields.empty() ? std::move(fallback) : spec.fields;
}

ArrayFileOptions array_options(const DatasetSpec& spec) {
  ArrayFileOptions options;
  options.paths = spec.paths;
  for (const SampleFieldSpec& field : fields_or(spec, {{"data", {"data"}}, {"label", {"label"}}}))
    options.fields.push_back({field.name, field.parts.front()});
  return options;
}

NpyOptions npy_options(const DatasetSpec& spec) {
  NpyOptions options;
  for (const SampleFieldSpec& field : spec.fields)
    options.fields.push_back({field.name, {(fs::path(spec.paths.front()) / field.parts.front()).string()}});
  return options;
}

TarOptions tar_options(const DatasetSpec& spec) {
  TarOptions options;
  options.paths = spec.paths;
  for (const SampleFieldSpec& field : fields_or(spec, {{"image", {"jpg", "jpeg", "png"}}, {"label", {"cls"}}}))
    options.fields.push_back({field.name, field.parts});
  return options;
}

std::unique_ptr<Source> open_files(const DatasetSpec& spec, const std::vector<std::string>& classes) {
  if (spec.type == "image_folder") return open_image_folder({spec.paths, classes});
  if (spec.type == "tar") return open_tar(tar_options(spec));
  if (spec.type == "csv") return open_csv(csv_options(spec, classes));
  if (spec.type == "npy") return open_npy(npy_options(spec));
  if (spec.type == "npz") return open_npz(array_options(spec));
  if (spec.type == "safetensors") return open_safetensors(array_options(spec));
  if (spec.type == "mnist") return std::make_unique<MnistSource>(spec);
  check(spec.type == "cifar10" || spec.type == "cifar100", "a type that reads files is one of these");
  return open_cifar_folder(spec);
}

std::shared_ptr<const Source> with_share(std::shared_ptr<const Source> set, const DatasetSpec& spec, uint64_t seed) {
  if (!spec.has_shares()) return set;
  SplitOptions options;
  const double rest = std::max(0.0, 1 - spec.train_share - spec.validation_share);
  options.parts = {{"train", spec.train_share}, {"validation", spec.validation_share}, {"rest", rest}};
  std::erase_if(options.parts, [](const auto& part) { return part.second <= 0; });
  options.part = spec.takes_validation_share ? "validation" : "train";
  options.seed = seed;
  return open_split(std::move(set), options);
}

}  // namespace

std::vector<SourceField> mnist_fields(const Shape& image) {
  return {{"data", Encoding::array, ElementType::u8, image}, {"label", Encoding::array, ElementType::u8, {}}};
}

std::shared_ptr<const Source> open_source(const DatasetSpec& spec, uint64_t seed) {
  std::vector<std::string> classes;
  if (!spec.class_paths.empty()) {  // a class has the number that it has in the training set
    DatasetSpec training = spec;
    training.paths = spec.class_paths;
    classes = open_files(training, {})->class_names();
  }
  if (spec.weights.empty()) return with_share(open_files(spec, classes), spec, seed);
  std::vector<MixedSet> sets;
  for (size_t i = 0; i < spec.paths.size(); ++i) {
    DatasetSpec one = spec;
    one.paths = {spec.paths[i]};
    sets.push_back({with_share(open_files(one, classes), spec, seed), spec.weights[i]});
  }
  return open_mix(std::move(sets));
}

}  // namespace trainctl
