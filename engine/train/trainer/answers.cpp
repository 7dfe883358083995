// The answers of a network to the samples of a set: what the loss reads, as probabilities of classes or as numbers,
// together with the labels of the samples if they have any.
#include "engine/train/trainer/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/spec/batch_transforms.h"
#include "engine/train/data/sources/arrays.h"
#include "engine/train/trainer/prediction.h"

namespace trainctl {
namespace {

PredictionKind kind_of(const JobSpec& spec) { return prediction_kind(spec.loss->type); }

std::optional<int64_t> ignored_label(const JobSpec& spec) {
  if (!spec.loss->attrs.has("ignore_index")) return std::nullopt;
  return spec.loss->attrs.integer("ignore_index");
}

/// Labels are read without the images, so a cache would only take memory.
DatasetSpec without_cache(DatasetSpec set) {
  set.cache = "none";
  return set;
}

void softmax(std::span<float> row) {
  const float most = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float& value : row) sum += static_cast<double>(value = std::exp(value - most));
  for (float& value : row) value = static_cast<float>(static_cast<double>(value) / sum);
}

float sigmoid(float x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : 1 - 1 / (1 + std::exp(x)); }

}  // namespace

std::string no_single_answer(const JobSpec& spec, int64_t samples, const Shape& label, const Shape& answer) {
  const int64_t numbers = num_elements(label);
  const bool has_classes = kind_of(spec) == PredictionKind::class_logits;
  const std::string what =
      fmt::format("the output {} of '{}' for {} samples", to_string(answer), answer_layer(spec), samples);
  if (answer.empty() || answer[0] != samples) return what + " does not have one row per sample";
  const int64_t width = num_elements(answer) / std::max<int64_t>(samples, 1);
  if (has_classes && answer.size() != 2) return what + " is not one class per sample";
  if (has_classes && numbers != 1 && numbers != width)
    return fmt::format("a sample has {} labels, not one class", numbers);
  return "";
}

Answers::Answers(const JobSpec& spec, DatasetSpec set, const std::string& file, std::vector<std::string> classes)
    : kind_(kind_of(spec)),
      has_labels_(set.labels),
      has_lines_(set.type == "csv" || set.type == "text"),
      ignored_(ignored_label(spec)),
      set_(open_dataset(without_cache(std::move(set)), spec.seed)),
      file_(open_npy({{{"answer", {file}}}})),
      classes_(std::move(classes)),
      bytes_(1) {
  const SampleField& label = set_->fields()[static_cast<size_t>(set_->find("label"))];
  Shape answer = file_->fields()[0].shape;
  answer.insert(answer.begin(), file_->size());
  if (const std::string reason = no_single_answer(spec, set_->size(), label.shape, answer); !reason.empty())
    throw SpecError({}, "", reason, "name a layer and a file: --layer NAME -o output.npy");
  width_ = num_elements(file_->fields()[0].shape);
  label_elements_ = label.elements();
  label_is_integer_ = label.is_integer;
  row_.resize(static_cast<size_t>(width_));
  label_.resize(static_cast<size_t>(label_elements_));
  label_numbers_.resize(static_cast<size_t>(label_elements_));
}

std::span<const float> Answers::read(int64_t sample) {
  file_->read(sample, {true}, bytes_);
  check(bytes_[0].size() == row_.size() * sizeof(float), "a prediction has f32");
  std::memcpy(row_.data(), bytes_[0].data(), bytes_[0].size());
  if (kind_ == PredictionKind::class_logits) softmax(row_);
  if (kind_ == PredictionKind::logit)
    for (float& value : row_) value = sigmoid(value);
  if (kind_ == PredictionKind::log_values)
    for (float& value : row_) value = std::exp(value);
  return row_;
}

std::optional<std::span<const float>> Answers::label(int64_t sample) {
  if (!has_labels_) return std::nullopt;
  if (label_is_integer_) {
    set_->read("label", sample, label_numbers_.data());
    std::copy(label_numbers_.begin(), label_numbers_.end(), label_.begin());
    if (ignored_ && label_numbers_[0] == *ignored_) return std::nullopt;
    return label_;
  }
  set_->read("label", sample, label_.data());
  if (kind_ == PredictionKind::class_logits && label_.size() > 1) {  // probabilities of the classes
    label_numbers_[0] = static_cast<int32_t>(std::max_element(label_.begin(), label_.end()) - label_.begin());
    label_[0] = static_cast<float>(label_numbers_[0]);
    return std::span(label_).first(1);
  }
  return label_;
}

std::string Answers::class_name(int64_t number) const {
  return number >= 0 && number < static_cast<int64_t>(classes_.size()) ? classes_[static_cast<size_t>(number)]
                                                                       : std::to_string(number);
}

Answers::Place Answers::place(int64_t sample) const {
  const std::string where = set_->where(sample);
  const size_t colon = where.rfind(':');
  if (!has_lines_ || colon == std::string::npos || colon + 1 == where.size()) return {where};
  const std::string line = where.substr(colon + 1);
  if (line.find_first_not_of("0123456789") != std::string::npos) return {where};
  return {where.substr(0, colon), std::stoll(line)};
}

}  // namespace trainctl
