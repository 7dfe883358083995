// The layout of a step's data in host memory: one block that holds the data of all `load` instructions. A load takes
// one of three kinds of data:
//
//   values           in the type of the load's tensor
//   sample numbers   if the device keeps the whole data set tensor (SampleTable)
//   bytes            one per element, which the device converts to floats (ByteTable)
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
  std::vector<int64_t> rows;     ///< by instruction: count of sample numbers (int32) that replace the data; 0: none do
  std::vector<bool> as_bytes;    ///< by instruction: one byte per element, which the device converts to the load's type
};

/// Loads of the same part of the same micro-batch, such as those of a recomputed layer, share one place in the block.
/// `kept`: the tensors that the device keeps whole. `mapped`: the tensors that it converts from bytes.
InputLayout input_layout(const Program& program, const std::vector<SampleTable>& kept = {},
                         const std::vector<ByteTable>& mapped = {});

/// True if every load of the table's tensor takes whole, consecutive samples, so that sample numbers or bytes can
/// replace its data.
bool loads_whole_samples(const Program& program, const SampleTable& table);
bool loads_whole_samples(const Program& program, const ByteTable& table);

}  // namespace trainctl
