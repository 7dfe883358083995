// The positions of the local shards that `print:` shows within the full tensors of the global batch.
#pragma once

#include <map>
#include <string>

#include "engine/compile/program.h"
#include "engine/planning/planned_job.h"

namespace trainctl {

struct PrintedPart {
  Shape shape;  ///< shape of this part
  Shape first;  ///< where it begins in the whole
  Shape whole;  ///< shape over all micro-batches and ranks
  /// False: which whole it is a part of is not known (hybrid_parallel). Then `whole` is all that this rank shows.
  bool known = true;
  bool first_holder = true;  ///< no rank before this one has the same part
};

/// Micro-batches follow each other along the dim of the batch. A tensor without one gets a new first dim, the
/// micro-batch, if there are several.
class PrintedTensors {
 public:
  /// `job` and `program` must outlive it.
  PrintedTensors(const PlannedJob& job, const Program& program);

  /// `printed` is the operand of a print instruction of the program.
  PrintedPart part(const Operand& printed, int micro_batch) const;

 private:
  struct Known {
    Shape whole, first;  ///< for one micro-batch
    int batch_dim = -1;
    bool known = true, first_holder = true;
  };
  Known find(TensorId tensor, const Operand& printed) const;
  /// hybrid_parallel: `found` is only this rank's part, and becomes a part of the whole if there is one.
  void place_by_hand(TensorId tensor, Known& found) const;

  const PlannedJob& job_;
  const Program& program_;
  std::map<std::string, Known> tensors_;
};

/// "rows 32..63 of 64, cols 0..9"; "dims [0..31 of 64, 0..3, 0..9]"; "whole" if it is all of it.
std::string part_text(const PrintedPart& part);

}  // namespace trainctl
