// Sums over times to which intervals are added, and the largest of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace trainctl {

/// A binary tree over the times; adding and undoing take as many steps as its depth, the largest sum none.
class Peaks {
 public:
  explicit Peaks(const std::vector<int64_t>& sums) {
    while (leaves_ < sums.size()) leaves_ *= 2;
    most_.assign(2 * leaves_, kNone);
    added_.assign(2 * leaves_, 0);
    for (size_t t = 0; t < sums.size(); ++t) most_[leaves_ + t] = sums[t];
    for (size_t n = leaves_; n-- > 1;) most_[n] = std::max(most_[2 * n], most_[2 * n + 1]);
  }

  /// To times first, ..., end - 1.
  void add(int first, int end, int64_t amount) {
    if (amount == 0 || first >= end) return;
    size_t low = static_cast<size_t>(first) + leaves_, high = static_cast<size_t>(end) + leaves_;
    const size_t left = low, right = high - 1;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) raise(low++, amount);
      if (high % 2 == 1) raise(--high, amount);
    }
    renew(left);
    renew(right);
  }

  int64_t most() const { return most_[1]; }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min() / 2;

  void raise(size_t node, int64_t amount) {
    most_[node] += amount;
    added_[node] += amount;
  }

  void renew(size_t node) {
    for (node /= 2; node >= 1; node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }

  size_t leaves_ = 1;
  std::vector<int64_t> most_, added_;  // of a node's times, without what is added to nodes above it
};

}  // namespace trainctl
