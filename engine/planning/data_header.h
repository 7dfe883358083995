// The facts of a data set that a plan depends on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/runtime/byte_table.h"

namespace trainctl {

/// A field of floats whose samples are bytes until a device converts them.
struct ByteField {
  std::string name;
  ByteTable table;  ///< maps a sample's bytes to floats; without the tensor's name
};

/// A source of a mixture.
struct SourceHeader {
  std::string name;
  int64_t samples = 0;
  double tokens = 0;  ///< tokens per sample on average; 0: its samples have none
};

struct DataHeader {
  DataShapes shapes;    ///< shapes of one sample after the transforms
  int64_t samples = 0;  ///< number of samples, after splits and limits
  int64_t bytes = 0;    ///< host memory per rank: index, order and scratch memory, without cached samples
  /// True if transforms, or the mixing of a batch, draw random numbers. Samples then differ in each pass, so a device
  /// cannot keep them.
  bool is_random = false;
  std::vector<ByteField> byte_fields = {};
  std::vector<std::string> classes = {};   ///< names of the classes, by number; empty: they have none
  double tokens = 0;                       ///< tokens per sample on average; 0: samples have none
  std::vector<SourceHeader> sources = {};  ///< the sources of a mixture, in its order
  std::vector<std::string> notes = {};     ///< lines about the samples for `plan`: documents that are left out
};

}  // namespace trainctl
