// Intervals of time, in nanoseconds: sorted and disjoint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace trainctl {

class Stretches {
 public:
  explicit Stretches(std::vector<std::pair<int64_t, int64_t>> any) {
    std::sort(any.begin(), any.end());
    for (const auto& [begin, end] : any) {
      if (end <= begin) continue;
      if (parts_.empty() || begin > parts_.back().second) {
        parts_.emplace_back(begin, end);
      } else {
        parts_.back().second = std::max(parts_.back().second, end);
      }
    }
  }

  int64_t length() const {
    int64_t length = 0;
    for (const auto& [begin, end] : parts_) length += end - begin;
    return length;
  }
  int64_t common(const Stretches& other) const {
    int64_t length = 0;
    for (const auto& [begin, end] : other.parts_) length += common(begin, end);
    return length;
  }
  int64_t common(int64_t begin, int64_t end) const {
    const auto ends_before = [](const auto& part, int64_t t) { return part.second <= t; };
    int64_t length = 0;
    for (auto part = std::lower_bound(parts_.begin(), parts_.end(), begin, ends_before);
         part != parts_.end() && part->first < end; ++part) {
      length += std::min(end, part->second) - std::max(begin, part->first);
    }
    return length;
  }
  Stretches joined(const Stretches& other) const {
    auto all = parts_;
    all.insert(all.end(), other.parts_.begin(), other.parts_.end());
    return Stretches(std::move(all));
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> parts_;
};

}  // namespace trainctl
