//   region:  [ page: blocks of 48 bytes | page: blocks of 16 bytes | page: blocks of 48 bytes | … not used yet ]
//
// A page has blocks of one size, so the address of a block determines its shelf. Each shelf belongs to one thread;
// pages are handed out in order to any thread that needs one.
#include "engine/base/small_blocks.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#ifndef TRAINCTL_SANITIZED  // sanitizers have their own

namespace {

constexpr size_t kStep = 16, kLargest = 1024, kPage = 64 << 10;
constexpr size_t kRegion = size_t{16} << 30;  ///< address space, not memory

struct FreeBlock {
  FreeBlock* next;
};
/// The rest of a page, never used before.
struct Fresh {
  std::byte *at = nullptr, *end = nullptr;
};

constinit std::atomic<std::byte*> region_begin = nullptr;
constinit std::atomic<size_t> region_bytes = 0;  ///< 0: no command has asked for shelves
constinit std::atomic<size_t> handed_out = 0;
constinit std::array<uint8_t, kRegion / kPage> shelf_of_page = {};
constinit thread_local std::array<FreeBlock*, kLargest / kStep> shelves = {};
constinit thread_local std::array<Fresh, kLargest / kStep> pages = {};

/// Null if no page is left.
void* fresh_block(size_t which) {
  Fresh& page = pages[which];
  const size_t bytes = (which + 1) * kStep;
  if (static_cast<size_t>(page.end - page.at) < bytes) {
    const size_t at = handed_out.fetch_add(kPage, std::memory_order_relaxed);
    if (at >= kRegion) return nullptr;
    shelf_of_page[at / kPage] = static_cast<uint8_t>(which);
    page.at = region_begin.load(std::memory_order_relaxed) + at;
    page.end = page.at + kPage;
  }
  return std::exchange(page.at, page.at + bytes);
}

void* from_heap(size_t size) {
  for (;;) {
    if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

/// Allocates a block when its shelf has none free, or when it is too large for any shelf.
[[gnu::noinline]] void* not_from_shelf(size_t size) {
  if (size - 1 < kLargest && region_bytes.load(std::memory_order_acquire) > 0)
    if (void* block = fresh_block((size - 1) / kStep)) return block;
  return from_heap(size);
}

}  // namespace

void* operator new(size_t size) {
  if (size - 1 < kLargest) {  // not 0
    FreeBlock*& shelf = shelves[(size - 1) / kStep];
    if (shelf != nullptr) return std::exchange(shelf, shelf->next);
  }
  return not_from_shelf(size);
}

void operator delete(void* block) noexcept {
  const size_t at =
      reinterpret_cast<uintptr_t>(block) - reinterpret_cast<uintptr_t>(region_begin.load(std::memory_order_relaxed));
  if (at >= region_bytes.load(std::memory_order_relaxed)) {
    std::free(block);
    return;
  }
  FreeBlock*& shelf = shelves[shelf_of_page[at / kPage]];
  shelf = new (block) FreeBlock{shelf};
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace trainctl {

void keep_small_blocks() {
  if (region_bytes.load() > 0) return;
  void* reserved = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  madvise(reserved, kRegion, MADV_HUGEPAGE);  // fewer faults where the system has large pages to spare
  region_begin.store(static_cast<std::byte*>(reserved));
  region_bytes.store(kRegion, std::memory_order_release);
}

}  // namespace trainctl

#else

namespace trainctl {
void keep_small_blocks() {}
}  // namespace trainctl

#endif
