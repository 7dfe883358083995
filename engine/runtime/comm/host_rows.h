// The way of the rows of an all_to_all whose members are on several hosts:
//
//   inside   each member sends the others of its host their rows, and the first one, the leader, those for other hosts
//   between  the leaders exchange them, one message for each pair of hosts
//   spread   the leader sends each member the rows from other hosts
//
// Each stage is an all_to_all of counted rows between packed buffers, [members of the stage, most, row].
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/communicator.h"

namespace trainctl::comm {

/// Consecutive rows that are copied from one buffer to another; both offsets are in rows.
struct RowCopy {
  int64_t from = 0, to = 0, rows = 0;
};

struct RowStage {
  int64_t members = 0;
  int64_t most = 0;                   ///< rows of a block of the buffers: the most that any pair of members exchanges
  std::vector<int32_t> counts;        ///< [members, members], as in CountedRows
  std::vector<RowCopy> pack, unpack;  ///< before and after the exchange

  RowStage() = default;
  explicit RowStage(size_t of_members) : members(static_cast<int64_t>(of_members)), counts(of_members * of_members) {}
  int32_t& count(size_t from, size_t to) { return counts[from * static_cast<size_t>(members) + to]; }
  int64_t rows() const { return members * most; }  ///< rows of a buffer
};

/// The stages of one member. A stage in which the member takes no part has no copies, as `between` of all but the
/// leader.
struct HostRows {
  RowStage inside;   ///< input -> pack -> exchange -> unpack -> output
  RowStage between;  ///< result of `inside` -> pack -> exchange -> unpack -> the input of `spread`
  RowStage spread;   ///< exchange -> unpack -> output
};

/// The place of this member in the group.
struct HostPlace {
  const std::vector<std::vector<int>>& members;  ///< indices of the members, by host
  size_t host = 0, place = 0;                    ///< this is members[host][place]
};
/// `count`: elements of a block of the group's input and output.
HostRows host_rows(const HostPlace& at, int64_t count, const CountedRows& rows);

}  // namespace trainctl::comm
