// Instructions that only use registers, not memory.
#include <bit>
#include <cmath>
#include <cstring>

#include "tools/cuda_emulator/decoder.h"
#include "tools/cuda_emulator/lanes.h"
#include "tools/cuda_emulator/operators.h"

namespace trainctl::emulator {
namespace {

template <class T>
uint8_t bytes() {
  return static_cast<uint8_t>(sizeof(T));
}

/// Calls `Do` with the C++ type of an integer type word of PTX. Returns false if the word is no integer type.
template <class Do>
bool with_integer(std::string_view type, Do work) {
  if (type == "s16") return work(int16_t{}), true;
  if (type == "u16" || type == "b16") return work(uint16_t{}), true;
  if (type == "s32") return work(int32_t{}), true;
  if (type == "u32" || type == "b32") return work(uint32_t{}), true;
  if (type == "s64") return work(int64_t{}), true;
  if (type == "u64" || type == "b64") return work(uint64_t{}), true;
  return false;
}
template <class Do>
bool with_number(std::string_view type, Do work) {
  if (type == "f32") return work(float{}), true;
  if (type == "f64") return work(double{}), true;
  return with_integer(type, work);
}

template <class T, class F>
void set_unary(Decoder& d, const Statement& s, Instruction& in) {
  in.to[0] = d.target(s.arguments.at(0), bytes<T>());
  in.from[0] = d.source(s.arguments.at(1), bytes<T>());
  in.run = unary<T, T, F>;
}
template <class T, class F>
void set_binary(Decoder& d, const Statement& s, Instruction& in) {
  in.to[0] = d.target(s.arguments.at(0), bytes<T>());
  in.from[0] = d.source(s.arguments.at(1), bytes<T>());
  in.from[1] = d.source(s.arguments.at(2), bytes<T>());
  in.run = binary<T, T, T, F>;
}
template <class T, class C, class F>
void set_ternary(Decoder& d, const Statement& s, Instruction& in) {
  in.to[0] = d.target(s.arguments.at(0), bytes<C>());
  in.from[0] = d.source(s.arguments.at(1), bytes<T>());
  in.from[1] = d.source(s.arguments.at(2), bytes<T>());
  in.from[2] = d.source(s.arguments.at(3), bytes<C>());
  in.run = ternary<C, T, C, F>;
}

template <class F>
void predicates(const Instruction& in, Warp& w, uint32_t mask) {
  const uint32_t value = F()(w.mask_at(in.from[0]), w.mask_at(in.from[1]));
  uint32_t& to = w.mask_at(in.to[0]);
  to = (to & ~mask) | (value & mask);
}

template <class T>
void select(const Instruction& in, Warp& w, uint32_t mask) {
  const T* a = w.at<T>(in.from[0]);
  const T* b = w.at<T>(in.from[1]);
  const uint32_t which = w.mask_at(in.from[2]);
  put(w.at<T>(in.to[0]), mask, [=](int i) { return (which >> i & 1) != 0 ? a[i] : b[i]; });
}

/// Splits a register into parts, the lowest first. pack() is the inverse.
template <class Part, class Whole>
void unpack(const Instruction& in, Warp& w, uint32_t mask) {
  const Whole* from = w.at<Whole>(in.from[0]);
  each_lane(mask, [&](int lane) {
    const Whole v = from[lane];
    for (size_t i = 0; i < sizeof(Whole) / sizeof(Part); ++i)
      w.at<Part>(in.to[i])[lane] = static_cast<Part>(v >> (i * sizeof(Part) * 8));
  });
}
template <class Part, class Whole>
void pack(const Instruction& in, Warp& w, uint32_t mask) {
  put(w.at<Whole>(in.to[0]), mask, [&](int lane) {
    Whole v = 0;
    for (size_t i = 0; i < sizeof(Whole) / sizeof(Part); ++i)
      v |= static_cast<Whole>(w.at<Part>(in.from[i])[lane]) << (i * sizeof(Part) * 8);
    return v;
  });
}

template <class T>  ///< uint32_t or uint64_t
void bit_insert(const Instruction& in, Warp& w, uint32_t mask) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const T *a = w.at<T>(in.from[0]), *b = w.at<T>(in.from[1]);
  const uint32_t *p = w.at<uint32_t>(in.from[2]), *n = w.at<uint32_t>(in.from[3]);
  put(w.at<T>(in.to[0]), mask, [=](int i) {
    const uint32_t first = p[i] & 0xff, count = n[i] & 0xff;
    if (first >= kBits || count == 0) return b[i];
    const T field = (count >= kBits ? ~T{0} : (T{1} << count) - 1) << first;
    return (b[i] & ~field) | ((a[i] << first) & field);
  });
}
/// The instruction prmt: each byte of the result is one of the eight bytes of the two sources, or copies of its sign
/// bit.
void permute_bytes(const Instruction& in, Warp& w, uint32_t mask) {
  const uint32_t *a = w.at<uint32_t>(in.from[0]), *b = w.at<uint32_t>(in.from[1]), *which = w.at<uint32_t>(in.from[2]);
  put(w.at<uint32_t>(in.to[0]), mask, [=](int i) {
    const uint64_t both = uint64_t{b[i]} << 32 | a[i];
    uint32_t result = 0;
    for (uint32_t byte = 0; byte < 4; ++byte) {
      const uint32_t selector = which[i] >> 4 * byte & 0xf;
      uint32_t value = static_cast<uint32_t>(both >> 8 * (selector & 7)) & 0xff;
      if ((selector & 8) != 0) value = (value & 0x80) != 0 ? 0xff : 0;
      result |= value << 8 * byte;
    }
    return result;
  });
}
template <class T>
void bit_extract(const Instruction& in, Warp& w, uint32_t mask) {
  const T* a = w.at<T>(in.from[0]);
  const uint32_t *p = w.at<uint32_t>(in.from[1]), *n = w.at<uint32_t>(in.from[2]);
  put(w.at<T>(in.to[0]), mask, [=](int i) {
    const uint32_t first = p[i] & 0xff, count = std::min<uint32_t>(n[i] & 0xff, 32 - std::min<uint32_t>(first, 32));
    if (count == 0) return T{0};
    return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a[i]) << (32 - first - count)) >> (32 - count));
  });
}

