// Runs a program in list order and keeps, for every byte, what was last written there: the tensor and its
// micro-batch. An instruction must find the value that it names.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "engine/compile/arena_map.h"
#include "engine/compile/order/accesses.h"
#include "engine/compile/verify/verify.h"

namespace trainctl {
namespace {

constexpr int64_t kContentFloat = byte_size(DType::f32);
constexpr int kNothing = -1, kInitial = -2;

struct Content {
  int writer = kNothing;
  int name = -1;
  int micro_batch = -1;
};

class Contents {
 public:
  Contents(const Program& program, Faults& faults)
      : p_(program), faults_(faults), regions_(persistent_regions(program)) {
    for (const Variable& v : p_.variables) {
      if (v.bucket < 0) continue;
      const std::string& bucket = p_.buckets[v.bucket].name;
      same_as_[v.name] = name_id("weights." + bucket);
      same_as_["grad." + v.name] = name_id("grad." + bucket);
    }
    for (const Bucket& b : p_.buckets) {
      for (int i = 0; i < b.pieces; ++i) same_as_["grad." + b.piece(i).name] = name_id("grad." + b.name);
    }
    for (const Bucket& b : p_.buckets)
      if (b.gradients_share_memory) note_step_gradients(b);
    for (const Region& region : regions_) {
      if (region.holds_from_start) hold(region.begin, region.end);
    }
    hold_gradient_padding();
  }

  /// Steps through the instructions: checks what each reads, then records what it writes.
  void verify() {
    for (int i = 0; i < static_cast<int>(p_.instructions.size()); ++i) {
      const Instruction& code = p_.instructions[i];
      const std::vector<MemoryAccess> list = accesses(code);
      for (const MemoryAccess& access : list) {
        if (access.reads) read(i, code, access);
      }
      for (const MemoryAccess& access : list) {
        if (!access.writes) continue;
        const Content content{i, id_of(*access.operand), code.micro_batch};
        bytes_.for_each(access.begin(), access.end(), [&](Content& c) { c = content; });
      }
    }
    if (p_.loss_offset >= 0) {
      for (size_t i = 0; i <= p_.metrics.size(); ++i) {
        const int64_t at = p_.loss_offset + static_cast<int64_t>(i) * kContentFloat;
        const std::string what = i == 0 ? "the loss" : "the metric " + p_.metrics[i - 1].name;
        bytes_.for_each(at, at + kContentFloat, [&](Content& c) {
          if (c.writer == kNothing) faults_.push_back({p_.rank, -1, what + " is never written"});
        });
      }
    }
  }

 private:
  void hold(int64_t begin, int64_t end) {
    bytes_.for_each(begin, end, [](Content& c) { c.writer = kInitial; });
  }

  /// No instruction writes the padding of a bucket: it starts as zero and stays zero.
  void hold_gradient_padding() {
    std::vector<std::vector<std::pair<int64_t, int64_t>>> used(p_.buckets.size());
    for (const Variable& v : p_.variables)
      if (v.bucket >= 0)
        used[static_cast<size_t>(v.bucket)].emplace_back(v.bucket_element, v.bucket_element + num_elements(v.shape));
    for (size_t b = 0; b < p_.buckets.size(); ++b) {
      const Bucket& bucket = p_.buckets[b];
      if (bucket.gradients_offset < 0 || bucket.level >= 2 || bucket.gradients_share_memory) continue;
      std::sort(used[b].begin(), used[b].end());
      used[b].emplace_back(bucket.elements, bucket.elements);
      int64_t at = 0;
      for (const auto& [begin, end] : used[b]) {
        const auto hold_padding = [&, begin = begin](int64_t offset, int64_t size) {
          if (offset >= 0) hold(offset + at * size, offset + begin * size);
        };
        hold_padding(bucket.gradients_offset, byte_size(bucket.kept_type));
        hold_padding(bucket.sums_offset, kContentFloat);
        at = end;
      }
    }
  }

  void note_step_gradients(const Bucket& b) {
    std::vector<Region>& regions = step_gradients_[name_id("grad." + b.name)];
    if (b.gradients_offset >= 0)
      regions.push_back({b.name, b.gradients_offset, b.gradients_offset + gradient_bytes(b)});
    if (b.sums_offset >= 0) regions.push_back({b.name, b.sums_offset, b.sums_offset + b.elements * kContentFloat});
  }

  bool is_persistent(int64_t at) const {
    const auto after =
        std::partition_point(regions_.begin(), regions_.end(), [at](const Region& r) { return r.end <= at; });
    return after != regions_.end() && after->begin <= at;
  }

  /// True if the value of this name at this offset is a sum over all micro-batches of a step.
  bool adds_up(int name, int64_t at) const {
    const auto found = step_gradients_.find(name);
    if (found == step_gradients_.end()) return false;
    return std::any_of(found->second.begin(), found->second.end(),
                       [at](const Region& r) { return r.begin <= at && at < r.end; });
  }

  /// Checks one read: all bytes must have been written, and must hold the tensor and micro-batch that the operand
  /// names.
  void read(int i, const Instruction& code, const MemoryAccess& access) {
    const bool by_name = code.opcode != Opcode::print && !is_persistent(access.begin());
    const int name = by_name ? id_of(*access.operand) : -1;
    const bool of_step = by_name && adds_up(name, access.begin());
    bool is_reported = false;
    bytes_.for_each(access.begin(), access.end(), [&](Content& c) {
      if (is_reported) return;
      const auto what = [&] { return code.name + " reads " + access.operand->tensor; };
      if (c.writer == kNothing) {
        faults_.push_back({p_.rank, i, what() + " before anything has been written there"});
        is_reported = true;
        return;
      }
      const bool other_time = c.micro_batch >= 0 && code.micro_batch >= 0 && c.micro_batch != code.micro_batch;
      if (!by_name || (c.name == name && (of_step || !other_time))) return;
      const std::string of = c.micro_batch < 0 ? "" : " of micro-batch " + std::to_string(c.micro_batch);
      faults_.push_back({p_.rank, i,
                         what() + ", but instruction " + std::to_string(c.writer) + " (" +
                             p_.instructions[c.writer].name + ") has written " + names_[c.name] + of +
                             " to the same place"});
      is_reported = true;
    });
  }

  int name_id(const std::string& name) {
    const auto [entry, is_new] = ids_.try_emplace(name, static_cast<int>(names_.size()));
    if (is_new) names_.push_back(name);
    return entry->second;
  }

  int id_of(const Operand& operand) {
    const auto same = same_as_.find(operand.tensor);
    if (same != same_as_.end()) return same->second;
    // Bytes in another format are another value, unless they are the same in both.
    const bool reordered =
        operand.format == Format::channels_last && !same_in_both_formats(operand.shape, operand.format);
    return name_id(reordered ? operand.tensor + " channels_last" : operand.tensor);
  }

  const Program& p_;
  Faults& faults_;
  const std::vector<Region> regions_;
  std::unordered_map<int, std::vector<Region>> step_gradients_;  // by name: where gradients add up in shared memory
  std::unordered_map<std::string, int> ids_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> same_as_;  // parameter or gradient -> its bucket
  ArenaMap<Content> bytes_;
};

}  // namespace

void verify_contents(const Program& program, Faults& faults) { Contents(program, faults).verify(); }

}  // namespace trainctl
