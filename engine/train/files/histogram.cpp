// Index of a range: the upper 12 bits of a float without its sign, from 0 for those next to zero on. A negative value
// has -1 - the index of its absolute value, so that indices ascend with the values.
#include "engine/train/files/histogram.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

namespace trainctl {
namespace {

constexpr int kDropped = 20;                              // bits of the fraction in which values of a range differ
constexpr uint32_t kInfinity = 0x7f80'0000U >> kDropped;  // the first index that no finite value has

/// The least absolute value of range `index`; 2^128 for the first range after the largest float.
double lower_end(uint32_t index) {
  return index >= kInfinity ? std::ldexp(1.0, 128) : static_cast<double>(std::bit_cast<float>(index << kDropped));
}

double lower_end_of(int32_t index) {
  return index >= 0 ? lower_end(static_cast<uint32_t>(index)) : -lower_end(static_cast<uint32_t>(-index));
}

}  // namespace

void Histogram::add(std::span<const float> values) {
  std::array<int64_t, size_t{2} * kInfinity> counts{};  // positive values, then negative ones
  double sum = 0, squares = 0;
  float least = INFINITY, most = -INFINITY;
  int64_t finite = 0;
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), index = (bits & 0x7fff'ffffU) >> kDropped;
    if (index >= kInfinity) continue;
    ++finite;
    ++counts[index + (bits >> 31) * kInfinity];
    const auto exact = static_cast<double>(value);
    sum += exact;
    squares += exact * exact;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  Histogram added;
  added.count_ = finite;
  added.not_finite_ = static_cast<int64_t>(values.size()) - finite;
  added.sum_ = sum;
  added.sum_of_squares_ = squares;
  if (finite > 0) added.min_ = static_cast<double>(least), added.max_ = static_cast<double>(most);
  for (uint32_t i = 0; i < kInfinity; ++i) {
    if (counts[i] > 0) added.ranges_[static_cast<int32_t>(i)] = counts[i];
    if (counts[kInfinity + i] > 0) added.ranges_[-1 - static_cast<int32_t>(i)] = counts[kInfinity + i];
  }
  add(added);
}

void Histogram::add(const Histogram& other) {
  if (other.count_ > 0) {
    min_ = count_ > 0 ? std::min(min_, other.min_) : other.min_;
    max_ = count_ > 0 ? std::max(max_, other.max_) : other.max_;
  }
  count_ += other.count_;
  not_finite_ += other.not_finite_;
  sum_ += other.sum_;
  sum_of_squares_ += other.sum_of_squares_;
  for (const auto& [index, values] : other.ranges_) ranges_[index] += values;
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  std::vector<Bucket> buckets;
  int32_t next = 0;
  for (const auto& [index, values] : ranges_) {
    // The reader takes the limit before a bucket as its other end.
    if (buckets.empty() || index > next) buckets.push_back({lower_end_of(index), 0});
    next = index + 1;
    buckets.push_back({lower_end_of(next), values});
  }
  return buckets;
}

std::string to_bytes(const std::map<std::string, Histogram>& histograms) {
  auto json = nlohmann::json::object();
  for (const auto& [name, h] : histograms)
    json[name] = {h.count_, h.not_finite_, h.min_, h.max_, h.sum_, h.sum_of_squares_, h.ranges_};
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

std::map<std::string, Histogram> histograms_of(std::string_view bytes) {
  std::map<std::string, Histogram> histograms;
  const nlohmann::json json = nlohmann::json::from_cbor(bytes.begin(), bytes.end());
  for (const auto& [name, fields] : json.items()) {
    Histogram& h = histograms[name];
    h.count_ = fields.at(0).get<int64_t>();
    h.not_finite_ = fields.at(1).get<int64_t>();
    h.min_ = fields.at(2).get<double>();
    h.max_ = fields.at(3).get<double>();
    h.sum_ = fields.at(4).get<double>();
    h.sum_of_squares_ = fields.at(5).get<double>();
    h.ranges_ = fields.at(6).get<std::map<int32_t, int64_t>>();
  }
  return histograms;
}

}  // namespace trainctl
