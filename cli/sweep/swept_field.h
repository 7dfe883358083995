// The fields that a sweep varies, and the resulting jobs.
//
//   field=a,b,c          these values; commas inside [] and {} do not separate
//   field=64..512*2      64, 128, 256, 512
//   field=0..0.3+0.1     0, 0.1, 0.2, 0.3
//   field=1..9           random sweeps only: any value between; an integer if both ends are
//   field=1e-4..1e-1*    random sweeps only: the same, uniform in its logarithm
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace trainctl {

struct SweptField {
  std::string name;                 ///< "optimizer.learning_rate"
  std::vector<std::string> values;  ///< empty: drawn from [low, high]
  double low = 0, high = 0;
  bool is_integral = false, is_logarithmic = false;
};

/// Throws SpecError that names the word.
SweptField parse_swept_field(const std::string& word);

/// One override for each field.
using TrialFields = std::vector<std::string>;

/// All combinations; the last field varies fastest. Throws SpecError for a field without steps, and for too many
/// trials.
std::vector<TrialFields> grid(const std::vector<SweptField>& fields);

/// A number in [0, 1) that is the same with every library, unlike that of std::uniform_real_distribution.
double draw_unit(std::mt19937_64& random);

/// Trial k is a function of the fields, the seed and k, so a longer sweep begins with the trials of a shorter one.
std::vector<TrialFields> random_trials(const std::vector<SweptField>& fields, int64_t count, uint64_t seed);

}  // namespace trainctl
