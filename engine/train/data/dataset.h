// A data set: numbered samples, each a `data` and a `label` tensor, with transforms applied. It is what the workers of
// a Loader share.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/model/model.h"
#include "engine/spec/job_spec.h"
#include "engine/train/data/sample_rng.h"

namespace trainctl {

enum class DataTensor : uint8_t { data, label };
/// The graph's input tensor, "data" or "label", and back.
std::string_view to_string(DataTensor which);
DataTensor data_tensor(std::string_view name);

/// Where one sample's tensors go, row-major: f32, or i32 where shapes() says integer; both take 4 bytes. Null: not wanted.
struct SampleOutputs {
  void* data = nullptr;
  void* label = nullptr;
};

/// A worker's own: its scratch memory, which grows to the largest sample, and the random numbers of the sample at hand.
struct ReadState {
  SampleRng rng;
  std::vector<float> floats;    ///< of transforms
  std::vector<int32_t> labels;  ///< of one sample, of whoever counts labels
};

/// Any number of threads may read at once, each with a state of its own. Reading a sample again with the same random
/// numbers gives the same bits.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual const DataShapes& shapes() const = 0;
  /// Reads what `to` asks for of one sample. `state.rng` is at its start.
  virtual void read(int64_t sample, ReadState& state, const SampleOutputs& to) const = 0;
  /// Makes the state's scratch memory as large as the set knows that reading will need.
  virtual void prepare(ReadState&) const {}

  /// One tensor, with a state of its own: for tools and tests. Random transforms are those of the first pass of seed 0.
  void read(DataTensor which, int64_t sample, void* out) const;
  int64_t elements(DataTensor which) const {
    return num_elements(which == DataTensor::data ? shapes().data : shapes().label);
  }
};

/// Sets up to this total are kept in memory after the first read; larger ones are computed anew for every batch: a
/// sixteenth of the host's memory, at least 256 MiB. Each rank keeps what it has read.
int64_t most_cached_bytes();

/// Opens the job's training set, with its transforms. Throws SpecError if the job asks for what the set
/// does not have, or if a file is broken (the diagnostics' path is the field).
std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec, uint64_t seed);

/// The shapes of one sample after the transforms. Reads the headers of files, no samples.
DataShapes read_data_shapes(const DatasetSpec& spec);

/// Reads compressed files to their end, where gzip's checksum is: SpecError (dataset.path) if one is damaged.
void check_files(const DatasetSpec& spec);

/// What each rank keeps of the set in the host's memory: its files' contents (mapped ones are the system's), the order
/// of its samples, and scratch memory. Without the cache of most_cached_bytes(). Reads only the headers of files.
int64_t data_set_bytes(const DatasetSpec& spec);

/// The size() of the opened set. Reads only the headers of files, too.
int64_t read_data_size(const DatasetSpec& spec);

}  // namespace trainctl
