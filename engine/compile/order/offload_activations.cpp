// parallel.offload: activations that wait for the backward pass do so in the memory of the host. They are copied there
// after their last use in the forward pass, and back before their first use in the backward pass:
//
//   compute     F1 F2 F3 B3 B2 B1       F and B: the forward and backward part of a layer
//   to host        o1 o2                o copies the activations of a layer, and frees their memory
//   from host            i2 i1          i copies them back, to memory of their own
//
// Copies overlap with kernels. Memory is reused when, by the predicted times of kernels and of the bus, a copy should
// be over, and a copy back starts early enough. If the bus is slower than the kernels, these wait for it, since no more
// than a block's activations are on their way in each direction. The last layers, for which no time is left between the
// two copies, keep their activations.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "engine/compile/order/accesses.h"
#include "engine/compile/order/kernel_seconds.h"
#include "engine/compile/passes.h"
#include "engine/machine/host_bus.h"
#include "engine/plan/stages/recompute.h"

namespace trainctl {
namespace {

bool in_forward_pass(const Instruction& code) { return code.phase == Phase::forward && !code.recompute; }

/// An activation that waits for the backward pass. The places of copies are indices of instructions which they precede.
struct Waiting {
  View whole;            ///< the view that is written
  std::string block;     ///< name of the block of layers that computes it
  size_t last_use = 0;   ///< index of its last use in the forward pass
  size_t first_use = 0;  ///< index of its first use after the forward pass
  size_t to_host = 0, from_host = 0;
  size_t until = 0;  ///< index of the first instruction that may use its memory for other data

  int64_t bytes() const { return whole.operand.bytes(); }
};

/// Returns for each instruction the sum of the times of the kernels before it. The last entry is the sum of all
/// kernels.
std::vector<double> start_times(const Compiler& c) {
  std::vector<double> starts = {0};
  for (const VirtualInstruction& v : c.code)
    starts.push_back(starts.back() + kernel_seconds(c.cost.machine(), v.code).value);
  return starts;
}

/// The known uses of a buffer.
struct ActivationUses {
  View whole;  ///< the view of the instruction that writes the whole buffer; no buffer if none writes it as a whole
  bool is_rewritten = false;
  int64_t last = -1, first = -1;  ///< last use in the forward pass, and first use after it; -1: none
};

class ActivationOffload {
 public:
  explicit ActivationOffload(Compiler& c) : c_(c), starts_(start_times(c)) {}

  void run() {
    find_waiting();
    while (!waiting_.empty() && !place_copies()) {
    }
    if (!waiting_.empty()) insert_copies();
  }

 private:
  // ---- which activations

  /// For each buffer: its last use in the forward pass, its first one after it, and whether it is written again.
  std::vector<ActivationUses> uses_of_buffers() const {
    std::vector<ActivationUses> uses(c_.buffers.size());
    for (size_t i = 0; i < c_.code.size(); ++i) {
      const VirtualInstruction& v = c_.code[i];
      const std::vector<MemoryAccess> all = accesses(v.code);
      for (size_t a = 0; a < all.size(); ++a) {
        const BufferId buffer = a < v.inputs.size() ? v.inputs[a] : v.outputs[a - v.inputs.size()];
        ActivationUses& of = uses[static_cast<size_t>(buffer)];
        const bool forward = in_forward_pass(v.code);
        if (forward) of.last = static_cast<int64_t>(i);
        if (!forward && of.first < 0) of.first = static_cast<int64_t>(i);
        if (!all[a].writes) continue;
        const Operand& operand = *all[a].operand;
        const bool is_whole = operand.offset == 0 && operand.bytes() == c_.buffers[static_cast<size_t>(buffer)].bytes;
        of.is_rewritten |= !forward || of.first >= 0;
        if (is_whole) of.whole = {buffer, operand};
      }
    }
    return uses;
  }

  /// Maps the name of each activation to the layer that makes it.
  std::unordered_map<std::string_view, LayerId> layers_of_tensors() const {
    std::unordered_map<std::string_view, LayerId> layers;
    for (const Node& node : c_.graph.nodes)
      if (node.phase == Phase::forward)
        for (const TensorId output : node.outputs)
          layers.emplace(c_.graph.tensors[static_cast<size_t>(output)].name, node.layer);
    return layers;
  }

