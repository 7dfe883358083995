// malloc, its relatives and operator new, replaced in this executable. The return address identifies the caller: an
// allocation is a library's own if the address is in the library's code.
#include "tests/equivalence/allocations/count_allocations.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace trainctl {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> ours{0}, libraries{0};

struct CodeRange {
  uintptr_t begin = 0, end = 0;
};
CodeRange library_code[8];
int num_library_code = 0;

int find_libraries(dl_phdr_info* info, size_t, void*) {
  if (std::strstr(info->dlpi_name, "libdnnl") == nullptr && std::strstr(info->dlpi_name, "libgomp") == nullptr)
    return 0;
  for (int i = 0; i < info->dlpi_phnum && num_library_code < 8; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    library_code[num_library_code++] = {begin, begin + part.p_memsz};
  }
  return 0;
}

[[maybe_unused]] void count(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < num_library_code; ++i) {
    if (address >= library_code[i].begin && address < library_code[i].end) {
      libraries.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  ours.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

bool can_count_allocations() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

void start_counting_allocations() {
  num_library_code = 0;
  dl_iterate_phdr(find_libraries, nullptr);
  ours = 0;
  libraries = 0;
  counting = true;
}

AllocationCounts stop_counting_allocations() {
  counting = false;
  return {ours, libraries};
}

}  // namespace trainctl

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define TRAINCTL_COUNT() trainctl::count(__builtin_return_address(0))

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  TRAINCTL_COUNT();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  TRAINCTL_COUNT();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  TRAINCTL_COUNT();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  TRAINCTL_COUNT();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  TRAINCTL_COUNT();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  TRAINCTL_COUNT();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"

// Does not call malloc above: the caller would be operator new.
void* operator new(size_t size) {
  TRAINCTL_COUNT();
  if (void* memory = __libc_malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t alignment) {
  TRAINCTL_COUNT();
  if (void* memory = __libc_memalign(static_cast<size_t>(alignment), size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
