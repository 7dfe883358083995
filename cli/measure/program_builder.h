// Programs made by hand, instruction after instruction, to measure what a part of a step takes.
#pragma once

#include <utility>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// A program for each rank; they run together.
using RankPrograms = std::vector<Program>;

/// Builds one rank's program.
class ProgramBuilder {
 public:
  /// `most_bytes`: of the largest collective.
  ProgramBuilder(int rank, int num_ranks, int64_t most_bytes = 0);

  /// New memory in the arena.
  Operand tensor(Shape shape, DType dtype);

  // Each adds an instruction and returns its index. `waits`: instructions of other streams, and sends, that it waits
  // for; -1 stands for none.
  int kernel(const char* op, std::vector<Operand> inputs, Operand output, Attrs attrs = {},
             std::vector<int> waits = {});
  /// Over all ranks, f32; all collectives use the same two operands. `bytes`: the larger of a rank's input and output.
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
