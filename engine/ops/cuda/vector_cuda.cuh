// Operands of CUDA kernels: f32, bf16, or by flags of the operand f32, bf16 or f16 (Mixed), accessed in packs of V
// elements by 16-byte loads and stores. Arithmetic is in f32.
#pragma once

#include <array>
#include <initializer_list>

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {

/// The element type of kernels whose operands differ in dtype, or are f16: each operand has its own flags.
struct Mixed {};

template <class T>
struct Ref {
  T* p = nullptr;
};
template <>
struct Ref<Mixed> {
  void* p = nullptr;
  bool is_bf16 = false, is_f16 = false;

  __device__ bool is_half() const { return is_bf16 || is_f16; }
};

/// The operand from element `at` on.
template <class T>
__device__ inline Ref<T> from(Ref<T> r, int64_t at) {
  if constexpr (std::is_same_v<T, Mixed>) {
    return {static_cast<char*>(r.p) + at * (r.is_half() ? 2 : 4), r.is_bf16, r.is_f16};
  } else {
    return {r.p + at};
  }
}

template <class T>
Ref<T> ref(const TensorArg& arg) {
  if constexpr (std::is_same_v<T, Mixed>) {
    check(arg.dtype != DType::i32, "this operand is a float");
    return {arg.data, arg.dtype == DType::bf16, arg.dtype == DType::f16};
  } else {
    return {arg.as<T>()};
  }
}

/// Elements of a pack: 16 bytes; of 16-bit floats if dtypes are mixed.
template <class T>
inline constexpr int kPack = std::is_same_v<T, float> ? 4 : 8;

__device__ inline void halves(uint32_t word, float& low,
                              float& high) {  // a bf16 is the upper half of its float
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void eight(const uint4& q, float (&v)[8]) {
  halves(q.x, v[0], v[1]);
  halves(q.y, v[2], v[3]);
  halves(q.z, v[4], v[5]);
  halves(q.w, v[6], v[7]);
}

__device__ inline float of_f16_bits(uint32_t bits) { return to_f32(__ushort_as_half(static_cast<uint16_t>(bits))); }
__device__ inline uint32_t f16_bits(float v) { return __half_as_ushort(from_f32<f16>(v)); }
__device__ inline void f16_halves(uint32_t word, float& low, float& high) {
  low = of_f16_bits(word & 0xffffu);
  high = of_f16_bits(word >> 16);
}
__device__ inline void eight_f16(const uint4& q, float (&v)[8]) {
  f16_halves(q.x, v[0], v[1]);
  f16_halves(q.y, v[2], v[3]);
  f16_halves(q.z, v[4], v[5]);
  f16_halves(q.w, v[6], v[7]);
}

/// Loads 16 bytes of global memory in one access; the compiler splits some plain accesses into up to four.
__device__ inline uint4 load_16(const void* from) {
  uint4 q;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
               : "l"(from)
               : "memory");
  return q;
}
__device__ inline void store_16(void* to, const uint4& q) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w) : "memory");
}
__device__ inline void four(const uint4& q, float* v) {
  v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y);
  v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
}

/// Loads V values from `at` on. V > 1: aligned to the smaller of 16 bytes and the pack.
template <int V>
__device__ inline void load(Ref<float> r, int64_t at, float (&v)[V]) {
  if constexpr (V == 1) {
    v[0] = r.p[at];
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) four(load_16(r.p + at + i), v + i);
  }
}
template <int V>
__device__ inline void load(Ref<bf16> r, int64_t at, float (&v)[V]) {
  if constexpr (V == 1) {
    v[0] = to_f32(r.p[at]);
  } else {
    static_assert(V == 8, "8 bf16 are 16 bytes");
    eight(load_16(r.p + at), v);
  }
}
template <int V>
__device__ inline void load(Ref<f16> r, int64_t at, float (&v)[V]) {
  if constexpr (V == 1) {
    v[0] = to_f32(r.p[at]);
  } else {
    static_assert(V == 8, "8 f16 are 16 bytes");
    eight_f16(load_16(r.p + at), v);
  }
}
/// The 16-bit number at `at` of an operand whose flags say that it has such numbers.
__device__ inline float half_at(Ref<Mixed> r, int64_t at) {
  return r.is_bf16 ? to_f32(static_cast<const bf16*>(r.p)[at]) : to_f32(static_cast<const f16*>(r.p)[at]);
}
template <int V>
__device__ inline void load(Ref<Mixed> r, int64_t at, float (&v)[V]) {
  if constexpr (V == 4) {  // a small operand next to f32 operands; 4 halves are only 8 bytes
    if (r.is_half()) {
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = half_at(r, at + i);
      return;
    }
    load(Ref<float>{static_cast<float*>(r.p)}, at, v);
  } else if (r.is_bf16) {
    load(Ref<bf16>{static_cast<bf16*>(r.p)}, at, v);
  } else if (r.is_f16) {
    load(Ref<f16>{static_cast<f16*>(r.p)}, at, v);
  } else {
    load(Ref<float>{static_cast<float*>(r.p)}, at, v);
  }
}

