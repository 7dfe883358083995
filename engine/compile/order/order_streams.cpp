// Streams, final offsets, and the waits between streams. If two instructions touch the same byte and one of them
// writes it, stream order and waits must order them. Each instruction gets the waits that its bytes require and
// that do not already follow from earlier waits, direct or indirect.
#include <algorithm>
#include <array>
#include <map>

#include "engine/base/error.h"
#include "engine/compile/arena_map.h"
#include "engine/compile/order/accesses.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// Shards are rounded for their gathers in the stream of the gathers, concurrently with the kernels of the step.
Stream stream_of(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kernel:
      return instruction.purpose == Purpose::weights ? Stream::comm : Stream::compute;
    case Opcode::collective:
      return Stream::comm;
    case Opcode::send:
      return Stream::send;
    case Opcode::recv:
      return Stream::recv;
    case Opcode::copy:
      return is_host_offset(instruction.outputs[0].offset) ? Stream::to_host : Stream::from_host;
    default:
      return Stream::compute;
  }
}

/// The instructions and messages that have certainly finished before an instruction starts.
struct Clock {
  std::array<int, kStreams> done;  ///< by stream: the last finished instruction
  std::vector<int> received;       ///< by channel: the last send that its peer has received

  explicit Clock(size_t channels) : received(channels, -1) { done.fill(-1); }
  void merge(const Clock& other) {
    for (size_t s = 0; s < kStreams; ++s) done[s] = std::max(done[s], other.done[s]);
    for (size_t c = 0; c < received.size(); ++c) received[c] = std::max(received[c], other.received[c]);
  }
};

/// The last writer of a byte, and its readers since.
struct History {
  int writer = -1;
  std::array<int, kStreams> readers;
  std::vector<int> sends;

  History() { readers.fill(-1); }
};

class StreamOrder {
 public:
  explicit StreamOrder(std::vector<Instruction>& code) : code_(code) {
    for (const Instruction& i : code_) {
      if (i.opcode == Opcode::send) channels_.try_emplace(i.peer, channels_.size());
    }
  }

  /// Adds the waits that conflicts between streams need, and leaves out those that other waits imply.
  void order() {
    std::vector<Clock> now(kStreams, Clock(channels_.size()));  // after the last instruction of each stream
    clocks_.reserve(code_.size());
    for (int i = 0; i < static_cast<int>(code_.size()); ++i) {
      Instruction& code = code_[i];
      const int stream = static_cast<int>(code.stream);
      Clock& clock = now[stream];
      const std::vector<int> given = std::move(code.waits);
      code.waits.clear();
      for (int awaited : given) wait(code, clock, awaited);
      std::vector<int> needed = conflicts(i);
      std::sort(needed.rbegin(), needed.rend());
      for (int earlier : needed) wait(code, clock, earlier);
      std::sort(code.waits.begin(), code.waits.end());
      clock.done[stream] = i;
      clocks_.push_back(clock);
    }
  }

 private:
  bool is_send(int i) const { return code_[i].opcode == Opcode::send; }

  void wait(Instruction& code, Clock& clock, int earlier) {
    int& known = is_send(earlier) ? clock.received[channels_.at(code_[earlier].peer)]
                                  : clock.done[static_cast<int>(code_[earlier].stream)];
    if (known >= earlier) return;
    known = earlier;
    code.waits.push_back(earlier);
    clock.merge(clocks_[earlier]);
  }

  /// Earlier instructions that must finish before this one because they touch the same bytes.
  std::vector<int> conflicts(int i) {
    std::vector<int> found;
    const auto add = [&](int earlier) {
      if (earlier >= 0 && earlier != i && std::find(found.begin(), found.end(), earlier) == found.end())
        found.push_back(earlier);
    };
    const std::vector<MemoryAccess> list = accesses(code_[i]);
    for (const MemoryAccess& access : list) {
      // An own part counts as the whole range it belongs to, so that the waits are the same on all ranks.
      history_.for_each(access.operand->reach_begin(), access.operand->reach_end(), [&](History& h) {
        add(h.writer);
        if (access.writes) {
          for (int reader : h.readers) add(reader);
          for (int send : h.sends) add(send);
          h = History{};
          h.writer = i;
        } else if (is_send(i)) {
          h.sends.push_back(i);
        } else {
          h.readers[static_cast<int>(code_[i].stream)] = i;
        }
      });
    }
    return found;
  }

  std::vector<Instruction>& code_;
  std::map<int, size_t> channels_;
  std::vector<Clock> clocks_;  // after each instruction
  ArenaMap<History> history_;
};

}  // namespace

void order_streams(Compiler& c) {
  std::vector<Instruction>& code = c.program.instructions;
  code.reserve(c.code.size());
  for (VirtualInstruction& v : c.code) {
    for (size_t i = 0; i < v.inputs.size(); ++i) v.code.inputs[i].offset += c.buffers[v.inputs[i]].offset;
    for (size_t o = 0; o < v.outputs.size(); ++o) v.code.outputs[o].offset += c.buffers[v.outputs[o]].offset;
    v.code.stream = stream_of(v.code);
    code.push_back(std::move(v.code));
  }
  StreamOrder(code).order();
}

}  // namespace trainctl
