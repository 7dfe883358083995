// Products of one tile (grouped_tiles_cuda.cuh), whose results are written while the tensor cores work:
//
//   tensor cores   first half   second half   both halves           first half   second half   first half of the next
//                  kHead steps  kHead steps   steps between         kTail steps  kTail steps   kHead steps
//   writes         former tile's second half                                     first half    second half
//
// The steps of the head and of the tail stay in shared memory until both halves have used them.
#pragma once

#include "engine/ops/moe/grouped_tiles_cuda.cuh"

namespace trainctl::grouped {

inline constexpr int kHead = 3, kTail = 3;
static_assert(kHead < kStages && kTail < kStages);
static_assert(kRowsRead == kTerms * (kHead + kTail));

/// The steps of a tile with `terms` terms. The terms behind those are zeros.
__device__ inline int steps_of(int terms) { return max(kHead + kTail, (terms + kTerms - 1) / kTerms); }

/// d += a b for 64 lines, 16 terms, and the first or second 128 columns; or d = a b if `adds` is 0. `b` begins at the
/// first of the columns. AByTerms, BByTerms: 1 if the operand is stored by terms.
template <int Half, int AByTerms, int BByTerms>
__device__ void add_terms(float (&d)[128], uint64_t a, uint64_t b, int adds) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(TRAINCTL_PRODUCT("128", "%68", "{" TRAINCTL_PLACES_64 "}, %64, %65, adds, 1, 1, %66, %67")
               : TRAINCTL_SUMS_64(TRAINCTL_IS_CHANGED, d, 64 * Half)
               : "l"(a), "l"(b), "n"(AByTerms), "n"(BByTerms), "r"(adds));
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

/// Reads the places one after another, as a group of computing warps. AByTerms, BByTerms: as in add_terms();
/// Gathered: A consists of packs, which the tensor cores do not see before a fence.
///
/// All products have 128 columns: if products of 256 columns used the same sums, the compiler would wait for each.
template <int AByTerms, int BByTerms, bool Gathered>
struct TermsReader {
  Shared& shared;
  int group = group_of_warp() - 1, stage = 0, parity = 0;

  /// d = a b over the terms of `steps` places, at least kHead + kTail. Calls write_former(part, of) for the second half
  /// of the former sums, write_first(part, of) for the first half of these, and meanwhile() before that. The second
  /// half of the sums stays in d for the next call.
  template <class Former, class First, class Meanwhile>
  __device__ __forceinline__ void multiply(float (&d)[128], int steps, const Former& write_former,
                                           const First& write_first, const Meanwhile& meanwhile) {
    begin_tile<0>(d, write_former);
#pragma unroll
    for (int i = 0; i < kHead; ++i) issue<1>(d, back(kHead - i), i > 0);
    leave_issued<kHead, kHead - 1>([](int) {});
    for (int i = kHead; i < steps - kTail; ++i) {
      arrived();
      begin_products();
      add_halves(d);
      end_products();
      next();
      products_done<1>();
      leave(2);
    }
#pragma unroll
    for (int i = 0; i < kTail; ++i) {
      issue_next(d, true);
      if (i > 0) continue;
      products_done<1>();
      leave(2);
    }
#pragma unroll
    for (int i = 0; i < kTail; ++i) issue<1>(d, back(kTail - i), true);
    meanwhile();
    products_done<kTail>();
    settle_half<0>(d);
    write_first(0, kTail);
    leave_issued<kTail, kTail>([&](int i) { write_first(i + 1, kTail); });
    settle_half<1>(d);
  }
  /// Lets the terms of `steps` places pass.
  __device__ void pass(int steps) {
    for (int i = 0; i < steps; ++i) {
      wait_for_bytes(shared.here[stage], parity);
      next();
      leave(1);
    }
  }

 private:
  /// The first half of the first places. The wait is over at once, but without it the compiler would wait for all
  /// products before it reads any sums.
  template <int I, class Former>
  __device__ __forceinline__ void begin_tile(float (&d)[128], const Former& write_former) {
    if constexpr (I < kHead) {
      issue_next(d, I > 0);
      products_done<I + 1>();
      settle_half<1>(d);
      write_former(I, kHead);
      begin_tile<I + 1>(d, write_former);
    }
  }
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ int back(int count) const { return (stage + kStages - count) % kStages; }
  /// A warp no longer reads the place `count` places back, which all blocks fill.
  __device__ void leave(int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kBlocks) arrive_in_block(shared.left[back(count)], lane);
  }
  /// Waits for the terms of the next place.
  __device__ void arrived() {
    wait_for_bytes(shared.here[stage], parity);
    if constexpr (Gathered) publish_to_copies();
  }
  /// 16 terms of half of the columns of a place; `k`: the first of them, over 16.
  template <int Half>
  __device__ void add(float (&d)[128], int place, int k, bool adds) {
    const unsigned a = shared_address(shared.a[place]) + static_cast<unsigned>(group) * kSquareBytes,
                   b = shared_address(shared.b[place]) + Half * kBBytes / 2;
    const uint64_t of_a = square_at(a), of_b = BByTerms ? squares_at(b, kSquareBytes) : square_at(b);
    add_terms<Half, AByTerms, BByTerms>(d, of_a + k * (AByTerms ? kNextLines : kNextColumns),
                                        of_b + k * (BByTerms ? kNextLines : kNextColumns), adds);
  }
  /// Half of the columns of a place.
  template <int Half>
  __device__ void issue(float (&d)[128], int place, bool adds) {
    begin_products();
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) add<Half>(d, place, k, adds || k > 0);
    end_products();
  }
  /// The first half of the columns of the next place.
  __device__ void issue_next(float (&d)[128], bool adds) {
    arrived();
    issue<0>(d, stage, adds);
    next();
  }
  /// All columns of the next place.
  __device__ void add_halves(float (&d)[128]) {
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {
      add<0>(d, stage, k, true);
      add<1>(d, stage, k, true);
    }
  }
  /// Leaves the first N of the last Count places, whose products have been issued one after another; calls between(i)
  /// behind all of them but the last.
  template <int Count, int N, int I = 0, class Between>
  __device__ __forceinline__ void leave_issued(const Between& between) {
    if constexpr (I < N) {
      products_done<Count - 1 - I>();
      leave(Count - I);
      if constexpr (I + 1 < Count) between(I);
      leave_issued<Count, N, I + 1>(between);
    }
  }
};

}  // namespace trainctl::grouped
