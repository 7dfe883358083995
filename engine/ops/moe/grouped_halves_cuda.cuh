// Products of the tiles of sums_kernel (grouped_sums_cuda.cuh), whose results are written while the tensor cores work:
//
//   tensor cores   first half   second half   both halves           first half   second half   first half of the next
//                  kHead steps  kHead steps   steps between         kTail steps  kTail steps   kHead steps
//   writes         previous tile's second half                                     first half    second half
//
// The steps of the head and of the tail stay in shared memory until both halves have used them: with 3 steps each, too
// few stages are left for copies.
#pragma once

#include "engine/ops/moe/grouped_products_cuda.h"
#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {

inline constexpr int kHead = 2, kTail = 2;
static_assert(kHead < kStages && kTail < kStages);
static_assert(kRowsRead == kTerms * (kHead + kTail));

/// d += a b for 64 lines, 16 terms, and the first or second 128 columns; or d = a b if `adds` is 0. `b` begins at the
/// first of the columns. Both operands are stored by terms.
template <int Half>
__device__ void add_half(float (&d)[128], uint64_t a, uint64_t b, int adds) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("128", "%66", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, 1, 1")
               : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 64 * Half)
               : "l"(a), "l"(b), "r"(adds));
#endif
}
/// After products_done(): the compiler must not read the sums of a half earlier.
template <int Half>
__device__ void settle_half(float (&d)[128]) {
#pragma unroll
  for (int i = 64 * Half; i < 64 * Half + 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Part `part` of `of` parts of `count` things: from begin() to end(). The first parts are the larger ones.
struct PartOf {
  int part, of, count;
  __device__ constexpr int begin() const { return (part * count + of - 1) / of; }
  __device__ constexpr int end() const { return ((part + 1) * count + of - 1) / of; }
};

/// Products of the tiles of sums_kernel, as a group of computing warps. All have 128 columns: if products of 256
/// columns used the same sums, the compiler would wait for each.
struct SumsReader {
  Shared& shared;
  int group = group_of_warp() - 1;
  ReadStage at = {};

  /// d = a b over the terms of `steps` stages, at least kHead + kTail. Calls write_previous(part, of) for the second
  /// half of the previous sums, meanwhile(), and write_first(part, of) for the first half of these sums. The second
  /// half stays in d for the next call.
  template <class Previous, class First, class Meanwhile>
  __device__ __forceinline__ void multiply(float (&d)[128], int steps, const Previous& write_previous,
                                           const First& write_first, const Meanwhile& meanwhile) {
    begin_tile<0>(d, write_previous);
#pragma unroll
    for (int i = 0; i < kHead; ++i) issue<1>(d, at.back(kHead - i), i > 0);
    release_issued<kHead, kHead - 1>([](int) {});
    for (int i = kHead; i < steps - kTail; ++i) {
      at.wait<true>(shared);
      begin_products();
#pragma unroll
      for (int k = 0; k < kTerms / 16; ++k) {
        add<0>(d, at.stage, k, true);
        add<1>(d, at.stage, k, true);
      }
      end_products();
      at.next();
      products_done<1>();
      at.release(shared, 2);
    }
#pragma unroll
    for (int i = 0; i < kTail; ++i) {
      issue_next(d, true);
      if (i > 0) continue;
      products_done<1>();
      at.release(shared, 2);
    }
#pragma unroll
    for (int i = 0; i < kTail; ++i) issue<1>(d, at.back(kTail - i), true);
    meanwhile();
    products_done<kTail>();
    settle_half<0>(d);
    write_first(0, kTail);
    release_issued<kTail, kTail>([&](int i) { write_first(i + 1, kTail); });
    settle_half<1>(d);
  }

 private:
  /// The first half of the columns of the first stages. The wait is over at once, but without it the compiler would
  /// wait for all products before it reads any sums.
  template <int I, class Previous>
  __device__ __forceinline__ void begin_tile(float (&d)[128], const Previous& write_previous) {
    if constexpr (I < kHead) {
      issue_next(d, I > 0);
      products_done<I + 1>();
      settle_half<1>(d);
      write_previous(I, kHead);
      begin_tile<I + 1>(d, write_previous);
    }
  }
  /// 16 terms of half of the columns of a stage; `k`: the first of them, over 16.
  template <int Half>
  __device__ void add(float (&d)[128], int stage, int k, bool adds) {
    const unsigned a = shared_address(shared.a[stage]) + static_cast<unsigned>(group) * kSquareBytes,
                   b = shared_address(shared.b[stage]) + Half * kBBytes / 2;
    add_half<Half>(d, square_at(a) + k * kNextLines, squares_at(b, kSquareBytes) + k * kNextLines, adds);
  }
  /// Half of the columns of a stage.
  template <int Half>
  __device__ void issue(float (&d)[128], int stage, bool adds) {
    begin_products();
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) add<Half>(d, stage, k, adds || k > 0);
    end_products();
  }
  /// The first half of the columns of the next stage.
  __device__ void issue_next(float (&d)[128], bool adds) {
    at.wait<true>(shared);
    issue<0>(d, at.stage, adds);
    at.next();
  }
  /// Releases the first N of the last Count stages, whose products have been issued one after another; calls between(i)
  /// after each of them but the last.
  template <int Count, int N, int I = 0, class Between>
  __device__ __forceinline__ void release_issued(const Between& between) {
    if constexpr (I < N) {
      products_done<Count - 1 - I>();
      at.release(shared, Count - I);
      if constexpr (I + 1 < Count) between(I);
      release_issued<Count, N, I + 1>(between);
    }
  }
};

}  // namespace trainctl::grouped
