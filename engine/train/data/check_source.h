// Reads all samples of a set, to report what it contains and which samples cannot be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/data/source.h"

namespace trainctl {

struct BrokenSample {
  int64_t sample = 0;
  std::string where;
  std::string error;
};

inline constexpr size_t kMostCountedValues = 65'536;

/// Report on one field, over the samples that could be read.
struct FieldReport {
  int64_t least_bytes = 0, most_bytes = 0, total_bytes = 0;
  Shape least, most;                   ///< decoded images: the smallest and largest of each dim
  std::map<int64_t, int64_t> classes;  ///< for a field of one integer: number of samples with each value
  bool many_values = false;            ///< more than kMostCountedValues: `classes` is empty
  int64_t not_finite = 0;              ///< samples that have a nan or an infinity
  BrokenSample first_not_finite;       ///< first of those in the order of the set; `error`: "element 3 is nan"
};

struct SourceReport {
  int64_t samples = 0, broken = 0;
  std::vector<BrokenSample> first_broken;  ///< in the order of the set
  std::vector<FieldReport> fields;         ///< in the order of Source::fields()
};

struct CheckOptions {
  int threads = 1;
  size_t most_listed = 100;  ///< most broken samples that are listed
  /// The size of a decoded image. Throws EnvError if it is broken. If there is none, images are only read.
  std::function<Shape(std::span<const std::byte>)> image_shape;
  /// Called by one thread at a time with the number of samples read so far, and the number of broken samples among
  /// them. If it returns false, the check stops.
  std::function<bool(int64_t done, int64_t broken)> on_progress;
};

/// Unless the check is stopped, the report is the same for any number of threads.
SourceReport check_source(const Source& source, const CheckOptions& options);

}  // namespace trainctl
