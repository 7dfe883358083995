// Goes through a set: what is in it, and which samples cannot be read.
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

/// Of one field, over the samples that could be read.
struct FieldReport {
  int64_t least_bytes = 0, most_bytes = 0, total_bytes = 0;
  std::map<Shape, int64_t> shapes;  ///< samples of each shape of an image; the rarest are left out where there are many
  int64_t other_shapes = 0;         ///< samples whose shape was left out
  std::map<int64_t, int64_t> classes;  ///< samples of each value, of a field of one integer
  int64_t other_classes = 0;           ///< samples whose value was left out
};

struct SourceReport {
  int64_t samples = 0, broken = 0;
  std::vector<BrokenSample> first_broken;  ///< in the order of the set
  std::vector<FieldReport> fields;         ///< in the order of Source::fields()
};

struct CheckOptions {
  int threads = 1;
  size_t most_listed = 100;  ///< of broken samples
  /// The size of a decoded image. Throws EnvError if it is broken. If there is none, images are only read.
  std::function<Shape(std::span<const std::byte>)> image_shape;
  /// Called by one thread at a time, with samples that are done and those broken among them. False stops the check.
  std::function<bool(int64_t done, int64_t broken)> on_progress;
};

/// The report is the same for any number of threads, if it is not stopped.
SourceReport check_source(const Source& source, const CheckOptions& options);

}  // namespace trainctl
