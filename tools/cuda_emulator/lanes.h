// Loops over the lanes of a warp, written so that the compiler vectorises them.
#pragma once

#include "tools/cuda_emulator/machine.h"

namespace trainctl::emulator {

template <class D, class F>
inline void put(D* to, uint32_t mask, F value) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) to[lane] = value(lane);
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) != 0) to[lane] = value(lane);
  }
}

/// to = F(from[0], from[1], …); all operands have one type, the result may have another.
template <class D, class A, class F>
void unary(const Instruction& in, Warp& w, uint32_t mask) {
  const A* a = w.at<A>(in.from[0]);
  put(w.at<D>(in.to[0]), mask, [=](int i) { return static_cast<D>(F()(a[i])); });
}
template <class D, class A, class B, class F>
void binary(const Instruction& in, Warp& w, uint32_t mask) {
  const A* a = w.at<A>(in.from[0]);
  const B* b = w.at<B>(in.from[1]);
  put(w.at<D>(in.to[0]), mask, [=](int i) { return static_cast<D>(F()(a[i], b[i])); });
}
template <class D, class A, class C, class F>
void ternary(const Instruction& in, Warp& w, uint32_t mask) {
  const A* a = w.at<A>(in.from[0]);
  const A* b = w.at<A>(in.from[1]);
  const C* c = w.at<C>(in.from[2]);
  put(w.at<D>(in.to[0]), mask, [=](int i) { return static_cast<D>(F()(a[i], b[i], c[i])); });
}
template <class A, class F>
void compare(const Instruction& in, Warp& w, uint32_t mask) {
  const A* a = w.at<A>(in.from[0]);
  const A* b = w.at<A>(in.from[1]);
  uint32_t found = 0;
  for (int lane = 0; lane < kLanes; ++lane) found |= uint32_t{F()(a[lane], b[lane])} << lane;
  uint32_t& to = w.mask_at(in.to[0]);
  to = (to & ~mask) | (found & mask);
}

template <class Do>
inline void each_lane(uint32_t mask, Do work) {
  for (uint32_t left = mask; left != 0; left &= left - 1) work(__builtin_ctz(left));
}

}  // namespace trainctl::emulator
