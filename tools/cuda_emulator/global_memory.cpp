// Allocates device memory, and checks that accesses stay inside it and read only what was written.
#include "tools/cuda_emulator/global_memory.h"

#include <cstring>

namespace trainctl::emulator {

void* GlobalMemory::allocate(size_t bytes, bool of_host) {
  constexpr size_t kAround = 1024, kAlign = 256;
  auto made = std::make_unique<Allocation>();
  made->memory.reset(new std::byte[bytes + 2 * kAround + kAlign]);
  const uint64_t begin = reinterpret_cast<uint64_t>(made->memory.get()) + kAround;
  made->first = (begin + kAlign - 1) / kAlign * kAlign;
  made->bytes = bytes;
  if (!of_host) made->written.reset(new uint8_t[bytes + 1]());
  auto* at = reinterpret_cast<void*>(made->first);
  std::memset(at, 0xff, bytes);  // NaNs
  made->of_device = !of_host;
  if (made->of_device) in_use_ += bytes;
  by_first_[made->first] = std::move(made);
  return at;
}

bool GlobalMemory::free(void* memory) {
  const auto found = by_first_.find(reinterpret_cast<uint64_t>(memory));
  if (found == by_first_.end()) return false;
  if (found->second->of_device) in_use_ -= found->second->bytes;
  by_first_.erase(found);
  last_ = nullptr;
  return true;
}

Allocation& GlobalMemory::adopt(const void* memory, size_t bytes, bool read_only) {
  auto made = std::make_unique<Allocation>();
  made->first = reinterpret_cast<uint64_t>(memory);
  made->bytes = bytes;
  made->read_only = read_only;
  auto& place = by_first_[made->first];
  last_ = nullptr;
  place = std::move(made);
  return *place;
}

Allocation* GlobalMemory::find(uint64_t address) {
  if (last_ != nullptr && address - last_->first < last_->bytes) return last_;
  auto after = by_first_.upper_bound(address);
  if (after == by_first_.begin()) return nullptr;
  Allocation* found = std::prev(after)->second.get();
  if (address - found->first >= found->bytes) return nullptr;
  return last_ = found;
}

GlobalMemory& global_memory() {
  static GlobalMemory memory;
  return memory;
}

}  // namespace trainctl::emulator