  /// True if an activation of this size is worth a copy. On a GPU the transfer must take longer than starting the copy.
  bool is_large(int64_t bytes) const {
    const Machine& machine = c_.cost.machine();
    return machine.kind == DeviceKind::cpu || seconds_of(bytes) >= machine.launch.value;
  }

  /// Finds the activations to offload: large ones of layers with LayerPlan::offload, whose next use after the forward
  /// pass comes later.
  void find_waiting() {
    const std::vector<ActivationUses> uses = uses_of_buffers();
    const std::unordered_map<std::string_view, LayerId> layers = layers_of_tensors();
    for (const ActivationUses& of : uses) {
      if (of.whole.buffer < 0 || of.is_rewritten || of.last < 0 || of.first <= of.last) continue;
      if (c_.buffers[static_cast<size_t>(of.whole.buffer)].kind != BufferKind::activation) continue;
      const auto layer = layers.find(of.whole.operand.tensor);
      if (layer == layers.end() || !c_.plan.layers[static_cast<size_t>(layer->second)].offload) continue;
      if (!is_large(of.whole.operand.bytes())) continue;
      Waiting waiting{of.whole, block_name(layer->second), static_cast<size_t>(of.last), static_cast<size_t>(of.first)};
      waiting.whole.operand.accumulate = false;
      waiting.to_host = end_of_launch_at(waiting.last_use);
      waiting_.push_back(std::move(waiting));
    }
  }

  std::string block_name(LayerId layer) const {
    const std::string& name = c_.graph.layers[static_cast<size_t>(layer)].name;
    const std::string_view block = block_of(name);
    return block.empty() ? name : std::string(block);
  }

  // ---- when they are copied

  double seconds_of(int64_t bytes) const {
    return (Bytes{static_cast<double>(bytes)} / host_bus_rate(c_.cost.machine())).value;
  }
  size_t begin_of_launch_at(size_t at) const {
    const int launch = c_.code[at].code.launch;
    while (launch >= 0 && at > 0 && c_.code[at - 1].code.launch == launch) --at;
    return at;
  }
  /// One past the last instruction of its launch.
  size_t end_of_launch_at(size_t at) const {
    const int launch = c_.code[at].code.launch;
    for (++at; launch >= 0 && at < c_.code.size() && c_.code[at].code.launch == launch;) ++at;
    return at;
  }

  /// The most bytes that are on their way in one direction: those of the largest block of a micro-batch.
  int64_t most_on_their_way() const {
    std::map<std::pair<std::string, int>, int64_t> of_blocks;
    int64_t most = 0;
    for (const Waiting& w : waiting_) {
      int64_t& bytes = of_blocks[{w.block, c_.code[w.last_use].code.micro_batch}];
      bytes += w.bytes();
      most = std::max(most, bytes);
    }
    return most;
  }

  /// Places the copies of all waiting activations, and drops activations that have no time between their two copies.
  /// Returns true if none had to be dropped.
  bool place_copies() {
    const int64_t most = most_on_their_way();
    place_copies_to_host(most);
    place_copies_from_host(most);
    return std::erase_if(waiting_, [](const Waiting& w) { return w.from_host <= w.until; }) == 0;
  }

  /// Decides until when each buffer stays on the card: until the bus has copied it, or earlier if waiting buffers would
  /// exceed `most` bytes.
  void place_copies_to_host(int64_t most) {
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const Waiting& a, const Waiting& b) { return a.to_host < b.to_host; });
    double bus = 0;
    for (Waiting& w : waiting_) {
      bus = std::max(bus, starts_[w.to_host]) + seconds_of(w.bytes());
      w.until = static_cast<size_t>(std::lower_bound(starts_.begin(), starts_.end(), bus) - starts_.begin());
    }
    int64_t bytes = 0;
    for (size_t first = 0, next = 0; first < waiting_.size(); ++first) {
      for (; next < waiting_.size() && bytes <= most; ++next) bytes += waiting_[next].bytes();
      // For activation `next - 1` there is room on the way only after activation `first` has arrived.
      if (bytes > most) waiting_[first].until = std::min(waiting_[first].until, waiting_[next - 1].to_host);
      bytes -= waiting_[first].bytes();
    }
  }

