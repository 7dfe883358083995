// Byte-pair encoding: which pairs of tokens merge, in which order, and the merging of a sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainctl {

/// A hash table from pairs of tokens to their rank and the token that they become.
class MergeTable {
 public:
  struct Merge {
    uint64_t pair = kNone;
    uint32_t rank = 0;
    int32_t token = 0;
  };
  explicit MergeTable(size_t merges);
  /// A pair that is there already gets the new rank.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t token);
  /// Null if the pair does not merge.
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t pair = key(left, right);
    for (size_t at = place(pair);; at = (at + 1) & mask_) {
      if (table_[at].pair == pair) return &table_[at];
      if (table_[at].pair == kNone) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15ULL >> 32) & mask_; }

  std::vector<Merge> table_;
  size_t mask_;
};

/// Merges the pair of the lowest rank, the leftmost first, until no pair merges.
void merge_tokens(const MergeTable& merges, std::vector<int32_t>& tokens, size_t first);

}  // namespace trainctl
