// If two instructions touch the same byte and one of them writes it, they must be ordered regardless of stream
// speed: by a shared stream, or by waits, direct or indirect. A send holds its buffer until an instruction has
// waited for it.
#include <algorithm>
#include <array>
#include <map>

#include "engine/compile/arena_map.h"
#include "engine/compile/order/accesses.h"
#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

/// For each instruction: the last instruction of each stream that has certainly finished before it starts,
/// and the sends (by peer, in order) that have certainly been received.
struct Before {
  std::array<int, kStreams> finished;
  std::map<int, int> received;

  Before() { finished.fill(-1); }
  void include(const Before& other) {
    for (size_t s = 0; s < kStreams; ++s) finished[s] = std::max(finished[s], other.finished[s]);
    for (const auto& [peer, send] : other.received) include_send(peer, send);
  }
  void include_send(int peer, int send) {
    int& last = received.try_emplace(peer, -1).first->second;
    last = std::max(last, send);
  }
};

/// Computes Before of each instruction, from the order within streams and from waits.
std::vector<Before> happens_before(const Program& p) {
  std::vector<Before> before(p.instructions.size());
  std::array<int, kStreams> previous;
  previous.fill(-1);
  for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
    const Instruction& code = p.instructions[i];
    const auto follow = [&](int earlier) {
      before[i].include(before[earlier]);
      int& last = before[i].finished[static_cast<size_t>(p.instructions[earlier].stream)];
      last = std::max(last, earlier);
    };
    int& in_stream = previous[static_cast<size_t>(code.stream)];
    if (in_stream >= 0) follow(in_stream);
    in_stream = i;
    for (int w : code.waits) {
      follow(w);
      if (p.instructions[w].opcode == Opcode::send) before[i].include_send(p.instructions[w].peer, w);
    }
  }
  return before;
}

struct OrderedUsers {
  int writer = -1;
  std::vector<int> readers;
};

class Order {
 public:
  Order(const Program& program, Faults& faults) : p_(program), faults_(faults), before_(happens_before(program)) {}

  void verify() {
    for (int i = 0; i < static_cast<int>(p_.instructions.size()); ++i) {
      last_told_ = -1;
      for (const MemoryAccess& access : accesses(p_.instructions[i])) {
        users_.for_each(access.begin(), access.end(), [&](OrderedUsers& users) { use(i, access, users); });
      }
    }
  }

 private:
  void use(int i, const MemoryAccess& access, OrderedUsers& users) {
    if (users.writer != i) demand(i, users.writer, access, access.writes ? "writes" : "reads", "writes");
    if (!access.writes) {
      if (users.readers.empty() || users.readers.back() != i) drop_ordered(users.readers, i).push_back(i);
      return;
    }
    for (int reader : users.readers) {
      if (reader != i) demand(i, reader, access, "writes", "reads");
    }
    users.readers.clear();
    users.writer = i;
  }

  /// Drops readers on the same stream as `i`: whatever is ordered after `i` is ordered after them. Not sends.
  std::vector<int>& drop_ordered(std::vector<int>& readers, int i) const {
    std::erase_if(readers, [&](int r) {
      return p_.instructions[r].opcode != Opcode::send && p_.instructions[r].stream == p_.instructions[i].stream;
    });
    return readers;
  }

  bool is_after(int i, int earlier) const {
    const Instruction& e = p_.instructions[earlier];
    if (e.opcode != Opcode::send) return before_[i].finished[static_cast<size_t>(e.stream)] >= earlier;
    const auto received = before_[i].received.find(e.peer);
    return received != before_[i].received.end() && received->second >= earlier;
  }

  void demand(int i, int earlier, const MemoryAccess& access, const char* does, const char* did) {
    if (earlier < 0 || earlier == last_told_ || is_after(i, earlier)) return;
    last_told_ = earlier;
    const Instruction& e = p_.instructions[earlier];
    const bool sent = e.opcode == Opcode::send;
    faults_.push_back({p_.rank, i,
                       p_.instructions[i].name + " " + does + " " + access.operand->tensor + " (" +
                           std::string(to_string(p_.instructions[i].stream)) +
                           " stream) without waiting for instruction " + std::to_string(earlier) + " (" + e.name +
                           ", " + std::string(to_string(e.stream)) + " stream), which " + (sent ? "still sends" : did) +
                           " the same bytes"});
  }

  const Program& p_;
  Faults& faults_;
  const std::vector<Before> before_;
  ArenaMap<OrderedUsers> users_;
  int last_told_ = -1;
};

}  // namespace

void verify_order(const Program& program, Faults& faults) { Order(program, faults).verify(); }

}  // namespace trainctl
