// Gives every buffer an offset in the arena: first those that live as long as the program, then the rest by lifetime.
// Two greedy orders are tried, by first use and by size, and the smaller arena is kept.
#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/round_up.h"
#include "engine/compile/passes.h"
#include "engine/compile/place/arena_limit.h"
#include "engine/compile/place/lifetimes.h"

namespace trainctl {
namespace {

constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return round_up(bytes, kAlignment); }

/// With more buffers than this, the order by size is not tried: it compares each buffer with all placed ones, so its
/// time is quadratic.
constexpr size_t kSortBySizeUpTo = 4000;

struct Placement {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

/// The free ranges of memory at one time in the program. Buffers are taken and returned in order of time.
class FreeList {
 public:
  explicit FreeList() { free_[0] = INT64_MAX; }

  /// Takes `bytes` from the smallest free range that is large enough; among equal ranges, from the lowest.
  int64_t take(int64_t bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      if (best == free_.end() || it->second < best->second) best = it;
    }
    const auto [offset, size] = *best;
    free_.erase(best);
    if (size > bytes) free_[offset + bytes] = size == INT64_MAX ? size : size - bytes;
    return offset;
  }

  /// Returns a range of bytes, and merges it with free ranges next to it.
  void give(int64_t offset, int64_t bytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes = next->second == INT64_MAX ? INT64_MAX : bytes + next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second = bytes == INT64_MAX ? INT64_MAX : before->second + bytes;
        return;
      }
    }
    free_[offset] = bytes;
  }

 private:
  std::map<int64_t, int64_t> free_;  // offset -> bytes; the last range is unbounded
};

/// Places buffers in the order of their first uses, in memory that earlier ones have left.
Placement by_first_use(const Compiler& c, const std::vector<Lifetime>& lives, const std::vector<BufferId>& buffers) {
  Placement p{std::vector<int64_t>(c.buffers.size(), -1), 0};
  std::vector<BufferId> order = buffers;
  std::stable_sort(order.begin(), order.end(), [&](BufferId a, BufferId b) { return lives[a].first < lives[b].first; });
  std::multimap<int, BufferId> ends;
  FreeList free;
  for (BufferId buffer : order) {
    while (!ends.empty() && ends.begin()->first < lives[buffer].first) {
      const BufferId dead = ends.begin()->second;
      free.give(p.offsets[dead], aligned(c.buffers[dead].bytes));
      ends.erase(ends.begin());
    }
    p.offsets[buffer] = free.take(aligned(c.buffers[buffer].bytes));
    p.bytes = std::max(p.bytes, p.offsets[buffer] + aligned(c.buffers[buffer].bytes));
    ends.emplace(lives[buffer].last, buffer);
  }
  return p;
}

/// A buffer whose offset has been chosen.
struct PlacedBuffer {
  int64_t begin = 0, end = 0;
  Lifetime life;
};

/// Returns the lowest offset at which `bytes` fit between the placed buffers (sorted by offset) that live at the same
/// time as `life`.
int64_t lowest_gap(const std::vector<PlacedBuffer>& placed, const Lifetime& life, int64_t bytes) {
  int64_t at = 0;
  for (const PlacedBuffer& other : placed) {
    if (!other.life.overlaps(life)) continue;
    if (other.begin - at >= bytes) break;
    at = std::max(at, other.end);
  }
  return at;
}

/// Places the largest buffers first, each in the lowest gap that is free throughout its lifetime.
Placement by_size(const Compiler& c, const std::vector<Lifetime>& lives, const std::vector<BufferId>& buffers) {
  Placement p{std::vector<int64_t>(c.buffers.size(), -1), 0};
  std::vector<BufferId> order = buffers;
  std::stable_sort(order.begin(), order.end(),
                   [&](BufferId a, BufferId b) { return c.buffers[a].bytes > c.buffers[b].bytes; });
  std::vector<PlacedBuffer> placed;  // by offset
  for (BufferId buffer : order) {
    const int64_t bytes = aligned(c.buffers[buffer].bytes), begin = lowest_gap(placed, lives[buffer], bytes);
    p.offsets[buffer] = begin;
    p.bytes = std::max(p.bytes, begin + bytes);
    const auto above = std::upper_bound(placed.begin(), placed.end(), begin,
                                        [](int64_t offset, const PlacedBuffer& other) { return offset < other.begin; });
    placed.insert(above, {begin, begin + bytes, lives[buffer]});
  }
  return p;
}

