// A collective as units of work that any member of the group can do: "sum these blocks of members'
// buffers into those". The result does not depend on which member does which unit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/runtime/comm/segment.h"
#include "engine/runtime/communicator.h"

namespace trainctl::comm {

enum class CollectiveOp : uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier };
const char* to_string(CollectiveOp op);

/// One rank's call. `in` has in_blocks blocks of `count` elements, `out` has out_blocks; a block begins `stride`
/// elements after the one before.
struct CollectiveCall {
  CollectiveOp op;
  DType dtype = DType::f32;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;
  int64_t stride = 0;                 ///< 0: count
  const CountedRows* rows = nullptr;  ///< all_to_all: the part of each block that is moved; null: all of it
  int in_blocks = 1, out_blocks = 1;
  int root = 0;  ///< index in the group
};

/// Divides a round of `round` elements per block among the members that wait at the same time.
struct WorkPlan {
  int64_t chunk_elements = 0;
  uint32_t chunks = 0;
  int64_t bytes = 0;  ///< read and written by all members together
};
WorkPlan plan_work(CollectiveOp op, int members, int64_t round, DType dtype, int workers);

/// Does one chunk of the group's open round, which begins `done` elements after the beginning of each block. `from` and
/// `to` are scratch memory for one pointer per member.
void do_chunk(const Segment& segment, const Group& group, std::span<const Member> members, uint32_t chunk,
              const CountedRows* rows, int64_t done, std::span<const std::byte*> from, std::span<std::byte*> to);

}  // namespace trainctl::comm
