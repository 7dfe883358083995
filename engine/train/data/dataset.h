// A data set: numbered samples, each of the same named fields, with transforms applied. It is what the workers of a
// Loader share.
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

/// One sample of the field in the type in which a device loads it: as convert_elements, through the field's map.
void load_field(const SampleField& field, const void* from, DType type, void* to);

/// True if a device may load the field's bytes and convert them to floats: pixels without transforms, and fields whose
/// transforms end by mapping each byte.
bool may_load_bytes(const SampleField& field);
/// The fields for which may_load_bytes() holds.
std::vector<ByteField> byte_fields(const std::vector<SampleField>& fields);

/// Returns the fields in the types in which devices load them: f32 or i32.
std::vector<SampleField> as_loaded(const DataShapes& shapes);

/// The destinations of the fields of one sample, row-major, by the number of the field. Null: not needed.
using SampleOutputs = std::span<void* const>;

/// Any number of threads may read at once, each with a state of its own. Reading a sample again with the same random
/// numbers gives the same bits.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const std::vector<SampleField>& fields() const = 0;
  /// Reads the fields that `to` asks for of one sample. `state.rng` is at its start.
  virtual void read(int64_t sample, ReadState& state, SampleOutputs to) const = 0;
  /// Makes the state's scratch memory as large as the set knows that reading will need.
  virtual void prepare(ReadState&) const {}
  /// A sample that will be read soon. A set whose files may be slow asks the system for it and returns at once.
  virtual void expect(int64_t) const {}
  /// Describes the origin of a sample, for errors.
  virtual std::string where(int64_t sample) const { return "sample " + std::to_string(sample); }
  /// The sets of a mixture, in its order; empty: it is one set.
  virtual std::vector<const Dataset*> sources() const { return {}; }
  /// The length of each sample, by which a curriculum orders them; empty: samples have no length.
  virtual std::vector<int32_t> lengths() const { return {}; }
  /// Tokens per sample on average; 0: samples have none.
  virtual double tokens_per_sample() const { return 0; }
  /// Broken samples whose place another one took (dataset.on_error: skip), and the error of the first.
  virtual SkippedSamples skipped() const { return {}; }

  DataShapes shapes() const;
  /// -1: there is no such field.
  int find(std::string_view field) const;
  /// One field in the type in which a device loads it, f32 or i32, with a state of its own: for tools and tests. Random
  /// transforms are those of the first pass of seed 0.
  void read(std::string_view field, int64_t sample, void* out) const;
};

/// Opens the job's training set, with its transforms. Throws SpecError if the job asks for what the set
/// does not have, or if a file is broken (the diagnostics' path is the field). `shared_cache`: as keep_samples.
std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec, uint64_t seed, int shared_cache = -1);

/// The header of the set that open_dataset(spec, seed) opens. The seed decides which samples belong to a share
/// (dataset.split) and so how many there are. Reads the headers of files, and no samples. Throws the same errors as
/// open_dataset.
DataHeader read_data_header(const DatasetSpec& spec, uint64_t seed);
DataShapes read_data_shapes(const DatasetSpec& spec, uint64_t seed);
int64_t read_data_size(const DatasetSpec& spec, uint64_t seed);

/// Reads files that have checksums to their end: gzip files and the arrays of npz files. Throws SpecError
/// (dataset.path) if one is damaged.
void check_files(const DatasetSpec& spec);

}  // namespace trainctl
