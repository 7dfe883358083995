// The answers of a network to the samples of a set: what the loss reads, as probabilities of classes or as numbers,
// together with the labels of the samples if they have any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/ops/prediction_kind.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// Returns why the job has no answer for each sample, but one per token or pixel, or several numbers of any shape; ""
/// if it has one. `label`: shape of a sample's label, `answer`: shape of the answer layer's output for all samples.
std::string no_single_answer(const JobSpec& spec, int64_t samples, const Shape& label, const Shape& answer);

class Answers {
 public:
  /// `file`: a prediction (.npy) of answer_layer for all samples of `set`, row by row. `classes`: names of the classes;
  /// may be empty. Throws SpecError if a sample does not have a single answer (no_single_answer).
  Answers(const JobSpec& spec, DatasetSpec set, const std::string& file, std::vector<std::string> classes);

  PredictionKind kind() const { return kind_; }
  int64_t size() const { return set_->size(); }
  const Dataset& samples() const { return *set_; }
  /// Numbers of an answer: classes, or values.
  int64_t width() const { return width_; }
  bool has_labels() const { return has_labels_; }

  /// class_logits: the probability of each class. logit: the probability of each output. Else the numbers.
  std::span<const float> read(int64_t sample);
  /// One number per output, or the class. Nothing for a sample whose label the loss ignores.
  std::optional<std::span<const float>> label(int64_t sample);

  /// The name of a class, or its number.
  std::string class_name(int64_t number) const;
  const std::vector<std::string>& classes() const { return classes_; }

  /// The file of a sample, and its line in a table (-1: the file is the sample, or has no lines).
  struct Place {
    std::string file;
    int64_t line = -1;
  };
  Place place(int64_t sample) const;

 private:
  const PredictionKind kind_;
  const bool has_labels_;
  const bool has_lines_;
  const std::optional<int64_t> ignored_;
  std::unique_ptr<Dataset> set_;
  std::unique_ptr<Source> file_;
  std::vector<std::string> classes_;
  int64_t width_ = 0;
  int64_t label_elements_ = 1;
  bool label_is_integer_ = false;
  std::vector<FieldBytes> bytes_;
  std::vector<float> row_, label_;
  std::vector<int32_t> label_numbers_;
};

}  // namespace trainctl