/// add, sub and mad with a carry from one instruction to the next.
///   data_width: bit 0 reads the carry, bit 1 writes it, bit 2 subtracts; count: 0 no product, 1 low half, 2 high half
void with_carry(const Instruction& in, Warp& w, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const uint64_t a = w.at<uint32_t>(in.from[0])[lane], b = w.at<uint32_t>(in.from[1])[lane];
    const uint64_t carry = (in.data_width & 1) != 0 ? w.carry >> lane & 1 : 0;
    uint64_t result;
    if ((in.data_width & 4) != 0) {
      result = a - b - carry;
    } else {
      const uint64_t c = in.count == 0 ? b : w.at<uint32_t>(in.from[2])[lane];
      const uint64_t term = in.count == 0 ? a : in.count == 1 ? static_cast<uint32_t>(a * b) : a * b >> 32;
      result = term + c + carry;
    }
    if ((in.data_width & 2) != 0) w.carry = (w.carry & ~(1u << lane)) | static_cast<uint32_t>(result >> 32 & 1) << lane;
    w.at<uint32_t>(in.to[0])[lane] = static_cast<uint32_t>(result);
  });
}

/// Tensor-core products: tf32 ignores the lowest 13 bits; the sum of a row is computed exactly, then truncated.
void add_to_sums(const Instruction& in, Warp& w, const double (&sums)[16][8]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 4 + (i / 2) * 8, c = lane % 4 * 2 + i % 2;
      const double sum = sums[r][c] + static_cast<double>(w.at<float>(in.from[6 + i])[lane]);
      auto v = static_cast<float>(sum);
      if (std::isfinite(sum) && std::fabs(static_cast<double>(v)) > std::fabs(sum))
        v = std::bit_cast<float>(std::bit_cast<uint32_t>(v) - 1);
      w.at<float>(in.to[i])[lane] = v;
    }
  }
}

