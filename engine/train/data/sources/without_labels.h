// Samples without labels, for predictions. Each label is 0, so that the samples have the fields that the network was
// built for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/source.h"

namespace trainctl {

class WithoutLabels final : public Source {
 public:
  /// `inner` has all fields but `label`. The fields come in the order of `order`; if that is empty, the label is last.
  /// `first`: the name of inner's first field in this set; empty: as in `inner`.
  WithoutLabels(std::unique_ptr<Source> inner, SourceField label, const std::string& first,
                const std::vector<SampleFieldSpec>& order);

  int64_t size() const override { return inner_->size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override;
  void expect(int64_t sample) const override { inner_->expect(sample); }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  const std::vector<std::string>& class_names() const override { return no_names_; }

 private:
  std::unique_ptr<Source> inner_;
  size_t label_at_ = 0;
  std::vector<SourceField> fields_;
  std::vector<std::string> no_names_;
};

/// Returns whether the file begins like an IDX file, raw or .gz. False if it cannot be read.
bool is_idx_file(const std::string& path);

/// The images of one IDX file, u8 [h, w, 1], in the field `data`. Throws SpecError (dataset.path) for any other file.
std::unique_ptr<Source> open_idx_images(const std::string& path);

}  // namespace trainctl
