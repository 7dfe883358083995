// The bytes that all members of a collective together have to receive from each other. The group has p members, and the
// input of one member has n bytes:
//
//   all_reduce       2 (p - 1) n, or p (p - 1) n if each member adds up everything: at most kAddedAloneBytes, or fewer
//                    elements than members
//   all_gather       p (p - 1) n
//   reduce_scatter   (p - 1) n          all_to_all   (p - 1) n
//   broadcast        (p - 1) n
#pragma once

#include <cstdint>

#include "engine/graph/collective.h"
#include "engine/graph/dtype.h"

namespace trainctl {

/// Sums of at most this many bytes go whole to each member, in one exchange instead of two.
inline constexpr int64_t kAddedAloneBytes = 4096;

/// Returns these bytes. `count` is the number of elements as a Communicator counts them.
int64_t exchanged_bytes(Collective kind, int members, int64_t count, DType dtype);

}  // namespace trainctl
