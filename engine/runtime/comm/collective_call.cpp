// A collective as units of work that any member of the group can do: "sum these blocks of members' buffers into those".
#include "engine/runtime/comm/collective_call.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/runtime/comm/combine.h"

namespace trainctl::comm {
namespace {

/// Units of a round, and the buffers that one unit reads and writes.
struct Units {
  int64_t count;
  int64_t buffers;
};

/// The units of work of a round in a group of p members.
Units units_of(CollectiveOp op, int64_t p) {
  switch (op) {
    case CollectiveOp::all_reduce:
      return {1, 2 * p};
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
      return {p, p + 1};
    case CollectiveOp::all_to_all:
      return {p * p, 2};
    case CollectiveOp::broadcast:
      return {1, p + 1};
    case CollectiveOp::barrier:
      break;
  }
  return {0, 0};
}

constexpr int64_t kElementStep = 1024;        // chunks end on cache lines
constexpr int64_t kMinChunkBytes = 32 << 10;  // below this, handing out work costs more than doing it
constexpr int64_t kMaxChunkBytes = 1 << 20;

}  // namespace

const char* to_string(CollectiveOp op) {
  constexpr const char* names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"};
  return names[static_cast<int>(op)];
}

WorkPlan plan_work(CollectiveOp op, int members, int64_t round, DType dtype, int workers) {
  const Units units = units_of(op, members);
  if (round == 0 || units.count == 0) return {};
  WorkPlan plan;
  plan.bytes = units.count * units.buffers * round * byte_size(dtype);
  const int64_t chunk_bytes = std::clamp(plan.bytes / (4 * workers), kMinChunkBytes, kMaxChunkBytes);
  const int64_t elements = chunk_bytes / (units.buffers * byte_size(dtype));
  plan.chunk_elements = std::max(elements / kElementStep, int64_t{1}) * kElementStep;
  plan.chunks = static_cast<uint32_t>(units.count * ((round + plan.chunk_elements - 1) / plan.chunk_elements));
  return plan;
}

void do_chunk(const Segment& segment, const Group& group, std::span<const Member> members, uint32_t chunk,
              const CountedRows* rows, int64_t done, std::span<const std::byte*> from, std::span<std::byte*> to) {
  const auto op = static_cast<CollectiveOp>(members[0].op);
  const auto dtype = static_cast<DType>(members[0].dtype);
  const auto p = members.size();
  const auto ranges = static_cast<uint32_t>((group.round + group.chunk_elements - 1) / group.chunk_elements);
  const size_t unit = chunk / ranges;
  const int64_t begin = (chunk % ranges) * group.chunk_elements;
  int64_t n = std::min(group.chunk_elements, group.round - begin);
  if (rows != nullptr) {
    const auto members_of_unit = static_cast<int64_t>(unit);
    const auto size = static_cast<int64_t>(p);
    n = std::min(n, rows->elements(size, members_of_unit / size, members_of_unit % size) - done - begin);
    if (n <= 0) return;
  }
  const auto in = [&](size_t member, size_t block) {
    const Member& m = members[member];
    return segment.at(m.in + (static_cast<int64_t>(block) * m.stride + begin) * byte_size(dtype));
  };
  const auto out = [&](size_t member, size_t block) {
    const Member& m = members[member];
    return segment.at(m.out + (static_cast<int64_t>(block) * m.stride + begin) * byte_size(dtype));
  };
  const auto from_all = [&](size_t block) {
    for (size_t m = 0; m < p; ++m) from[m] = in(m, block);
    return from.first(p);
  };
  const auto to_all = [&](size_t block) {
    for (size_t m = 0; m < p; ++m) to[m] = out(m, block);
    return to.first(p);
  };
  const auto from_one = [&](size_t member, size_t block) { return from[0] = in(member, block), from.first(1); };
  const auto to_one = [&](size_t member, size_t block) { return to[0] = out(member, block), to.first(1); };

  switch (op) {
    case CollectiveOp::all_reduce:
      return combine(from_all(0), to_all(0), n, dtype);
    case CollectiveOp::all_gather:
      return combine(from_one(unit, 0), to_all(unit), n, dtype);
    case CollectiveOp::reduce_scatter:
      return combine(from_all(unit), to_one(unit, 0), n, dtype);
    case CollectiveOp::all_to_all:
      return combine(from_one(unit / p, unit % p), to_one(unit % p, unit / p), n, dtype);
    case CollectiveOp::broadcast:
      return combine(from_one(members[0].root, 0), to_all(0), n, dtype);
    case CollectiveOp::barrier:
      return;
  }
}

}  // namespace trainctl::comm
