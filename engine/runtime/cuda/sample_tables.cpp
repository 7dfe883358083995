// Data set tensors that the device keeps whole: a step then transfers only the numbers of its samples.
#include "engine/runtime/cuda/sample_tables.h"

#include <algorithm>

namespace trainctl::cuda {
namespace {

constexpr int64_t kChunkBytes = 32 << 20;

void fill(const SampleTable& table, std::byte* memory, std::byte* chunk) {
  const int64_t at_once = std::max<int64_t>(kChunkBytes / table.sample_bytes, 1);
  for (int64_t first = 0; first < table.samples; first += at_once) {
    const int64_t count = std::min(at_once, table.samples - first);
    table.read(first, count, chunk);
    cuda_check(cudaMemcpy(memory + first * table.sample_bytes, chunk, static_cast<size_t>(count * table.sample_bytes),
                          cudaMemcpyHostToDevice),
               "cudaMemcpy of the data set");
  }
}

}  // namespace

SampleTables::SampleTables(const Program& program, const std::vector<SampleTable>& tables, const Workspace& workspace) {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  int64_t room = (static_cast<int64_t>(free) - program.arena_bytes - workspace.bytes()) / 4;
  for (const SampleTable& table : tables) {
    if (table.bytes() > room || !loads_whole_samples(program, table)) continue;
    room -= table.bytes();
    kept_.push_back(table);
    memory_.push_back(make_device_memory(table.bytes()));
    const PinnedMemory chunk = make_pinned_memory(std::max(kChunkBytes, table.sample_bytes));
    fill(table, static_cast<std::byte*>(memory_.back().get()), static_cast<std::byte*>(chunk.get()));
    kept_.back().read = {};  // its source need not live as long as this object
  }
}

const std::byte* SampleTables::of(const std::string& tensor) const {
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (kept_[i].tensor == tensor) return static_cast<const std::byte*>(memory_[i].get());
  }
  return nullptr;
}

int64_t SampleTables::sample_bytes(const std::string& tensor) const {
  for (const SampleTable& table : kept_) {
    if (table.tensor == tensor) return table.sample_bytes;
  }
  return 0;
}

}  // namespace trainctl::cuda