/// Gradients under reduction keep their bytes until the next reduction is issued. If the rest of the backward pass
/// reused those bytes at once, it would have to wait for the sum.
void keep_for_comm(const Compiler& c, std::vector<Lifetime>& lives) {
  int next = static_cast<int>(c.code.size()) - 1;
  for (int i = next; i >= 0; --i) {
    const VirtualInstruction& v = c.code[i];
    if (v.code.opcode != Opcode::collective || v.code.purpose != Purpose::gradient) continue;
    const BufferId buffer = v.inputs[0];
    if (lives[buffer].last < next) lives[buffer].last = next;
    next = i;
  }
}

/// Returns for each buffer whether it may share memory with others; false: its memory is reserved for the whole
/// program.
std::vector<bool> find_sharing(const Compiler& c) {
  std::vector<bool> shares(c.buffers.size());
  for (size_t b = 0; b < c.buffers.size(); ++b) shares[b] = !is_persistent(c.buffers[b].kind);
  for (size_t b = 0; b < c.buckets.size(); ++b) {
    if (!c.program.buckets[b].gradients_share_memory) continue;
    for (BufferId buffer : {c.buckets[b].gradients, c.buckets[b].sums})
      if (buffer >= 0) shares[static_cast<size_t>(buffer)] = true;
  }
  return shares;
}

/// Returns the end of the buffers in the arena; Memory::host is the size of the other buffers so far.
int64_t place_persistent(Compiler& c, const std::vector<bool>& shares) {
  int64_t end = 0, host_end = 0;
  for (int kind = 0; is_persistent(static_cast<BufferKind>(kind)); ++kind) {
    for (size_t b = 0; b < c.buffers.size(); ++b) {
      VirtualBuffer& buffer = c.buffers[b];
      if (shares[b] || buffer.kind != static_cast<BufferKind>(kind)) continue;
      int64_t& at = buffer.is_offloaded ? host_end : end;
      buffer.offset = buffer.is_offloaded ? kHostOffset + at : at;
      at += aligned(buffer.bytes);
    }
  }
  c.program.memory.host = host_end;
  return end;
}

/// The bytes in use while each instruction runs. `gradients`: bytes of the gradients that keep their memory.
std::vector<LiveBytes> live_bytes(const Compiler& c, const std::vector<Lifetime>& lives,
                                  const std::vector<BufferId>& buffers, int64_t gradients) {
  std::vector<LiveBytes> live(c.code.size() + 1);
  live[0].gradients = gradients;
  for (BufferId buffer : buffers) {
    const BufferKind kind = c.buffers[buffer].kind;
    const auto bytes = kind == BufferKind::activation  ? &LiveBytes::activations
                       : kind == BufferKind::gradients ? &LiveBytes::gradients
                                                       : &LiveBytes::scratch;
    live[lives[buffer].first].*bytes += c.buffers[buffer].bytes;
    live[lives[buffer].last + 1].*bytes -= c.buffers[buffer].bytes;
  }
  for (size_t i = 1; i < live.size(); ++i) {
    live[i].activations += live[i - 1].activations;
    live[i].gradients += live[i - 1].gradients;
    live[i].scratch += live[i - 1].scratch;
  }
  live.pop_back();
  return live;
}

int64_t most_activations(const std::vector<LiveBytes>& live) {
  int64_t most = 0;
  for (const LiveBytes& now : live) most = std::max(most, now.activations);
  return most;
}

int64_t most_with_gradients(const std::vector<LiveBytes>& live) {
  int64_t most = 0;
  for (const LiveBytes& now : live) most = std::max(most, now.activations + now.gradients);
  return most;
}

/// Sums the bytes of buffers that share no memory.
int64_t bytes_of(const Compiler& c, const std::vector<bool>& shares, std::initializer_list<BufferKind> kinds) {
  int64_t bytes = 0;
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    const bool counts = !shares[b] && !c.buffers[b].is_offloaded &&
                        std::find(kinds.begin(), kinds.end(), c.buffers[b].kind) != kinds.end();
    if (counts) bytes += c.buffers[b].bytes;
  }
  return bytes;
}

