// Misfortunes on order, to see what the launcher makes of them. TRAINCTL_TEST_FAULT in the environment of a run:
//
//   fault := rank ":" step ":" what        what := "exit" code | "hang" | "skip"
//
//   2:5:exit3   rank 2 exits with code 3 where it should start step 5
//   2:5:hang    it stands still there; 2:0:hang: it never reports that it has started
//   2:5:skip    it leaves out the first collective of step 5, which a GPU then does not replay from its graph
#pragma once

#include <cstdint>
#include <optional>

#include "engine/runtime/executor.h"

namespace trainctl {

class Fault {
 public:
  /// What the environment orders for `rank`; nothing for any other. Throws EnvError where it is not in the language.
  static std::optional<Fault> of_environment(int rank);

  /// The rank is about to start step `step`; 0: to report that it has started.
  void strike(int64_t step) const;
  /// The collective that is to be skipped; nothing where none is, or the program has none.
  std::optional<LeftOut> left_out(const Program& program) const;

 private:
  enum class What { exit, hang, skip };

  int64_t step_ = 0;
  What what_ = What::hang;
  int code_ = 0;
};

}  // namespace trainctl
