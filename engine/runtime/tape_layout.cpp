// Gives each range of state and each exchange of a program its place on the tape.
#include "engine/runtime/tape_layout.h"

#include <algorithm>
#include <numeric>

#include "engine/base/round_up.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

constexpr int64_t kTapeAlignment = 256;

/// Appends to a region, and returns the offset in it.
int64_t append(int64_t& region_bytes, int64_t bytes) {
  const int64_t offset = region_bytes;
  region_bytes = round_up(offset + bytes, kTapeAlignment);
  return offset;
}

/// False for a broadcast, whose result has its data on every rank, and for an all_to_all, whose blocks may have room
/// for more tokens than they contain.
bool is_compared(const Instruction& i) {
  return i.opcode != Opcode::collective ||
         (i.collective != Collective::broadcast && i.collective != Collective::all_to_all);
}

/// Ranges that are adjacent in the arena are adjacent on the tape, and move together.
void place_state(StepTape& tape) {
  std::vector<size_t> by_offset(tape.state.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::stable_sort(by_offset.begin(), by_offset.end(),
                   [&](size_t a, size_t b) { return tape.state[a].offset < tape.state[b].offset; });
  int64_t end = 0;
  for (const size_t i : by_offset) {
    StateCopy& copy = tape.state[i];
    if (tape.moves.empty() || tape.moves.back().offset + tape.moves.back().bytes != copy.offset) {
      end = round_up(end, kTapeAlignment);
      tape.moves.push_back({copy.offset, end, 0});
    }
    copy.to = end;
    end += copy.bytes;
    tape.moves.back().bytes += copy.bytes;
  }
  tape.state_bytes = end;
}

}  // namespace

StepTape lay_out_tape(const Program& program) {
  StepTape tape;
  for (const StoredRange& range : stored_ranges(program))
    if (range.count > 0) tape.state.push_back({range.offset, 0, range.bytes()});
  if (program.loss_offset >= 0) tape.state.push_back({program.loss_offset, 0, int64_t{sizeof(float)}});
  place_state(tape);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (!communicates(instruction) || instruction.idle) continue;
    StepTape::Exchange exchange{.instruction = static_cast<int>(i)};
    if (!instruction.inputs.empty() && is_compared(instruction)) exchange.given_bytes = instruction.inputs[0].bytes();
    if (!instruction.outputs.empty()) exchange.received_bytes = instruction.outputs[0].bytes();
    exchange.given = append(tape.given_bytes, exchange.given_bytes);
    exchange.received = append(tape.received_bytes, exchange.received_bytes);
    tape.exchanges.push_back(exchange);
  }
  return tape;
}

}  // namespace trainctl
