// Misfortunes on order, to see what the launcher makes of them. TRAINCTL_TEST_FAULT in the environment of a run:
//
//   fault := rank ":" step ":" what        what := "exit" code | "hang" | "skip"
//
//   2:5:exit3   rank 2 exits with code 3 where it should start step 5
//   2:5:hang    it stands still there; 2:0:hang: it never reports that it has started
//   2:5:skip    it leaves out the first collective of step 5
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/runtime/communicator.h"

namespace trainctl {

class Fault {
 public:
  /// What the environment orders for `rank`; nothing for any other. Throws EnvError where it is not in the language.
  static std::optional<Fault> of_environment(int rank);

  /// The rank is about to start step `step`; 0: to report that it has started.
  void strike(int64_t step) const;
  /// Stands before `inner`, which must outlive it, where a collective is to be skipped; else null.
  std::unique_ptr<Communicator> skipping(Communicator& inner) const;

 private:
  enum class What { exit, hang, skip };

  int64_t step_ = 0;
  What what_ = What::hang;
  int code_ = 0;
};

}  // namespace trainctl
