// Measured numbers in words: durations, and floats that JSON cannot hold.
#pragma once

#include <string>
#include <string_view>

namespace trainctl {

/// "0.62s", "12s", "4m05s", "1h02m", "2d03h": two units at most. Negative or not finite: "?".
std::string format_duration(double seconds);

/// "nan", "inf" or "-inf"; "" for a finite number. The sign of a nan means nothing.
std::string_view not_finite_name(double value);

/// "2.1034", or not_finite_name.
std::string format_loss(double loss);

}  // namespace trainctl