/// Tensor-core products of bf16: each register has two bf16 values.
void mma_bf16(const Instruction& in, Warp& w, uint32_t) {
  const auto half = [](uint32_t bits, int i) {
    return static_cast<double>(std::bit_cast<float>(i == 0 ? bits << 16 : bits & 0xffff0000u));
  };
  double a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane / 4, t = lane % 4;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 4; ++i)
        a[group + (i % 2) * 8][t * 2 + h + (i / 2) * 8] = half(w.at<uint32_t>(in.from[i])[lane], h);
      for (int i = 0; i < 2; ++i) b[t * 2 + h + i * 8][group] = half(w.at<uint32_t>(in.from[4 + i])[lane], h);
    }
  }
  double sums[16][8] = {};
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < 16; ++k) {
      for (int c = 0; c < 8; ++c) sums[r][c] += a[r][k] * b[k][c];
    }
  }
  add_to_sums(in, w, sums);
}

void mma_tf32(const Instruction& in, Warp& w, uint32_t) {
  const auto cut = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits & ~0x1fffu)); };
  double a[16][8], b[8][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[group + (i % 2) * 8][t + (i / 2) * 4] = cut(w.at<uint32_t>(in.from[i])[lane]);
    for (int i = 0; i < 2; ++i) b[t + i * 4][group] = cut(w.at<uint32_t>(in.from[4 + i])[lane]);
  }
  double sums[16][8] = {};
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < 8; ++k) {
      for (int c = 0; c < 8; ++c) sums[r][c] += a[r][k] * b[k][c];
    }
  }
  add_to_sums(in, w, sums);
}

bool decode_compare(Decoder& d, const Statement& s, Instruction& in) {
  if (s.words[0] != "setp" || s.words.size() < 3) return false;
  const std::string_view how = s.words[1], type = s.words.back();
  const bool known = with_number(type, [&](auto t) {
    using T = decltype(t);
    const auto set = [&]<class F>(F) { in.run = compare<T, F>; };
    if (how == "eq")
      set(Eq());
    else if (how == "ne")
      set(Ne());
    else if (how == "lt" || how == "lo")
      set(Lt());
    else if (how == "le" || how == "ls")
      set(Le());
    else if (how == "gt" || how == "hi")
      set(Gt());
    else if (how == "ge" || how == "hs")
      set(Ge());
    else if constexpr (is_float<T>) {
      if (how == "equ")
        set(OrNan<Eq>());
      else if (how == "neu")
        set(OrNan<Ne>());
      else if (how == "ltu")
        set(OrNan<Lt>());
      else if (how == "leu")
        set(OrNan<Le>());
      else if (how == "gtu")
        set(OrNan<Gt>());
      else if (how == "geu")
        set(OrNan<Ge>());
      else if (how == "num")
        set(BothNumbers());
      else if (how == "nan")
        set(AnyNan());
    }
    in.from[0] = d.source(s.arguments.at(1), bytes<T>());
    in.from[1] = d.source(s.arguments.at(2), bytes<T>());
  });
  if (!known || in.run == nullptr || s.arguments.size() != 3) return false;
  in.to[0] = d.predicate(s.arguments[0]);
  return true;
}

