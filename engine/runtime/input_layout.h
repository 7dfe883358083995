// The layout of a step's data in host memory: one block that holds the data of all `load` instructions. A device
// may keep a whole data set tensor; its loads then take sample numbers instead. Or it maps bytes; its loads then take
// those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/byte_table.h"

namespace trainctl {

/// A whole data set tensor, in the type of its loads: [samples, sample_bytes].
struct SampleTable {
  std::string tensor;  ///< Instruction::op of its loads: "data", "label"
  int64_t samples = 0;
  int64_t sample_bytes = 0;
  std::function<void(int64_t first, int64_t count, std::byte* out)> read;

  int64_t bytes() const { return samples * sample_bytes; }
};

struct InputLayout {
  static constexpr int64_t kAlignment = 64;

  int64_t bytes = 0;             ///< size of the block, a multiple of kAlignment; 0: nothing is loaded
  std::vector<int64_t> offsets;  ///< by instruction: offset of a load's data in the block; -1 for all others
  std::vector<int64_t> rows;     ///< by instruction: count of sample numbers (int32) that replace data; 0: data
  std::vector<bool> as_bytes;    ///< by instruction: one byte per element, which the device converts to the load's type
};

/// Loads of the same part of the same micro-batch (a recomputed layer's) share one place.
/// `kept`: the tables that the device has. `mapped`: the tensors that it makes of bytes.
InputLayout input_layout(const Program& program, const std::vector<SampleTable>& kept = {},
                         const std::vector<ByteTable>& mapped = {});

/// True if every load of the table's tensor takes whole, consecutive samples, so that sample numbers can replace them,
/// or bytes.
bool loads_whole_samples(const Program& program, const SampleTable& table);
bool loads_whole_samples(const Program& program, const ByteTable& table);

}  // namespace trainctl
