// dataset.transforms' mixup and cutmix: which rows of a batch are mixed, and how. The formulas are those of
// image/batch_mix.h.
//
//   row i of the batch's field and label  <-  rows i and i + 1 (the last: and 0)
//
// Rows are counted over all ranks and micro-batches. The random choices depend only on the seed, the epoch and the
// number of the batch in it, so the bits are the same under every plan and for any number of workers. Besides the rows
// of its parts, a rank also reads the row that follows each part.
#pragma once

#include <optional>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/image/batch_mix.h"

namespace trainctl {

class BatchMixing {
 public:
  /// The random choices for one batch. A batch without such choices stays as it is.
  struct Drawn {
    bool pastes = false;  ///< cutmix
    BatchMix mix;
  };

  /// Null if the job has neither mixup nor cutmix. `fields` are those of the set after the transforms of its samples.
  /// Throws SpecError at the transform that does not fit, or at the label.
  static std::optional<BatchMixing> of(const DatasetSpec& spec, const std::vector<SampleField>& fields);

  /// The numbers of the mixed field and of the label. Both are f32.
  size_t field() const { return field_; }
  size_t label() const { return label_; }
  bool mixes(size_t field) const { return field == field_ || field == label_; }

  std::optional<Drawn> draw(SampleRng rng) const;
  /// Mixes one row of field(), or of the label. `out` must not be `other`.
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