bool decode_predicates(Decoder& d, const Statement& s, Instruction& in) {
  if (s.words.back() != "pred") return false;
  const std::string_view op = s.words[0];
  in.to[0] = d.predicate(s.arguments.at(0));
  in.from[0] = in.from[1] = d.predicate(s.arguments.at(1));
  if (s.arguments.size() > 2) in.from[1] = d.predicate(s.arguments[2]);
  in.run = op == "and"   ? predicates<And>
           : op == "or"  ? predicates<Or>
           : op == "xor" ? predicates<Xor>
           : op == "mov" ? predicates<And>
                         : nullptr;
  if (op == "not") {
    in.from[1] = d.constant(kAllLanes);
    in.run = predicates<Xor>;
  }
  return in.run != nullptr;
}

bool decode_move(Decoder& d, const Statement& s, Instruction& in) {
  if (s.words[0] != "mov") return false;
  const Argument &to = s.arguments.at(0), &from = s.arguments.at(1);
  const size_t whole = bytes_of_type(s.words.back());
  const bool unpacks = to.kind == Argument::Kind::list, packs = from.kind == Argument::Kind::list;
  if (unpacks || packs) {
    const std::vector<Argument>& parts = unpacks ? to.parts : from.parts;
    const size_t part = whole / parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (unpacks)
        in.to[i] = d.target(parts[i], static_cast<uint8_t>(part));
      else
        in.from[i] = d.source(parts[i], static_cast<uint8_t>(part));
    }
    if (unpacks)
      in.from[0] = d.source(from, static_cast<uint8_t>(whole));
    else
      in.to[0] = d.target(to, static_cast<uint8_t>(whole));
    if (whole == 4 && part == 2) in.run = unpacks ? unpack<uint16_t, uint32_t> : pack<uint16_t, uint32_t>;
    if (whole == 8 && part == 4) in.run = unpacks ? unpack<uint32_t, uint64_t> : pack<uint32_t, uint64_t>;
    if (whole == 8 && part == 2) in.run = unpacks ? unpack<uint16_t, uint64_t> : pack<uint16_t, uint64_t>;
    return in.run != nullptr;
  }
  if (whole == 2) set_unary<uint16_t, Move>(d, s, in);
  if (whole == 4) set_unary<uint32_t, Move>(d, s, in);
  if (whole == 8) set_unary<uint64_t, Move>(d, s, in);
  return in.run != nullptr;
}

bool decode_carry(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view op = s.words[0];
  const bool takes = op == "addc" || op == "subc" || op == "madc", leaves = s.has("cc");
  if ((!takes && !leaves) || s.words.back() != "u32") return false;
  const bool mad = op == "mad" || op == "madc", sub = op == "sub" || op == "subc";
  in.data_width = static_cast<uint8_t>((takes ? 1 : 0) | (leaves ? 2 : 0) | (sub ? 4 : 0));
  in.count = static_cast<uint8_t>(!mad ? 0 : s.has("lo") ? 1 : 2);
  in.to[0] = d.target(s.arguments.at(0), 4);
  for (size_t i = 1; i < s.arguments.size(); ++i) in.from[i - 1] = d.source(s.arguments[i], 4);
  in.run = with_carry;
  return true;
}

