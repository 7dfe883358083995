// A recorded step of a GPU: enough to replay it on another device without the other ranks, and to compare the two.
//
//   training card   state ─► before │ step: gives ─► given, receives ─► received │ state ─► after
//   replaying card  before ─► state │ step: gives ─► given_again, takes received │ state is compared with after
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
    int64_t given = 0, received = 0, given_again = 0;  ///< offsets in `exchanged`
  };
  std::vector<StateCopy> state;  ///< all that the rank keeps from step to step; `to` is an offset in before and after
  std::vector<Exchange> exchanges;  ///< in the order of the program
  int64_t state_bytes = 0, exchanged_bytes = 0;
  /// Host memory, which all devices of the process read and write directly.
  std::shared_ptr<std::byte> before, after, exchanged;
};

}  // namespace trainctl
