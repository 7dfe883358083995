// A Source as a data set: each field is read, decoded if it is an image, transformed, and left in a small type.
//
//   Source -> bytes -> SampleTransforms (decode, crop, resize, …) -> the sample's field
//
// All fields of a sample draw from the same numbers: an image and its mask are cut at the same place if their
// transforms begin alike.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/data/dataset.h"
#include "engine/train/data/sample_transforms.h"

namespace trainctl {

/// The conversion of a field of a source to a field of the sample.
struct FieldWay {
  SourceField from;
  ElementType type = ElementType::u8;  ///< type that the transforms accept
  std::optional<SampleTransforms> transforms;
};

/// The fields of a set after their transforms.
struct FieldWays {
  /// Result of a field whose transforms end by mapping each byte: floats, or bytes with SampleField::map.
  enum class Bytes : uint8_t { become_floats, stay };

  /// SpecError at the transform that does not fit, or at dataset.transforms if a field has no fixed shape.
  FieldWays(const std::vector<SourceField>& from, const DatasetSpec& spec, Bytes bytes = Bytes::become_floats);

  std::vector<SampleField> fields;
  std::vector<FieldWay> ways;  ///< by field
  bool is_random = false;      ///< a sample looks different in each pass
  bool is_work = false;        ///< a sample is more than a copy of the source's bytes

 private:
  void add(const std::vector<SourceField>& all, const SourceField& from, const DatasetSpec& spec, Bytes bytes);
};

class SourceSet final : public Dataset {
 public:
  SourceSet(std::shared_ptr<const Source> source, FieldWays ways) : source_(std::move(source)), of_(std::move(ways)) {}

  int64_t size() const override { return source_->size(); }
  const std::vector<SampleField>& fields() const override { return of_.fields; }
  /// Throws EnvError, which names the sample's file, if it is broken.
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override;
  void prepare(ReadState& state) const override;
  void expect(int64_t sample) const override { source_->expect(sample); }
  std::string where(int64_t sample) const override { return source_->where(sample); }
  const FieldWays& ways() const { return of_; }

 private:
  void write_array(const FieldWay& way, const FieldBytes& bytes, int64_t sample, ReadState& state, StageTimer& timer,
                   void* to) const;
  static void transform_array(const FieldWay& way, const FieldBytes& bytes, ReadState& state, void* to);
  void write_image(const FieldWay& way, const FieldBytes& bytes, int64_t sample, ReadState& state, StageTimer& timer,
                   void* to) const;

  std::shared_ptr<const Source> source_;
  FieldWays of_;
};

/// Rows are mixed as floats, and labels are counted, so only other fields may remain bytes.
bool may_keep_bytes(const std::string& field, const std::vector<TransformSpec>& transforms);

/// The transforms of a field: those for it by name, and for the first field that is not the label also those of no
/// name.
std::vector<TransformSpec> transforms_of(const DatasetSpec& spec, const std::vector<SourceField>& fields,
                                         const std::string& field);

}  // namespace trainctl