bool decode_float(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view op = s.words[0], type = s.words.back();
  const bool f32 = type == "f32";
  if (!f32 && type != "f64") return false;
  const auto one = [&]<class F32, class F64>(F32, F64) {
    f32 ? set_unary<float, F32>(d, s, in) : set_unary<double, F64>(d, s, in);
    return true;
  };
  const bool nearest = !s.has("rz") && !s.has("rm") && !s.has("rp") && !s.has("sat");
  if (op == "sqrt" && nearest) return one(Sqrt(), Sqrt());
  if (op == "rsqrt") return one(Rsqrt(), Rsqrt());
  if (op == "rcp" && nearest) {
    if (!f32 && s.has("approx")) return one(Rcp(), RcpCoarse());
    return s.has("ftz") && f32 ? one(RcpFlush(), Rcp()) : one(Rcp(), Rcp());
  }
  if (op == "copysign")
    return (f32 ? set_binary<float, CopySign>(d, s, in) : set_binary<double, CopySign>(d, s, in)), true;
  if (op == "fma") {
    if (s.has("rn"))
      return (f32 ? set_ternary<float, float, Fma>(d, s, in) : set_ternary<double, double, Fma>(d, s, in)), true;
    if (s.has("rm") && f32) return set_ternary<float, float, FmaDown>(d, s, in), true;
    return false;
  }
  if (op == "add" && s.has("rz") && f32) return set_binary<float, AddZero>(d, s, in), true;
  if (!f32) return false;
  if (op == "ex2") return s.has("ftz") ? one(Ex2Flush(), Rcp()) : one(Ex2(), Rcp());
  const auto single = [&]<class F>(F) {
    set_unary<float, F>(d, s, in);
    return true;
  };
  if (op == "lg2") return single(Lg2());
  if (op == "sin") return single(Sin());
  if (op == "cos") return single(Cos());
  if (op == "tanh") return single(Tanh());
  return false;
}

bool decode_matrix_product(Decoder& d, const Statement& s, Instruction& in) {
  const bool tf32 = s.opcode == "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32";
  if (tf32 || s.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
    const auto& a = s.arguments;
    for (size_t i = 0; i < 4; ++i) {
      in.to[i] = d.target(a.at(0).parts.at(i), 4);
      in.from[i] = d.source(a.at(1).parts.at(i), 4);
      in.from[6 + i] = d.source(a.at(3).parts.at(i), 4);
    }
    for (size_t i = 0; i < 2; ++i) in.from[4 + i] = d.source(a.at(2).parts.at(i), 4);
    in.run = tf32 ? mma_tf32 : mma_bf16;
    return true;
  }
  return false;
}

/// Decodes instructions that compute with integers or floating-point numbers.
bool decode_number(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view op = s.words[0], type = s.words.back();
  if (op == "add" || op == "sub" || op == "min" || op == "max" || op == "div" || op == "neg" || op == "abs") {
    return with_number(type, [&](auto t) {
      using T = decltype(t);
      if (op == "add") set_binary<T, Add>(d, s, in);
      if (op == "sub") set_binary<T, Sub>(d, s, in);
      if (op == "min") set_binary<T, Min>(d, s, in);
      if (op == "max") set_binary<T, Max>(d, s, in);
      if (op == "div") set_binary<T, Div>(d, s, in);
      if (op == "neg") set_unary<T, Neg>(d, s, in);
      if (op == "abs") set_unary<T, Abs>(d, s, in);
    });
  }
  if (op == "mul" && (type == "f32" || type == "f64"))
    return with_number(type, [&](auto t) { set_binary<decltype(t), Mul>(d, s, in); });
  return false;
}

/// Decodes the choice between two values, and instructions that move bits or bytes within words.
bool decode_bits(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view op = s.words[0], type = s.words.back();
  if (op == "selp") {
    const auto bytes_here = static_cast<uint8_t>(bytes_of_type(type));
    in.to[0] = d.target(s.arguments.at(0), bytes_here);
    in.from[0] = d.source(s.arguments.at(1), bytes_here);
    in.from[1] = d.source(s.arguments.at(2), bytes_here);
    in.from[2] = d.predicate(s.arguments.at(3));
    in.run = bytes_here == 2 ? select<uint16_t> : bytes_here == 4 ? select<uint32_t> : select<uint64_t>;
    return true;
  }
  if (op == "bfi" && (type == "b32" || type == "b64")) {
    const uint8_t size = type == "b32" ? 4 : 8;
    in.to[0] = d.target(s.arguments.at(0), size);
    for (size_t i = 0; i < 2; ++i) in.from[i] = d.source(s.arguments.at(i + 1), size);
    for (size_t i = 2; i < 4; ++i) in.from[i] = d.source(s.arguments.at(i + 1), 4);
    in.run = size == 4 ? bit_insert<uint32_t> : bit_insert<uint64_t>;
    return true;
  }
  if (op == "prmt" && type == "b32" && s.words.size() == 2) {
    in.to[0] = d.target(s.arguments.at(0), 4);
    for (size_t i = 0; i < 3; ++i) in.from[i] = d.source(s.arguments.at(i + 1), 4);
    in.run = permute_bytes;
    return true;
  }
  if (op == "bfe" && (type == "u32" || type == "s32")) {
    in.to[0] = d.target(s.arguments.at(0), 4);
    for (size_t i = 0; i < 3; ++i) in.from[i] = d.source(s.arguments.at(i + 1), 4);
    in.run = type == "u32" ? bit_extract<uint32_t> : bit_extract<int32_t>;
    return true;
  }
  return false;
}

