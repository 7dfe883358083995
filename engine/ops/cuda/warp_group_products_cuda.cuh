// Products by the tensor cores of Hopper, which four warps (a group) issue together, in bf16 with sums in f32. They run
// asynchronously: a thread may read its sums after end_products(), products_done<N>() and settle().
//
// A tile in shared memory has lines of 64 bf16 (128 bytes) and is aligned to 1024 bytes. Pack p (16 bytes) of line i is
// at the place of pack p ^ (i % 8), as the copy engine stores it with CU_TENSOR_MAP_SWIZZLE_128B.
//
// Sums and fragments in registers, for the thread `lane` of the group's warp w, with row = 16 w + lane / 4 and
// column = 2 (lane % 4):
//   sums       d[4 j + 2 h + c] is at (row + 8 h, 8 j + column + c)
//   fragment   a[2 k + h], two bf16, is at (row + 8 h, 8 k + column): so sums, rounded, are the fragment of a product
//
// Fragments that a loop does not change are unusable: ptxas 13.0 takes their registers for the loop's other fragments.
// Such operands stay in shared memory. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TRAINCTL_WARP_GROUP_PRODUCTS 1
#endif

inline constexpr int kGroupThreads = 128;
inline constexpr int kSquare = 64;                          ///< lines of the smallest tile
inline constexpr int kSquareBytes = 2 * kSquare * kSquare;  ///< bytes of that tile in bf16

/// The matrix descriptor of the tile at `address` (of shared memory, in bytes).
__device__ inline uint64_t square_at(unsigned address) {
  constexpr uint64_t kEightLines = 1024 / 16, kSwizzle128 = 1;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 | kEightLines << 32 | kSwizzle128 << 62;
}
/// Two to four tiles side by side, 128 to 256 columns whose lines are summed over; `apart`: bytes from one to the next.
__device__ inline uint64_t squares_at(unsigned address, unsigned apart) {
  return square_at(address) - (uint64_t{1} << 16) + (static_cast<uint64_t>(apart / 16) << 16);
}
/// 16 columns of each line on: lines are the columns of the product.
inline constexpr uint64_t kNextColumns = 32 / 16;
/// 16 lines on: lines are the dim that is summed over.
inline constexpr uint64_t kNextLines = 16 * 128 / 16;

