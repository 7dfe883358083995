// Sizes of the device memory outside of the arena: the workspace of steps in flight, and the data set if it is kept
// there.
#include "engine/planning/device_memory.h"

#include <algorithm>
#include <vector>

#include "engine/planning/device_data.h"
#include "engine/planning/run_length.h"
#include "engine/runtime/copied_collectives.h"
#include "engine/runtime/workspace.h"

namespace trainctl {
namespace {

/// Returns the tables of the tensors whose samples are copied to the device as bytes. Leaves out `kept`, the tables
/// that the device keeps if there is room.
std::vector<ByteTable> mapped_tables(const Program& program, const std::vector<ByteField>& fields,
                                     const std::vector<SampleTable>& kept) {
  std::vector<ByteTable> mapped = byte_tables(fields, program);
  std::erase_if(mapped, [&](const ByteTable& table) {
    const auto is_same = [&](const SampleTable& of) { return of.tensor == table.tensor; };
    return std::any_of(kept.begin(), kept.end(), is_same) || !loads_whole_samples(program, table);
  });
  return mapped;
}

/// Returns the bytes of the workspace if the device keeps the tables of `on_device`, the tensors of `mapped` are copied
/// there as bytes, and all others as floats.
int64_t workspace_bytes(const Program& program, int in_flight, const std::vector<ByteTable>& mapped,
                        const std::vector<SampleTable>& on_device) {
  if (mapped.empty() && on_device.empty()) return workspace_of(program, in_flight).bytes();
  int64_t values = 0;
  for (const ByteTable& table : mapped) values += static_cast<int64_t>(table.values.size() * sizeof(float));
  return workspace_with(input_layout(program, on_device, mapped), program, in_flight).bytes() + values;
}

}  // namespace

Program with_device_memory(const PlannedJob& job, Program program) {
  if (job.spec.launch.device != Device::cuda) return program;
  Memory& m = program.memory;
  m.copy_engines = copy_memory(program, job.plan.ranks).bytes;
  std::vector<SampleTable> tables;
  if (!job.data.is_random) tables = sample_tables(job.data.shapes, job.data.samples, program);
  if (!small_enough_to_keep(tables)) tables.clear();
  std::erase_if(tables, [&](const SampleTable& table) { return !loads_whole_samples(program, table); });
  for (const SampleTable& table : tables) m.data_set += table.bytes();
  const std::vector<ByteTable> mapped = mapped_tables(program, job.data.byte_fields, tables);
  const int in_flight = steps_in_flight(job.spec.train);
  m.workspace = workspace_bytes(program, in_flight, mapped, {});
  m.unsent = tables.empty() ? 0 : m.workspace - workspace_bytes(program, in_flight, mapped, tables);
  return program;
}

Program with_evaluation_memory(const PlannedJob& job, Program program) {
  if (job.spec.launch.device != Device::cuda) return program;
  program.memory.workspace =
      workspace_bytes(program, 1, mapped_tables(program, job.validation->data.byte_fields, {}), {});
  program.memory.copy_engines = copy_memory(program, job.plan.ranks).bytes;
  return program;
}

}  // namespace trainctl