/// A pack in its memory format. Kernels fetch everything that is in flight before they convert any of it: a conversion
/// between two loads would wait for the first.
template <class T, int V>
struct alignas(V == 1 ? 4 : 16) Raw {
  float v[V];
};
template <>
struct Raw<bf16, 8> {
  uint4 q;
};
template <>
struct Raw<bf16, 1> {
  bf16 v;
};
template <>
struct Raw<f16, 8> {
  uint4 q;
};
template <>
struct Raw<f16, 1> {
  f16 v;
};
template <>
struct Raw<Mixed, 8> {
  uint4 q[2];
  bool is_bf16, is_f16;
};

/// A tree sum: rounding errors grow with its depth only.
template <int V>
__device__ inline float sum_of_pack(const float (&v)[V]) {
  if constexpr (V == 1) {
    return v[0];
  } else if constexpr (V == 4) {
    return (v[0] + v[1]) + (v[2] + v[3]);
  } else {
    static_assert(V == 8);
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
}

template <int V, class T>
__device__ inline Raw<T, V> fetch(Ref<T> r, int64_t at) {
  Raw<T, V> raw;
  if constexpr (V == 8 && (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)) {
    raw.q = load_16(r.p + at);
  } else if constexpr (V == 8 && std::is_same_v<T, Mixed>) {
    raw.is_bf16 = r.is_bf16, raw.is_f16 = r.is_f16;
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(r.p) + at * (r.is_half() ? 2 : 4));
    raw.q[0] = load_16(from);
    raw.q[1] = load_16(from + (r.is_half() ? 0 : 1));
  } else if constexpr (V == 1 && (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)) {
    raw.v = r.p[at];
  } else {
    load(r, at, raw.v);
  }
  return raw;
}
template <int V, class T>
__device__ inline void unpack(const Raw<T, V>& raw, float (&v)[V]) {
  if constexpr (V == 8 && std::is_same_v<T, bf16>) {
    eight(raw.q, v);
  } else if constexpr (V == 8 && std::is_same_v<T, f16>) {
    eight_f16(raw.q, v);
  } else if constexpr (V == 8 && std::is_same_v<T, Mixed>) {
    eight(raw.q[0], v);
    if (raw.is_f16) eight_f16(raw.q[0], v);
    if (!raw.is_bf16 && !raw.is_f16) memcpy(v, raw.q, sizeof v);
  } else if constexpr (V == 1 && (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)) {
    v[0] = to_f32(raw.v);
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = raw.v[j];
  }
}

/// A single number in its memory format.
template <class T>
__device__ inline Raw<T, 1> raw_of(float v) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>) {
    return {from_f32<T>(v)};
  } else {
    return {{v}};
  }
}
/// The largest of a pack's numbers and `least`. bf16 go two at a time.
__device__ inline float largest_of(const Raw<float, 4>& raw, float least) {
  return fmaxf(fmaxf(fmaxf(raw.v[0], raw.v[1]), fmaxf(raw.v[2], raw.v[3])), least);
}
__device__ inline float largest_of(const Raw<bf16, 8>& raw, float least) {
  __nv_bfloat162 pairs[4];
  memcpy(pairs, &raw.q, sizeof pairs);
  const __nv_bfloat162 high = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(fmaxf(__low2float(high), __high2float(high)), least);
}
__device__ inline float largest_of(const Raw<f16, 8>& raw, float least) {
  float v[8];
  unpack(raw, v);
#pragma unroll
  for (const float each : v) least = fmaxf(each, least);
  return least;
}
/// Sets element j of a pack to `by`, which must be exact in the pack's type; returns its old value.
__device__ inline float exchange_in(Raw<float, 4>& raw, int j, float by) {
  float was = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // read unconditionally: else the compiler reads raw.v[j] from local memory
    const float v = raw.v[i];
    was = i == j ? v : was;
    raw.v[i] = i == j ? by : v;
  }
  return was;
}
__device__ inline float exchange_in(Raw<bf16, 8>& raw, int j, float by) {
  uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w}, was = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = words[i], changed = __byte_perm(word, __float_as_uint(by), j % 2 == 0 ? 0x3276 : 0x7610);
    was = i == j / 2 ? word : was;
    words[i] = i == j / 2 ? changed : word;
  }
  raw.q = make_uint4(words[0], words[1], words[2], words[3]);
  return __uint_as_float(j % 2 == 0 ? was << 16 : was & 0xffff0000u);
}

__device__ inline float exchange_in(Raw<f16, 8>& raw, int j, float by) {
  uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w}, was = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = words[i];
    const uint32_t changed = j % 2 == 0 ? (word & 0xffff0000u) | f16_bits(by) : (word & 0xffffu) | f16_bits(by) << 16;
    was = i == j / 2 ? word : was;
    words[i] = i == j / 2 ? changed : word;
  }
  raw.q = make_uint4(words[0], words[1], words[2], words[3]);
  return of_f16_bits(j % 2 == 0 ? was & 0xffffu : was >> 16);
}

