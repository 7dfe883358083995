// A data set: numbered samples, each with the same named fields, after their transforms. The workers of a Loader share
// one data set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/dtype.h"
#include "engine/model/model.h"
#include "engine/planning/data_header.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/read_state.h"
#include "engine/train/data/source.h"

namespace trainctl {

class ByteMap;  ///< byte_map.h

/// One tensor of a sample, as it is in the host's memory: small types stay small until a batch is written.
struct SampleField {
  std::string name;
  ElementType type = ElementType::f32;
  Shape shape;
  bool is_integer = false;  ///< devices load i32; else f32 or bf16
  /// Only for u8: converts a sample's bytes to floats; null: they are the values.
  std::shared_ptr<const ByteMap> map = {};

  int64_t elements() const { return num_elements(shape); }
  int64_t bytes() const { return elements() * byte_size(type); }
};

/// Converts one sample of the field to the type in which a device loads it: by convert_elements, or by the field's map.
void load_field(const SampleField& field, const void* from, DType type, void* to);

/// True if a device may load the field's bytes and convert them to floats: pixels without transforms, and fields whose
/// transforms end by mapping each byte.
bool may_load_bytes(const SampleField& field);
/// The fields for which may_load_bytes() holds.
std::vector<ByteField> byte_fields(const std::vector<SampleField>& fields);

/// Returns the fields in the types in which devices load them: f32 or i32.
std::vector<SampleField> as_loaded(const DataShapes& shapes);

/// The destinations of the fields of one sample, by the number of the field; each is row-major. A null destination
/// means that the field is not needed.
using SampleOutputs = std::span<void* const>;

/// A data set. Any number of threads may read at once, each with a ReadState of its own. Reading a sample again with
/// the same random numbers gives the same bits.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const std::vector<SampleField>& fields() const = 0;
  /// Reads those fields of one sample that have a destination in `to`. `state.rng` is at its start.
  virtual void read(int64_t sample, ReadState& state, SampleOutputs to) const = 0;
  /// Enlarges the state's scratch memory to the size that the set knows reading will need.
  virtual void prepare(ReadState&) const {}
  /// Announces a sample that will be read soon. A set whose files may be slow asks the system for the sample, and
  /// returns at once.
  virtual void expect(int64_t) const {}
  /// Describes the origin of a sample, for errors.
  virtual std::string where(int64_t sample) const { return "sample " + std::to_string(sample); }
  /// The data sets of a mixture, in its order; empty for a set that is no mixture.
  virtual std::vector<const Dataset*> sources() const { return {}; }
  /// The length of each sample, by which a curriculum orders them; empty: samples have no length.
  virtual std::vector<int32_t> lengths() const { return {}; }
  /// Mean number of tokens per sample; 0 if samples have no tokens.
  virtual double tokens_per_sample() const { return 0; }
  /// The number of broken samples that were replaced by others (dataset.on_error: skip), and the error of the first
  /// one.
  virtual SkippedSamples skipped() const { return {}; }

  DataShapes shapes() const;
  /// The number of the field; -1 if there is no such field.
  int find(std::string_view field) const;
  /// Reads one field in the type in which a device loads it, f32 or i32. Uses a state of its own, so it is only for
  /// tools and tests. Random transforms are those of the first pass with seed 0.
  void read(std::string_view field, int64_t sample, void* out) const;
};

/// Opens the job's training set, with its transforms. Throws SpecError if the job asks for something that the set does
/// not have, or if a file is broken (the diagnostic's path is then the field of the job). For `shared_cache` see
/// keep_samples.
std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec, uint64_t seed, int shared_cache = -1);

/// The header of the set that open_dataset(spec, seed) opens. With dataset.split, the seed decides which samples belong
/// to a share, and so how many there are. Reads the headers of files, but no samples. Throws the same errors as
/// open_dataset.
DataHeader read_data_header(const DatasetSpec& spec, uint64_t seed);
DataShapes read_data_shapes(const DatasetSpec& spec, uint64_t seed);
int64_t read_data_size(const DatasetSpec& spec, uint64_t seed);

/// Reads the files that have checksums to their end: gzip files and the arrays of npz files. Throws SpecError
/// (dataset.path) if one is damaged.
void check_files(const DatasetSpec& spec);

}  // namespace trainctl
