// Tables in device memory for tensors that the device converts from bytes.
#include "engine/runtime/cuda/byte_tables.h"

#include "engine/runtime/input_layout.h"

namespace trainctl::cuda {

ByteTables::ByteTables(const Program& program, const std::vector<ByteTable>& tables, const SampleTables& kept) {
  for (const ByteTable& table : tables) {
    if (kept.of(table.tensor) != nullptr || !loads_whole_samples(program, table)) continue;
    const auto bytes = static_cast<int64_t>(table.values.size() * sizeof(float));
    values_.push_back(make_device_memory(bytes));
    cuda_check(
        cudaMemcpy(values_.back().get(), table.values.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
        "cudaMemcpy of a byte table");
    used_.push_back(table);
  }
}

ByteCopy ByteTables::copy_of(const Instruction& load, int64_t from, void* to) const {
  const Operand& part = load.outputs[0];
  for (size_t i = 0; i < used_.size(); ++i) {
    const ByteTable& table = used_[i];
    if (table.tensor != load.op) continue;
    return {from,
            to,
            part.dtype,
            num_elements(part.shape) / table.sample_elements(),
            table.pixels,
            table.channels,
            table.from_planes,
            table.to_planes,
            static_cast<const float*>(values_[i].get())};
  }
  return {};
}

}  // namespace trainctl::cuda
