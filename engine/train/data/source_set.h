// Presents a Source as a data set: each field is read, decoded if it is an image, and transformed. A result of bytes
// stays bytes, so that caches and copies to devices are small.
//
//   Source -> bytes -> SampleTransforms (decode, crop, resize, …) -> the sample's field
//
// All fields of a sample use the same random numbers: an image and its mask are cropped at the same place if their
// transforms begin alike.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/data/dataset.h"
#include "engine/train/data/sample_transforms.h"

namespace trainctl {

/// Describes how a field of a source becomes a field of the sample.
struct FieldWay {
  SourceField from;
  ElementType type = ElementType::u8;  ///< type that the transforms accept
  std::optional<SampleTransforms> transforms;
};

/// The fields of the samples of a set, and how each is made from a field of the source.
struct FieldWays {
  /// The content of a field whose last transforms map each byte by itself (byte_map.h): either the floats after these
  /// transforms, or the bytes before them. In the second case SampleField::map describes the conversion for the device.
  enum class Bytes : uint8_t { become_floats, stay };

  /// SpecError at the transform that does not fit, or at dataset.transforms if a field has no fixed shape.
  FieldWays(const std::vector<SourceField>& from, const DatasetSpec& spec, Bytes bytes = Bytes::become_floats);

  std::vector<SampleField> fields;
  std::vector<FieldWay> ways;  ///< by field
  bool is_random = false;      ///< transforms draw random numbers: a sample differs from pass to pass
  bool is_work = false;        ///< some field is decoded or transformed, not only copied

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

/// True if a device may receive the field as bytes. False for fields that mixup or cutmix mixes, because these need
/// floats, and for labels.
bool may_keep_bytes(const std::string& field, const std::vector<TransformSpec>& transforms);

/// The transforms of a field: those that name it. For the first field that is not the label, also the transforms that
/// name no field.
std::vector<TransformSpec> transforms_of(const DatasetSpec& spec, const std::vector<SourceField>& fields,
                                         const std::string& field);

}  // namespace trainctl
