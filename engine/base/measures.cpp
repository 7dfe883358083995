// Measured numbers in words: durations, and floats that JSON cannot hold.
#include "engine/base/measures.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace trainctl {
namespace {

/// 245 in minutes and seconds: "4m05s".
std::string two_units(int64_t count, int64_t size, char large, char small) {
  char text[48];
  std::snprintf(text, sizeof text, "%lld%c%02lld%c", static_cast<long long>(count / size), large,
                static_cast<long long>(count % size), small);
  return text;
}

}  // namespace

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e15;  // its minutes fit an int64_t
  if (!(seconds >= 0 && seconds < kLongest)) return "?";
  if (seconds < 9.995) {
    char text[16];
    std::snprintf(text, sizeof text, "%.2fs", seconds);
    return text;
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return std::to_string(whole) + "s";
  if (whole < 3600) return two_units(whole, 60, 'm', 's');
  const int64_t minutes = whole / 60;
  if (minutes < 24 * 60) return two_units(minutes, 60, 'h', 'm');
  return two_units(minutes / 60, 24, 'd', 'h');
}

std::string_view not_finite_name(double value) {
  if (std::isfinite(value)) return "";
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::string format_loss(double loss) {
  if (const std::string_view name = not_finite_name(loss); !name.empty()) return std::string(name);
  char text[352];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.4f", loss);
  return text;
}

}  // namespace trainctl
