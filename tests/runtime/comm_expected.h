// Computes the expected results of collectives directly, and makes calls that are compared with them.
#pragma once

#include <bit>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/runtime/communicator.h"

namespace trainctl::test {

enum class Op { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier };

struct Case {
  Op op = Op::all_reduce;
  std::vector<int> ranks;
  int64_t count = 1;
  DType dtype = DType::f32;
  int root = 0;
  uint64_t salt = 0;      ///< distinguishes the data of cases
  bool in_place = false;  ///< if the collective allows it
};

/// Element i of the operand of `rank`, as 32 bits. These f32 values have sums that depend on the order of addition.
inline uint32_t element(const Case& c, int rank, int64_t i) {
  uint64_t x =
      c.salt * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9u + static_cast<uint64_t>(i);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  const auto bits = static_cast<uint32_t>(x >> 32);
  if (c.dtype == DType::i32) return bits;
  return std::bit_cast<uint32_t>((static_cast<float>(bits) / 4294967296.0f - 0.5f) * (bits % 3 == 0 ? 1000.0f : 1.0f));
}

inline uint32_t sum_at(const Case& c, int64_t i) {
  uint32_t total = element(c, c.ranks[0], i);
  for (size_t m = 1; m < c.ranks.size(); ++m) {
    const uint32_t x = element(c, c.ranks[m], i);
    total = c.dtype == DType::i32 ? total + x
                                  : std::bit_cast<uint32_t>(std::bit_cast<float>(total) + std::bit_cast<float>(x));
  }
  return total;
}

inline int64_t in_blocks(const Case& c) {
  return c.op == Op::reduce_scatter || c.op == Op::all_to_all ? static_cast<int64_t>(c.ranks.size()) : 1;
}
inline int64_t out_blocks(const Case& c) {
  return c.op == Op::all_gather || c.op == Op::all_to_all ? static_cast<int64_t>(c.ranks.size()) : 1;
}

inline std::vector<uint32_t> expected(const Case& c, int index) {
  std::vector<uint32_t> out;
  for (int64_t block = 0; block < out_blocks(c); ++block) {
    for (int64_t i = 0; i < c.count; ++i) {
      switch (c.op) {
        case Op::all_reduce:
          out.push_back(sum_at(c, i));
          break;
        case Op::all_gather:
          out.push_back(element(c, c.ranks[static_cast<size_t>(block)], i));
          break;
        case Op::reduce_scatter:
          out.push_back(sum_at(c, index * c.count + i));
          break;
        case Op::all_to_all:
          out.push_back(element(c, c.ranks[static_cast<size_t>(block)], index * c.count + i));
          break;
        case Op::broadcast:
          out.push_back(element(c, c.ranks[static_cast<size_t>(c.root)], i));
          break;
        case Op::barrier:
          break;
      }
    }
  }
  return out;
}

inline void call(Communicator& comm, int group, const Case& c, const uint32_t* in, uint32_t* out) {
  switch (c.op) {
    case Op::all_reduce:
      return comm.all_reduce(group, in, out, c.count, c.dtype);
    case Op::all_gather:
      return comm.all_gather(group, in, out, c.count, c.dtype);
    case Op::reduce_scatter:
      return comm.reduce_scatter(group, in, out, c.count, c.dtype);
    case Op::all_to_all:
      return comm.all_to_all(group, in, out, c.count, c.dtype);
    case Op::broadcast:
      return comm.broadcast(group, in, out, c.count, c.dtype, c.root);
    case Op::barrier:
      return comm.barrier(group);
  }
}

/// Number of elements of memory that check_case needs.
inline int64_t case_elements(const Case& c) { return (in_blocks(c) + out_blocks(c)) * c.count; }

/// Calls the collective on `memory`; throws if an element differs in any bit from the expected one.
inline void check_case(Communicator& comm, const Case& c, uint32_t* memory) {
  const int group = comm.open_group(c.ranks);
  int index = 0;
  while (c.ranks[static_cast<size_t>(index)] != comm.rank()) ++index;
  uint32_t* in = memory;
  uint32_t* out = memory + in_blocks(c) * c.count;
  if (c.in_place && c.op == Op::all_gather) in = out + index * c.count;
  if (c.in_place && c.op == Op::reduce_scatter) out = in + index * c.count;
  if (c.in_place && (c.op == Op::all_reduce || c.op == Op::broadcast)) out = in;
  for (int64_t i = 0; i < out_blocks(c) * c.count; ++i) out[i] = 0xdeadbeef;
  for (int64_t i = 0; i < in_blocks(c) * c.count; ++i) in[i] = element(c, comm.rank(), i);
  call(comm, group, c, in, out);
  const std::vector<uint32_t> wanted = expected(c, index);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (out[i] == wanted[i]) continue;
    throw std::runtime_error("op " + std::to_string(static_cast<int>(c.op)) + ", case " + std::to_string(c.salt) +
                             ", rank " + std::to_string(comm.rank()) + ", element " + std::to_string(i) + " of " +
                             std::to_string(wanted.size()) + " is wrong");
  }
}

/// Draws a case: a collective of a group of random ranks in random order. It is the same on every rank that passes the
/// same number.
inline Case random_case(uint64_t number, int num_ranks, const std::vector<int64_t>& counts) {
  std::mt19937_64 random(number);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Case c;
  c.op = static_cast<Op>(below(6));
  for (int rank = 0; rank < num_ranks; ++rank) c.ranks.push_back(rank);
  for (size_t i = c.ranks.size(); i > 1; --i) std::swap(c.ranks[i - 1], c.ranks[below(i)]);
  c.ranks.resize(1 + below(static_cast<size_t>(num_ranks)));
  c.count = c.op == Op::barrier ? 0 : counts[below(counts.size())];
  c.dtype = below(2) == 0 ? DType::f32 : DType::i32;
  c.root = static_cast<int>(below(c.ranks.size()));
  c.salt = number;
  c.in_place = below(2) == 0;
  return c;
}

}  // namespace trainctl::test
