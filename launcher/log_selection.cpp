// Parses ranks and times from the command line.
#include "launcher/log_selection.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <optional>
#include <stdexcept>
#include <string>

namespace trainctl {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kMostRanks = 1 << 20;
constexpr double kLatestSeconds = 1e9;
constexpr int kLastYear = 2261;  // the last full year in 64-bit nanoseconds

[[noreturn]] void no_ranks(std::string_view text) {
  throw std::invalid_argument("'" + std::string(text) + "' is not a list of ranks; expected one like 0,3-5");
}

double unit_seconds(char unit) {
  switch (unit) {
    case 's':
      return 1;
    case 'm':
      return 60;
    case 'h':
      return 3600;
    case 'd':
      return 86400;
    default:
      return 0;
  }
}

/// "1h30m" in seconds.
std::optional<double> parse_duration(std::string_view text) {
  double total = 0;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    double number = 0;
    const auto [next, error] = std::from_chars(at, end, number, std::chars_format::fixed);
    if (error != std::errc{} || next == end || !(number >= 0)) return std::nullopt;
    const double unit = unit_seconds(*next);
    if (unit == 0) return std::nullopt;
    total += number * unit;
    at = next + 1;
  }
  return text.empty() || total > kLatestSeconds ? std::nullopt : std::optional(total);
}

/// "Z", "+01:00" or "-0130" in seconds east of Greenwich.
std::optional<int> parse_zone(std::string_view text) {
  if (text == "Z" || text == "z") return 0;
  int hours = 0, minutes = 0, length = 0;
  const std::string digits(text.substr(1));
  if (text[0] != '+' && text[0] != '-') return std::nullopt;
  if (std::sscanf(digits.c_str(), "%2d:%2d%n", &hours, &minutes, &length) != 2 &&
      std::sscanf(digits.c_str(), "%2d%2d%n", &hours, &minutes, &length) != 2) {
    length = 0;
    if (std::sscanf(digits.c_str(), "%2d%n", &hours, &length) != 1) return std::nullopt;
  }
  if (length != static_cast<int>(digits.size()) || hours > 23 || minutes > 59) return std::nullopt;
  return (text[0] == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
}

/// Parses "[:SS[.fraction]]" and removes it from the front.
double take_seconds(std::string_view& text) {
  if (text.empty() || text[0] != ':') return 0;
  double seconds = -1;
  const auto [next, error] =
      std::from_chars(text.data() + 1, text.data() + text.size(), seconds, std::chars_format::fixed);
  if (error != std::errc{} || !(seconds >= 0 && seconds < 61)) return -1;
  text.remove_prefix(static_cast<size_t>(next - text.data()));
  return seconds;
}

/// Parses "[YYYY-MM-DD][T| ]HH:MM[:SS][ZONE]" as nanoseconds since 1970. Without a date it is today, without a zone
/// local time. Empty if the text is neither.
std::optional<int64_t> parse_moment(const std::string& text, int64_t now_ns) {
  const time_t now = now_ns / kSecond;
  std::tm moment{};
  localtime_r(&now, &moment);
  moment.tm_hour = moment.tm_min = moment.tm_sec = 0;
  moment.tm_isdst = -1;
  int length = 0, hour = 0, minute = 0, year = 0, month = 0, day = 0;
  std::string_view rest = text;
  const bool has_date = std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &length) == 3;
  if (has_date) {
    if (year < 1970 || year > kLastYear || month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
    moment.tm_year = year - 1900;
    moment.tm_mon = month - 1;
    moment.tm_mday = day;
    rest.remove_prefix(static_cast<size_t>(length));
    if (rest.size() > 1 && (rest[0] == 'T' || rest[0] == ' ')) rest.remove_prefix(1);
  }
  double seconds = 0;
  if (!rest.empty() || !has_date) {
    length = 0;
    if (std::sscanf(std::string(rest).c_str(), "%2d:%2d%n", &hour, &minute, &length) != 2) return std::nullopt;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(length));
    seconds = take_seconds(rest);
    if (seconds < 0) return std::nullopt;
  }
  moment.tm_hour = hour;
  moment.tm_min = minute;
  std::optional<int> zone;
  if (!rest.empty() && !(zone = parse_zone(rest))) return std::nullopt;
  const time_t whole = zone ? timegm(&moment) - *zone : mktime(&moment);
  return whole * kSecond + static_cast<int64_t>(seconds * static_cast<double>(kSecond));
}

}  // namespace

std::vector<int> parse_ranks(std::string_view text) {
  std::vector<int> ranks;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto number = [&] {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0 || value >= kMostRanks) no_ranks(text);
    at = next;
    return value;
  };
  for (;;) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    if (last < first) throw std::invalid_argument("'" + std::string(text) + "': write the lower rank of a range first");
    for (int rank = first; rank <= last; ++rank) ranks.push_back(rank);
    if (at == end) break;
    if (*at++ != ',') no_ranks(text);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

int64_t parse_since(std::string_view text, int64_t now_ns) {
  if (const auto seconds = parse_duration(text)) {
    return std::max<int64_t>(0, now_ns - static_cast<int64_t>(*seconds * static_cast<double>(kSecond)));
  }
  if (const auto moment = parse_moment(std::string(text), now_ns)) return *moment;
  throw std::invalid_argument("'" + std::string(text) +
                              "' is not a time; expected one like 10m, 2h30m, 14:30 or 2026-01-31T14:30:00");
}

}  // namespace trainctl
