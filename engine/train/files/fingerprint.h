// Fingerprints of tensors: a digest of the bits, the norm, and a few projections, from which the distance of two
// tensors can be estimated. Those of the parts of a tensor add up to that of the whole, in any order and under any
// plan.
//
//   digest       sum over elements i of mix(i, bits of x[i]), modulo 2^64
//   squares      sum of x[i]^2
//   projections  sum of s[k, i] x[i], with a random sign s[k, i]: (p - q)^2 of two tensors is on average |x - y|^2
//
// fingerprints.jsonl has a line for each step that was fingerprinted:
//   {"step": 20, "tensors": {"weight/fc1.weight": ["9f8600a1b2c3d4e5", squares, p0, …, p7], …}}
// A restarted run may repeat steps; the last line of a step counts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace trainctl {

inline constexpr size_t kProjections = 8;

struct Fingerprint {
  uint64_t digest = 0;
  double squares = 0;
  std::array<double, kProjections> projections{};

  /// Adds consecutive elements of the tensor, starting with element `first`.
  void add(int64_t first, std::span<const float> values);
  void add(const Fingerprint& other);
  double norm() const;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Returns whether the tensors have the same bits.
inline bool same_bits(const Fingerprint& a, const Fingerprint& b) { return a.digest == b.digest; }
/// An estimate of |a - b| / |b|, to within a factor of about two; infinite if one of them is not finite.
double relative_distance(const Fingerprint& a, const Fingerprint& b);

/// By "weight/fc1.weight", "gradient/fc1.weight", "momentum/fc1.weight".
using Fingerprints = std::map<std::string, Fingerprint>;

std::string to_bytes(const Fingerprints& fingerprints);
Fingerprints fingerprints_of_bytes(std::string_view bytes);

/// A line of fingerprints.jsonl, with its newline.
std::string fingerprint_line(int64_t step, const Fingerprints& fingerprints);
/// Returns the fingerprints of each step. An unfinished last line is ignored. Throws EnvError if the file cannot be
/// read or has another line that is not JSON of this kind.
std::map<int64_t, Fingerprints> read_fingerprints(const std::string& path);

}  // namespace trainctl
