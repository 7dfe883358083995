// Tables in device memory for tensors that the device converts from bytes. A step then transfers one byte per element.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/cuda/sample_tables.h"
#include "engine/runtime/cuda/step_kernels.h"

namespace trainctl::cuda {

class ByteTables {
 public:
  /// Uses those of `tables` whose loads take whole samples and whose samples the device does not all keep.
  ByteTables(const Program& program, const std::vector<ByteTable>& tables, const SampleTables& kept);

  const std::vector<ByteTable>& used() const { return used_; }
  /// A load of the tensor, to `to` of `type`, from `from` of a slot. Null `values`: the tensor has no table.
  ByteCopy copy_of(const Instruction& load, int64_t from, void* to) const;

 private:
  std::vector<ByteTable> used_;
  std::vector<DeviceMemory> values_;  ///< parallel to used_
};

}  // namespace trainctl::cuda
