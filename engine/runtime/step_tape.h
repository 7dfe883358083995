// A recorded step of a GPU: enough to replay it on another device without the other ranks, and to compare the two.
//
//   training card   state ─► before │ step: gives ─► given, receives ─► received │ state ─► after
//   replaying card  before ─► state │ step: gives ─► given_again, takes received │
//
// Both cards compute digests of the state after the step and of what it gave. Only if these differ are the bytes copied
// to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/runtime/state_copy.h"

namespace trainctl {

struct StepTape {
  /// One collective, send or recv.
  struct Exchange {
    int instruction = 0;
    int64_t given_bytes = 0, received_bytes = 0;
    int64_t given = 0, received = 0;  ///< offsets in `given` and `given_again`, and in `received`
  };
  /// All that the rank keeps from step to step, in the order of stored_ranges, then its loss if it has one; `to` is an
  /// offset in before and after.
  std::vector<StateCopy> state;
  std::vector<StateCopy> moves;     ///< the same bytes in fewer copies: adjacent ranges are one
  std::vector<Exchange> exchanges;  ///< in the order of the program
  int64_t state_bytes = 0, given_bytes = 0, received_bytes = 0;

  /// Memory of the training card, or of the host if that has no room. All devices of the process copy from it.
  std::shared_ptr<std::byte> before, after, given, received;
  std::shared_ptr<std::byte> given_again;  ///< the data that the replay gave, in memory of its card
};

}  // namespace trainctl
