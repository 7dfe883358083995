// The distribution of the values of a tensor: a count for each range of floats with the same sign, exponent and first
// three bits of the fraction, so 8 ranges per octave. The index of a value's range is a shift of its bits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

class Histogram {
 public:
  void add(std::span<const float> values);
  /// Adds other values of the same tensor: parts on several ranks add up to the whole.
  void add(const Histogram& other);

  int64_t count() const { return count_; }            ///< number of finite values
  int64_t not_finite() const { return not_finite_; }  ///< nan and infinite values, which are in no range
  double min() const { return min_; }                 ///< 0 if there are no finite values; so is max
  double max() const { return max_; }
  double sum() const { return sum_; }
  double sum_of_squares() const { return sum_of_squares_; }

  /// The count of the values in [the limit of the bucket before it, limit).
  struct Bucket {
    double limit = 0;
    int64_t count = 0;
  };
  /// Returns the buckets in ascending order. Adjacent ranges without values are one bucket; those at the two ends are
  /// left out.
  std::vector<Bucket> buckets() const;

  friend bool operator==(const Histogram&, const Histogram&) = default;

 private:
  friend std::string to_bytes(const std::map<std::string, Histogram>& histograms);
  friend std::map<std::string, Histogram> histograms_of(std::string_view bytes);

  int64_t count_ = 0, not_finite_ = 0;
  double min_ = 0, max_ = 0, sum_ = 0, sum_of_squares_ = 0;
  std::map<int32_t, int64_t> ranges_;  ///< index -> values; negative values have negative indices
};

/// By the tensors' names, as one rank sends them to another.
std::string to_bytes(const std::map<std::string, Histogram>& histograms);
std::map<std::string, Histogram> histograms_of(std::string_view bytes);

}  // namespace trainctl