template <int V>
__device__ inline void store(Ref<float> r, int64_t at, const float (&v)[V]) {
  if constexpr (V == 1) {
    r.p[at] = v[0];
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      store_16(r.p + at + i, make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]),
                                        __float_as_uint(v[i + 3])));
    }
  }
}
template <int V>
__device__ inline void store(Ref<bf16> r, int64_t at, const float (&v)[V]) {
  if constexpr (V == 1) {
    r.p[at] = from_f32<bf16>(v[0]);
  } else {
    static_assert(V == 8, "8 bf16 are 16 bytes");
    __nv_bfloat162 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    uint4 q;
    memcpy(&q, pairs, sizeof q);
    store_16(r.p + at, q);
  }
}
template <int V>
__device__ inline void store(Ref<f16> r, int64_t at, const float (&v)[V]) {
  if constexpr (V == 8) {
    const auto pair = [&](int i) { return f16_bits(v[i]) | f16_bits(v[i + 1]) << 16; };
    store_16(r.p + at, make_uint4(pair(0), pair(2), pair(4), pair(6)));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) r.p[at + i] = from_f32<f16>(v[i]);
  }
}
template <int V>
__device__ inline void store(Ref<Mixed> r, int64_t at, const float (&v)[V]) {
  if (r.is_f16) return store(Ref<f16>{static_cast<f16*>(r.p)}, at, v);
  if (!r.is_bf16) return store(Ref<float>{static_cast<float*>(r.p)}, at, v);
  const Ref<bf16> to{static_cast<bf16*>(r.p)};
  if constexpr (V == 4) {  // as in load()
#pragma unroll
    for (int i = 0; i < V; ++i) store<1>(to, at + i, {v[i]});
  } else {
    store(to, at, v);
  }
}
/// Reads one value, where speed does not matter.
template <class T>
__device__ inline float value(Ref<T> r, int64_t at) {
  float v[1];
  load(r, at, v);
  return v[0];
}
template <class T>
__device__ inline void set(Ref<T> r, int64_t at, float value) {
  const float v[1] = {value};
  store(r, at, v);
}

using Args = std::initializer_list<const TensorArg*>;

/// Calls run(T{}) with the element type that all of `args` have, or Mixed.
template <class Run>
auto with_common_type(Args args, Run run) {
  bool f32 = true, bf = true;
  for (const TensorArg* arg : args) {
    check(arg->dtype != DType::i32, "this operand is a float");
    f32 &= arg->dtype == DType::f32;
    bf &= arg->dtype == DType::bf16;
  }
  return f32 ? run(float{}) : bf ? run(bf16{}) : run(Mixed{});
}

/// The access of a kernel to its operands. Each combination costs one compiled kernel, so there are only these: packs
/// of one dtype, and single elements, which may differ in dtype. Jobs have operands of one dtype, and rarely odd
/// addresses.
template <class T, int kElements>
struct Access {
  static constexpr int V = kElements;
};

/// The element type of an access, for decltype. A member type would not do: nvcc then writes it, without `typename`,
/// into the host code of other kernels in the same file.
template <class T, int kElements>
T element_of(Access<T, kElements>);

/// Calls run(Access): packs of the dtype that all of `args` have if fit(elements of a pack), else single elements.
/// kPacksOfF16: also packs of f16, for kernels in which single elements cost much.
template <bool kPacksOfF16 = false, class Fit, class Run>
auto with_access(Args args, Fit fit, Run run) {
  bool f32 = true, bf = true, half = true;
  for (const TensorArg* arg : args) {
    check(arg->dtype != DType::i32, "this operand is a float");
    f32 &= arg->dtype == DType::f32;
    bf &= arg->dtype == DType::bf16;
    half &= arg->dtype == DType::f16;
  }
  if (f32 && fit(kPack<float>)) return run(Access<float, kPack<float>>{});
  if (bf && fit(kPack<bf16>)) return run(Access<bf16, kPack<bf16>>{});
  if constexpr (kPacksOfF16)
    if (half && fit(kPack<f16>)) return run(Access<f16, kPack<f16>>{});
  return run(Access<Mixed, 1>{});
}

/// Returns whether packs of V elements, from element `first` on, start at 16-byte boundaries in all of `args`.
inline bool packs_are_aligned(Args args, int64_t first = 0) {
  for (const TensorArg* arg : args) {
    const auto address = reinterpret_cast<uintptr_t>(arg->data) + static_cast<uintptr_t>(first * byte_size(arg->dtype));
    if (address % 16 != 0) return false;
  }
  return true;
}
/// Elements before the first pack that is aligned in all of `args`; -1: there is no such pack.
inline int64_t elements_before_packs(Args args, int pack) {
  for (int64_t first = 0; first < pack; ++first) {
    if (packs_are_aligned(args, first)) return first;
  }
  return -1;
}

}  // namespace trainctl