  /// Determines where the copies from the host start: late enough that at most `most` bytes are on the device at a
  /// time, and early enough that the bus, which transfers them one after another, finishes before the first use.
  void place_copies_from_host(int64_t most) {
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const Waiting& a, const Waiting& b) { return a.first_use < b.first_use; });
    double bus = std::numeric_limits<double>::infinity();
    for (size_t k = waiting_.size(); k-- > 0;) {
      Waiting& w = waiting_[k];
      const size_t use = begin_of_launch_at(w.first_use);
      bus = std::min(bus, starts_[use]) - seconds_of(w.bytes());
      const auto after = std::upper_bound(starts_.begin(), starts_.end(), std::max(bus, 0.0)) - starts_.begin();
      w.from_host = begin_of_launch_at(std::min(static_cast<size_t>(after) - 1, use));
    }
    int64_t bytes = 0;
    for (size_t last = 0, first = 0; last < waiting_.size(); ++last) {
      bytes += waiting_[last].bytes();
      for (; bytes > most && first < last; ++first) {
        bytes -= waiting_[first].bytes();
        waiting_[last].from_host = std::max(waiting_[last].from_host, end_of_launch_at(waiting_[first].first_use));
      }
      if (last > 0) waiting_[last].from_host = std::max(waiting_[last].from_host, waiting_[last - 1].from_host);
      // If the bus is slower than the kernels, the copy back is not over in time, and the kernels wait for it.
      Waiting& w = waiting_[last];
      const size_t use = begin_of_launch_at(w.first_use);
      w.from_host = w.until < use ? std::min(std::max(w.from_host, end_of_launch_at(w.until)), use) : use;
    }
  }

  // ---- the copies

  VirtualInstruction copy_of(const Waiting& w, bool to_host, BufferId from, BufferId to) const {
    const Instruction& user = c_.code[to_host ? w.last_use : w.first_use].code;
    VirtualInstruction v;
    v.code.opcode = Opcode::copy;
    v.code.name = (to_host ? "offload " : "fetch ") + w.whole.operand.tensor;
    v.code.purpose = Purpose::offload;
    v.code.phase = to_host ? Phase::forward : Phase::backward;
    v.code.micro_batch = user.micro_batch;
    v.code.chunk = user.chunk;
    v.code.inputs = v.code.outputs = {w.whole.operand};
    v.inputs = {from};
    v.outputs = {to};
    return v;
  }

  /// Inserts the copies into the code. The backward pass then uses the buffers that were copied back.
  void insert_copies() {
    std::multimap<size_t, VirtualInstruction> copies;  // by the instruction that they precede
    std::vector<BufferId> instead(c_.buffers.size(), -1);
    for (const Waiting& w : waiting_) {
      const BufferId device = w.whole.buffer;
      const BufferId host = c_.new_buffer(BufferKind::activation, w.bytes());
      c_.buffers[static_cast<size_t>(host)].is_offloaded = true;
      const BufferId again = c_.new_buffer(BufferKind::activation, w.bytes());
      instead[static_cast<size_t>(device)] = again;
      copies.emplace(w.to_host, copy_of(w, true, device, host));
      copies.emplace(w.from_host, copy_of(w, false, host, again));
    }
    std::vector<VirtualInstruction> all;
    std::vector<size_t> places(c_.code.size() + 1);  // by instruction: its index in `all`
    for (size_t i = 0; i <= c_.code.size(); ++i) {
      const auto [begin, end] = copies.equal_range(i);
      for (auto copy = begin; copy != end; ++copy) all.push_back(std::move(copy->second));
      places[i] = all.size();
      if (i == c_.code.size()) break;
      all.push_back(std::move(c_.code[i]));
      if (in_forward_pass(all.back().code)) continue;
      for (std::vector<BufferId>* operands : {&all.back().inputs, &all.back().outputs})
        for (BufferId& buffer : *operands)
          if (static_cast<size_t>(buffer) < instead.size() && instead[static_cast<size_t>(buffer)] >= 0)
            buffer = instead[static_cast<size_t>(buffer)];
    }
    for (const Waiting& w : waiting_)
      c_.buffers[static_cast<size_t>(w.whole.buffer)].lasts_until = static_cast<int>(places[w.until]);
    c_.code = std::move(all);
  }

  Compiler& c_;
  const std::vector<double> starts_;  ///< by instruction
  std::vector<Waiting> waiting_;
};

}  // namespace

void offload_activations(Compiler& c) {
  const bool wanted =
      std::any_of(c.plan.layers.begin(), c.plan.layers.end(), [](const LayerPlan& layer) { return layer.offload; });
  if (wanted && c.trains()) ActivationOffload(c).run();
}

}  // namespace trainctl
