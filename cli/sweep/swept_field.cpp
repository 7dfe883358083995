// The fields that a sweep varies, and the resulting jobs.
#include "cli/sweep/swept_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <regex>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr size_t kMostTrials = 10'000;

/// Removes the rounding error of repeated sums and products: 0.30000000000000004 becomes 0.3.
std::string text_of(double value) { return fmt::format("{:.12g}", value); }

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// The values of LOW..HIGH+STEP and LOW..HIGH*FACTOR.
std::vector<std::string> stepped(const std::string& word, double low, double high, bool multiplies, double step) {
  if (multiplies ? step <= 1 || low <= 0 : step <= 0)
    throw SpecError({}, word, "the range never reaches its end",
                    multiplies ? "start above 0 and use a factor above 1: 64..512*2" : "use a step above 0: 0..1+0.25");
  std::vector<std::string> values;
  for (int i = 0; values.size() <= kMostTrials; ++i) {
    const double value = multiplies ? low * std::pow(step, i) : low + step * i;
    if (value > high * (1 + 1e-9) + (multiplies ? 0 : step * 1e-9)) break;
    values.push_back(text_of(value));
  }
  return values;
}

void read_range(const std::string& word, const std::smatch& range, SweptField& field) {
  field.low = std::stod(range[1]);
  field.high = std::stod(range[2]);
  if (field.high < field.low)
    throw SpecError({}, word, "the end of the range is below its start", "write the smaller number first");
  if (range[4].matched) {
    field.values = stepped(word, field.low, field.high, range[3] == "*", std::stod(range[4]));
    return;
  }
  field.is_logarithmic = range[3] == "*";
  if (range[3] == "+") throw SpecError({}, word, "the range has no step", "e.g. 0..1+0.25");
  if (field.is_logarithmic && field.low <= 0)
    throw SpecError({}, word, "a logarithmic range must start above 0", "e.g. 1e-4..1e-1*");
  const auto is_whole = [](const std::string& text) {
    return text.find_first_not_of("+-0123456789") == std::string::npos;
  };
  field.is_integral = is_whole(range[1]) && is_whole(range[2]);
}

std::string draw(const SweptField& field, std::mt19937_64& random) {
  const double at = draw_unit(random);
  if (!field.values.empty()) return field.values[static_cast<size_t>(at * static_cast<double>(field.values.size()))];
  const double above = field.is_integral && !field.is_logarithmic ? 1 : 0;
  const double value = field.is_logarithmic
                           ? std::exp(std::log(field.low) + at * (std::log(field.high) - std::log(field.low)))
                           : field.low + at * (field.high + above - field.low);
  return field.is_integral ? text_of(std::min(field.is_logarithmic ? std::round(value) : std::floor(value), field.high))
                           : fmt::format("{:.6g}", value);
}

}  // namespace

double draw_unit(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

SweptField parse_swept_field(const std::string& word) {
  static const std::string kNumber = R"(([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?))";
  static const std::regex kRange(kNumber + R"(\.\.)" + kNumber + "(?:([*+])" + kNumber + "?)?");
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
    throw SpecError({}, word, "expected the form field=values",
                    "e.g. optimizer.learning_rate=1e-3,3e-3 or 'vars.d=64..512*2'");
  SweptField field{.name = word.substr(0, equals)};
  const std::string values = word.substr(equals + 1);
  std::smatch range;
  try {
    if (std::regex_match(values, range, kRange))
      read_range(word, range, field);
    else
      field.values = split_at_commas(values);
  } catch (const std::out_of_range&) {  // of stod
    throw SpecError({}, word, "a number of the range is too large");
  }
  for (const std::string& value : field.values)
    if (value.empty()) throw SpecError({}, word, "a value is missing between commas");
  return field;
}

std::vector<TrialFields> grid(const std::vector<SweptField>& fields) {
  std::vector<TrialFields> trials(1);
  for (const SweptField& field : fields) {
    if (field.values.empty())
      throw SpecError({}, field.name, "each range of a grid needs a step", "e.g. 64..512*2, or use --random 20");
    if (trials.size() * field.values.size() > kMostTrials)
      throw SpecError({}, field.name, fmt::format("the grid has more than {} points", kMostTrials),
                      "use --random 100 to sample some of them");
    std::vector<TrialFields> longer;
    for (const TrialFields& trial : trials)
      for (const std::string& value : field.values) {
        longer.push_back(trial);
        longer.back().push_back(field.name + "=" + value);
      }
    trials = std::move(longer);
  }
  return trials;
}

std::vector<TrialFields> random_trials(const std::vector<SweptField>& fields, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TrialFields> trials(static_cast<size_t>(count));
  for (TrialFields& trial : trials)
    for (const SweptField& field : fields) trial.push_back(field.name + "=" + draw(field, random));
  return trials;
}

}  // namespace trainctl