/// Before the first product after registers have changed.
__device__ inline void begin_products() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void end_products() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most the last N calls of end_products() have work left.
template <int N>
__device__ inline void products_done() {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/// After the wait: the compiler must not read them earlier.
template <int N>
__device__ inline void settle(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TRAINCTL_SUMS_8(c, d, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define TRAINCTL_SUMS_32(c, d, i) \
  TRAINCTL_SUMS_8(c, d, i), TRAINCTL_SUMS_8(c, d, i + 8), TRAINCTL_SUMS_8(c, d, i + 16), TRAINCTL_SUMS_8(c, d, i + 24)
#define TRAINCTL_SUMS_64(c, d, i) TRAINCTL_SUMS_32(c, d, i), TRAINCTL_SUMS_32(c, d, i + 32)
#define TRAINCTL_IS_MADE(x) "=f"(x)
#define TRAINCTL_IS_CHANGED(x) "+f"(x)
#define TRAINCTL_PLACES_32                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TRAINCTL_PLACES_64                                                                                           \
  TRAINCTL_PLACES_32                                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TRAINCTL_PLACES_96                                                                     \
  TRAINCTL_PLACES_64                                                                           \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81" \
  ", %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TRAINCTL_PLACES_128                                                                      \
  TRAINCTL_PLACES_96                                                                             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126"   \
  ", %127"
#define TRAINCTL_SUMS_96(c, d, i) TRAINCTL_SUMS_64(c, d, i), TRAINCTL_SUMS_32(c, d, i + 64)
#define TRAINCTL_SUMS_128(c, d, i) TRAINCTL_SUMS_64(c, d, i), TRAINCTL_SUMS_64(c, d, i + 64)
#define TRAINCTL_PRODUCT(columns, adds, operands)                                                  \
  "{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
  "k16.f32.bf16.bf16 " operands ";\n}\n"

/// 16 numbers of each line: d = a b', or d += a b', where b's 64 lines are the columns.
__device__ inline void set_product(float (&d)[32], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("64", "0", "{" TRAINCTL_PLACES_32 "}, %32, %33, adds, 1, 1, 0, 0")
               : TRAINCTL_SUMS_32(TRAINCTL_IS_MADE, d, 0)
               : "l"(a), "l"(b));
#endif
}
__device__ inline void add_product(float (&d)[32], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("64", "1", "{" TRAINCTL_PLACES_32 "}, %32, %33, adds, 1, 1, 0, 0")
               : TRAINCTL_SUMS_32(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b));
#endif
}
/// d += a b, where a is a fragment of 16 columns, and b 16 lines.
__device__ inline void add_product_over_lines(float (&d)[32], const unsigned* a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("64", "1", "{" TRAINCTL_PLACES_32 "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 1")
               : TRAINCTL_SUMS_32(TRAINCTL_IS_CHANGED, d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
/// The same for b of 128 columns (squares_at()).
__device__ inline void add_product_over_lines(float (&d)[64], const unsigned* a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("128", "1", "{" TRAINCTL_PLACES_64 "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 1")
               : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
/// The same for b of 192 and 256 columns.
__device__ inline void add_product_over_lines(float (&d)[96], const unsigned* a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("192", "1", "{" TRAINCTL_PLACES_96 "}, {%96, %97, %98, %99}, %100, adds, 1, 1, 1")
               : TRAINCTL_SUMS_96(TRAINCTL_IS_CHANGED, d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
__device__ inline void add_product_over_lines(float (&d)[128], const unsigned* a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("256", "1", "{" TRAINCTL_PLACES_128 "}, {%128, %129, %130, %131}, %132, adds, 1, 1, 1")
               : TRAINCTL_SUMS_128(TRAINCTL_IS_CHANGED, d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
/// d = a' b, or d += a' b, over 16 lines of both, where b has 64 or 128 columns; the sums of more columns are only
/// added to.
__device__ inline void set_product_over_lines(float (&d)[32], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("64", "0", "{" TRAINCTL_PLACES_32 "}, %32, %33, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_32(TRAINCTL_IS_MADE, d, 0)
               : "l"(a), "l"(b));
#endif
}
__device__ inline void add_product_over_lines(float (&d)[32], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("64", "1", "{" TRAINCTL_PLACES_32 "}, %32, %33, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_32(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b));
#endif
}
__device__ inline void set_product_over_lines(float (&d)[64], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("128", "0", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_64(TRAINCTL_IS_MADE, d, 0)
               : "l"(a), "l"(b));
#endif
}
__device__ inline void add_product_over_lines(float (&d)[64], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("128", "1", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b));
#endif
}

__device__ inline void add_product_over_lines(float (&d)[96], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("192", "1", "{" TRAINCTL_PLACES_96 "}, %96, %97, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_96(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b));
#endif
}
__device__ inline void add_product_over_lines(float (&d)[128], uint64_t a, uint64_t b) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("256", "1", "{" TRAINCTL_PLACES_128 "}, %128, %129, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_128(TRAINCTL_IS_CHANGED, d, 0)
               : "l"(a), "l"(b));
#endif
}

/// d = a b', where a has 64 lines, and b's 64 lines are the columns of d.
__device__ inline void multiply_lines(float (&d)[32], uint64_t a, uint64_t b) {
  set_product(d, a, b);
#pragma unroll
  for (int k = 1; k < 4; ++k) add_product(d, a + k * kNextColumns, b + k * kNextColumns);
}
/// d = a' b, or d += a' b, over the lines of both, a multiple of 16.
template <int Lines, int Sums>
__device__ inline void multiply_over_lines(float (&d)[Sums], uint64_t a, uint64_t b) {
  set_product_over_lines(d, a, b);
#pragma unroll
  for (int k = 1; k < Lines / 16; ++k) add_product_over_lines(d, a + k * kNextLines, b + k * kNextLines);
}
template <int Lines, int Sums>
__device__ inline void add_over_lines(float (&d)[Sums], uint64_t a, uint64_t b) {
#pragma unroll
  for (int k = 0; k < Lines / 16; ++k) add_product_over_lines(d, a + k * kNextLines, b + k * kNextLines);
}
/// d += a b, where a is a fragment of 2 N columns, and b has as many lines.
template <int Sums, int N>
__device__ inline void add_over_lines(float (&d)[Sums], const unsigned (&a)[N], uint64_t b) {
#pragma unroll
  for (int k = 0; k < N / 4; ++k) add_product_over_lines(d, a + 4 * k, b + k * kNextLines);
}

__device__ inline unsigned pair_of(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// Their fragment.
template <int N>
__device__ inline void round_sums(const float (&d)[N], unsigned (&a)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) a[i] = pair_of(d[2 * i], d[2 * i + 1]);
}

}  // namespace trainctl::cuda
