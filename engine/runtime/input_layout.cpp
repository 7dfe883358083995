// The layout of a step's data in host memory: one block that holds the data of all `load` instructions.
#include "engine/runtime/input_layout.h"

#include <algorithm>

#include "engine/ops/row_order.h"
#include "engine/runtime/parts.h"

namespace trainctl {
namespace {

/// Returns whether two loads read the same data, so that they can share one place in the block.
bool alike(const Instruction& a, const Instruction& b) {
  const Operand &x = a.outputs[0], &y = b.outputs[0];
  return a.op == b.op && a.micro_batch == b.micro_batch && x.shape == y.shape && x.global_offset == y.global_offset;
}

/// The number of samples that a load takes if the device keeps the tensor; 0 if it does not.
int64_t rows_of(const Instruction& load, const std::vector<SampleTable>& kept) {
  const auto table = std::find_if(kept.begin(), kept.end(), [&](const SampleTable& t) { return t.tensor == load.op; });
  return table == kept.end() ? 0 : load.outputs[0].bytes() / table->sample_bytes;
}

/// Returns whether each load of `tensor` takes whole, consecutive samples. `sample_elements(part)`: elements of one
/// sample.
template <class F>
bool loads_whole(const Program& program, const std::string& tensor, F sample_elements) {
  return std::all_of(program.instructions.begin(), program.instructions.end(), [&](const Instruction& load) {
    if (load.opcode != Opcode::load || load.op != tensor) return true;
    if (load.attrs.has(kRowOrder)) return false;
    const Operand& part = load.outputs[0];
    int runs = 0;
    int64_t begin = 0;
    for_each_run(part.global_shape, part.global_offset, part.shape, [&](int64_t, int64_t in_whole, int64_t) {
      begin = in_whole;
      ++runs;
    });
    const int64_t whole = sample_elements(part);
    return runs == 1 && begin % whole == 0 && num_elements(part.shape) % whole == 0;
  });
}

}  // namespace

InputLayout input_layout(const Program& program, const std::vector<SampleTable>& kept,
                         const std::vector<ByteTable>& mapped) {
  InputLayout layout;
  layout.offsets.assign(program.instructions.size(), -1);
  layout.rows.assign(program.instructions.size(), 0);
  layout.as_bytes.assign(program.instructions.size(), false);
  std::vector<size_t> distinct;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& load = program.instructions[i];
    if (load.opcode != Opcode::load) continue;
    layout.rows[i] = rows_of(load, kept);
    layout.as_bytes[i] = layout.rows[i] == 0 && std::any_of(mapped.begin(), mapped.end(), [&](const ByteTable& table) {
                           return table.tensor == load.op;
                         });
    for (size_t earlier : distinct) {
      if (alike(program.instructions[earlier], load)) layout.offsets[i] = layout.offsets[earlier];
    }
    if (layout.offsets[i] >= 0) continue;
    distinct.push_back(i);
    layout.offsets[i] = layout.bytes;
    const auto number_bytes = static_cast<int64_t>(sizeof(int32_t));
    const int64_t bytes = layout.rows[i] > 0   ? layout.rows[i] * number_bytes
                          : layout.as_bytes[i] ? num_elements(load.outputs[0].shape)
                                               : load.outputs[0].bytes();
    layout.bytes += (bytes + InputLayout::kAlignment - 1) / InputLayout::kAlignment * InputLayout::kAlignment;
  }
  return layout;
}

bool loads_whole_samples(const Program& program, const SampleTable& table) {
  return loads_whole(program, table.tensor,
                     [&](const Operand& part) { return table.sample_bytes / byte_size(part.dtype); });
}

bool loads_whole_samples(const Program& program, const ByteTable& table) {
  return loads_whole(program, table.tensor, [&](const Operand&) { return table.sample_elements(); });
}

}  // namespace trainctl
