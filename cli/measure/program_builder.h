// Builds programs instruction by instruction, to measure the time of a part of a step.
#pragma once

#include <utility>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// The programs of all ranks, one per rank, which run together.
using RankPrograms = std::vector<Program>;

/// Builds one rank's program.
class ProgramBuilder {
 public:
  /// `most_bytes`: size of the largest collective.
  ProgramBuilder(int rank, int num_ranks, int64_t most_bytes = 0);

  /// Allocates memory in the arena.
  Operand tensor(Shape shape, DType dtype);

  // Each function adds an instruction and returns its index. `waits`: instructions of other streams, and sends, that it
  // waits for; -1 means none.
  int kernel(const char* op, std::vector<Operand> inputs, Operand output, Attrs attrs = {},
             std::vector<int> waits = {});
  /// A collective over all ranks in f32; all use the same two operands. `bytes`: the larger of a rank's input and
  /// output.
  int collective(Collective kind, int64_t bytes, std::vector<int> waits = {});
  int send(int peer, const Operand& data, std::vector<int> waits);
  int recv(int peer, const Operand& data, std::vector<int> waits);

  Program take() { return std::move(program_); }

 private:
  int add(Instruction instruction, std::vector<int> waits);

  Program program_;
  Operand in_, out_;  ///< operands of all collectives
};

}  // namespace trainctl
