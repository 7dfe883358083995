//   region:  [ page: blocks of 48 bytes | page: blocks of 16 bytes | page: blocks of 48 bytes | … not used yet ]
//
// A page has blocks of one size, so a block's address tells its shelf. Shelves are of one thread; pages are handed out
// in order to whichever thread asks.
#include "engine/base/small_blocks.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#ifndef TRAINCTL_SANITIZED  // sanitizers have their own

namespace {

constexpr size_t kStep = 16, kLargest = 1024, kPage = 64 << 10;
constexpr size_t kRegion = size_t{16} << 30;  ///< address space, not memory

struct FreeBlock {
  FreeBlock* next;
};
struct Shelf {
  FreeBlock* freed = nullptr;
  std::byte *fresh = nullptr, *end = nullptr;  ///< the rest of the page, never used before
};

constinit std::atomic<std::byte*> region = nullptr;
constinit std::atomic<size_t> handed_out = 0;
constinit std::array<uint8_t, kRegion / kPage> shelf_of_page = {};
constinit thread_local std::array<Shelf, kLargest / kStep> shelves = {};

/// Null if no page is left.
void* fresh_block(std::byte* begin, size_t which) {
  Shelf& shelf = shelves[which];
  const size_t bytes = (which + 1) * kStep;
  if (static_cast<size_t>(shelf.end - shelf.fresh) < bytes) {
    const size_t at = handed_out.fetch_add(kPage, std::memory_order_relaxed);
    if (at >= kRegion) return nullptr;
    shelf_of_page[at / kPage] = static_cast<uint8_t>(which);
    shelf.fresh = begin + at;
    shelf.end = shelf.fresh + kPage;
  }
  void* block = shelf.fresh;
  shelf.fresh += bytes;
  return block;
}

void* from_heap(size_t size) {
  for (;;) {
    if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void* operator new(size_t size) {
  std::byte* begin = region.load(std::memory_order_relaxed);
  if (begin == nullptr || size > kLargest) return from_heap(size);
  const size_t which = size == 0 ? 0 : (size - 1) / kStep;
  Shelf& shelf = shelves[which];
  if (FreeBlock* block = shelf.freed) {
    shelf.freed = block->next;
    return block;
  }
  void* block = fresh_block(begin, which);
  return block != nullptr ? block : from_heap(size);
}

void operator delete(void* block) noexcept {
  const std::byte* begin = region.load(std::memory_order_relaxed);
  const size_t at = reinterpret_cast<uintptr_t>(block) - reinterpret_cast<uintptr_t>(begin);
  if (begin == nullptr || at >= kRegion) {
    std::free(block);
    return;
  }
  Shelf& shelf = shelves[shelf_of_page[at / kPage]];
  shelf.freed = new (block) FreeBlock{shelf.freed};
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace trainctl {

void keep_small_blocks() {
  if (region.load() != nullptr) return;
  void* reserved = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) region.store(static_cast<std::byte*>(reserved));
}

}  // namespace trainctl

#else

namespace trainctl {
void keep_small_blocks() {}
}  // namespace trainctl

#endif
