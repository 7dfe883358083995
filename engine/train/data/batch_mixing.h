// dataset.transforms' mixup and cutmix: which rows of a batch are mixed, and how. The formulas are those of
// image/batch_mix.h.
//
//   row i of the batch's field and label  <-  rows i and i + 1 (the last: and 0)
//
// Rows are those of the batch over all ranks and micro-batches, and what is drawn depends only on (seed, epoch, number
// of the batch in it): the same bits under every plan and for any number of workers. A rank reads the row after each of
// its parts too.
#pragma once

#include <optional>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/image/batch_mix.h"

namespace trainctl {

class BatchMixing {
 public:
  /// The random choices for one batch. Nothing: it stays as it is.
  struct Drawn {
    bool pastes = false;  ///< cutmix
    BatchMix mix;
  };

  /// Null if the job has neither. `fields`: those of the set, after the transforms of its samples. SpecError at the
  /// transform that does not fit, or at the label.
  static std::optional<BatchMixing> of(const DatasetSpec& spec, const std::vector<SampleField>& fields);

  /// By number: the field that is mixed, and the label. Both are f32.
  size_t field() const { return field_; }
  size_t label() const { return label_; }
  bool mixes(size_t field) const { return field == field_ || field == label_; }

  std::optional<Drawn> draw(SampleRng rng) const;
  /// One row of field(), or of the label. `out` is not `other`.
  void mix_field(const Drawn& drawn, const float* own, const float* other, float* out) const;
  void mix_label(const Drawn& drawn, const float* own, const float* other, float* out) const;

 private:
  struct Choice {
    bool pastes = false;
    double alpha = 1, chance = 1;
  };
  std::vector<Choice> choices_;
  size_t field_ = 0, label_ = 0;
  int64_t elements_ = 0, label_elements_ = 0;
  ImageSize image_;
  int64_t channels_ = 1;
  bool channels_first_ = false;
};

}  // namespace trainctl