/// Fills in the offsets that Program itself records.
void note_offsets(Compiler& c) {
  Program& p = c.program;
  const auto offset = [&](BufferId buffer) { return buffer < 0 ? -1 : c.buffers[buffer].offset; };
  p.scalars_offset = offset(c.scalars);
  p.loss_offset = offset(c.loss);
  for (const Metric& metric : c.graph.metrics)
    p.metrics.push_back({metric.name, metric.scale, !metric.adds_to_loss, metric.adds_to_loss});
  if (c.reports_skips()) p.metrics.push_back({kSkippedMetric, 1, false});
  if (c.reports_overflows()) p.metrics.push_back({kOverflowedMetric, 1, false});
  for (size_t b = 0; b < p.buckets.size(); ++b) {
    p.buckets[b].weights_offset = offset(c.buckets[b].weights);
    p.buckets[b].compute_offset = offset(c.buckets[b].compute);
    p.buckets[b].gradients_offset = offset(c.buckets[b].gradients);
    p.buckets[b].sums_offset = offset(c.buckets[b].sums);
    p.buckets[b].average_offset = offset(c.buckets[b].average);
    p.buckets[b].outer_momentum_offset = offset(c.buckets[b].outer_momentum);
    for (BufferId state : c.buckets[b].optimizer) p.buckets[b].optimizer_offsets.push_back(offset(state));
    for (BufferId scales : c.buckets[b].scales) p.buckets[b].scale_offsets.push_back(offset(scales));
  }
  for (size_t s = 0; s < p.other_states.size(); ++s)
    p.other_states[s].variable.arena_offset = offset(c.other_states[s].first) + c.other_states[s].second;
  for (size_t v = 0; v < p.variables.size(); ++v) {
    Variable& variable = p.variables[v];
    if (variable.bucket < 0) {
      variable.arena_offset = offset(c.states[v]) + c.state_offsets[v];
      continue;
    }
    const Bucket& bucket = p.buckets[variable.bucket];
    if (bucket.weights_offset < 0 || bucket.weights_are_cut()) continue;
    variable.arena_offset = bucket.weights_offset + variable.bucket_element * byte_size(variable.dtype);
  }
}

/// Places buffers that live for a part of the step. Tries both orders and returns the placement with fewer bytes.
Placement place_by_lifetime(const Compiler& c, const std::vector<Lifetime>& lives,
                            const std::vector<BufferId>& buffers) {
  Placement placement = by_first_use(c, lives, buffers);
  if (buffers.size() > kSortBySizeUpTo) return placement;
  Placement other = by_size(c, lives, buffers);
  return other.bytes < placement.bytes ? other : placement;
}

/// Places offloaded activations in the memory of the host, after the state that the program keeps there.
void place_offloaded(Compiler& c, const std::vector<Lifetime>& lives, const std::vector<BufferId>& buffers) {
  const Placement placement = place_by_lifetime(c, lives, buffers);
  for (const BufferId buffer : buffers)
    c.buffers[buffer].offset = kHostOffset + c.program.memory.host + placement.offsets[buffer];
  c.program.memory.host += placement.bytes;
}

}  // namespace

void place_buffers(Compiler& c) {
  const std::vector<bool> shares = find_sharing(c);
  const int64_t persistent = place_persistent(c, shares);
  std::vector<Lifetime> lives = lifetimes(c);
  keep_for_comm(c, lives);
  std::vector<BufferId> buffers, offloaded;
  for (size_t b = 0; b < c.buffers.size(); ++b) {
    if (shares[b] && lives[b].first >= 0)
      (c.buffers[b].is_offloaded ? offloaded : buffers).push_back(static_cast<BufferId>(b));
  }
  const Placement placement = place_by_lifetime(c, lives, buffers);
  for (BufferId buffer : buffers) c.buffers[buffer].offset = persistent + placement.offsets[buffer];
  place_offloaded(c, lives, offloaded);

  Program& p = c.program;
  p.arena_bytes = persistent + placement.bytes;
  p.live = live_bytes(c, lives, buffers, bytes_of(c, shares, {BufferKind::gradients}));
  p.memory.weights = bytes_of(c, shares, {BufferKind::weights, BufferKind::state});
  p.memory.master = bytes_of(c, shares, {BufferKind::master});
  p.memory.optimizer = bytes_of(c, shares, {BufferKind::optimizer});
  p.memory.activations = most_activations(p.live);
  p.memory.gradients = most_with_gradients(p.live) - p.memory.activations;
  p.memory.buffers = 0;
  p.memory.buffers = p.arena_bytes - p.memory.arena();
  note_offsets(c);
  require_arena_limit(c);
}

}  // namespace trainctl