bool decode_integer(Decoder& d, const Statement& s, Instruction& in) {
  const std::string_view op = s.words[0], type = s.words.back();
  bool known = true;
  const bool integer = with_integer(type, [&](auto t) {
    using T = decltype(t);
    using Wide = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                    std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    const auto shift = [&]<class F>(F) {
      in.to[0] = d.target(s.arguments.at(0), bytes<T>());
      in.from[0] = d.source(s.arguments.at(1), bytes<T>());
      in.from[1] = d.source(s.arguments.at(2), 4);
      in.run = binary<T, T, uint32_t, F>;
    };
    const auto counted = [&]<class F>(F) {
      in.to[0] = d.target(s.arguments.at(0), 4);
      in.from[0] = d.source(s.arguments.at(1), bytes<T>());
      in.run = unary<uint32_t, Unsigned<T>, F>;
    };
    if (op == "mul" && s.has("lo"))
      set_binary<T, Mul>(d, s, in);
    else if (op == "mul" && s.has("hi"))
      set_binary<T, MulHigh>(d, s, in);
    else if (op == "mul" && s.has("wide")) {
      in.to[0] = d.target(s.arguments.at(0), bytes<Wide>());
      in.from[0] = d.source(s.arguments.at(1), bytes<T>());
      in.from[1] = d.source(s.arguments.at(2), bytes<T>());
      in.run = binary<Wide, T, T, MulWide<Wide>>;
    } else if (op == "mad" && s.has("lo"))
      set_ternary<T, T, MulAdd>(d, s, in);
    else if (op == "mad" && s.has("hi"))
      set_ternary<T, T, MulHighAdd>(d, s, in);
    else if (op == "mad" && s.has("wide"))
      set_ternary<T, Wide, MulWideAdd<Wide>>(d, s, in);
    else if (op == "rem")
      set_binary<T, Rem>(d, s, in);
    else if (op == "and")
      set_binary<T, And>(d, s, in);
    else if (op == "or")
      set_binary<T, Or>(d, s, in);
    else if (op == "xor")
      set_binary<T, Xor>(d, s, in);
    else if (op == "not")
      set_unary<T, Not>(d, s, in);
    else if (op == "shl")
      shift(Shl());
    else if (op == "shr")
      shift(Shr());
    else if (op == "popc")
      counted(Popc());
    else if (op == "clz")
      counted(Clz());
    else if (op == "brev" && sizeof(T) == 4)
      counted(Brev());
    else
      known = false;
  });
  return integer && known;
}

}  // namespace

bool decode_arithmetic(Decoder& d, const Statement& s, Instruction& in) {
  if (decode_compare(d, s, in) || decode_predicates(d, s, in) || decode_move(d, s, in) || decode_carry(d, s, in) ||
      decode_float(d, s, in) || decode_matrix_product(d, s, in))
    return true;
  if (s.has("sat") || s.has("rz") || s.has("rm") || s.has("rp")) return false;
  return decode_number(d, s, in) || decode_bits(d, s, in) || decode_integer(d, s, in);
}

}  // namespace trainctl::emulator
