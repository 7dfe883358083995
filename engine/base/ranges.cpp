// Lists of numbers as ranges, for reports of many ranks: "0:8", "0:4096:8", or sums such as "0:8:4+0:2" for 0,1,4,5.
#include "engine/base/ranges.h"

#include <charconv>
#include <optional>

#include "engine/base/error.h"

namespace trainctl {
namespace {

struct Run {
  int start = 0, step = 1;
  size_t count = 1;
};

/// The longest run of equal steps from `first` on.
Run run_from(const std::vector<int>& numbers, size_t first) {
  Run run{numbers[first], 1, 1};
  if (first + 1 == numbers.size() || numbers[first + 1] <= numbers[first]) return run;
  run.step = numbers[first + 1] - numbers[first];
  while (first + run.count < numbers.size() && numbers[first + run.count] - numbers[first + run.count - 1] == run.step)
    ++run.count;
  return run;
}

std::string text_of(const Run& run) {
  if (run.count == 1) return std::to_string(run.start);
  const int stop = run.start + run.step * static_cast<int>(run.count - 1) + 1;
  const std::string text = std::to_string(run.start) + ":";
  if (run.step == 1) return text + std::to_string(stop);
  return text + std::to_string(stop - 1 + run.step) + ":" + std::to_string(run.step);
}

/// Returns the runs all of whose sums are `numbers`, the run that changes fastest first: 0,1,4,5 is 0:2 + 0:8:4.
/// nullopt if there are none.
std::optional<std::vector<Run>> as_sums(const std::vector<int>& numbers) {
  const Run fastest = run_from(numbers, 0);
  if (fastest.count == numbers.size()) return std::vector<Run>{fastest};
  if (fastest.count < 2 || numbers.size() % fastest.count != 0) return std::nullopt;
  std::vector<int> blocks;
  for (size_t i = 0; i < numbers.size(); i += fastest.count) {
    for (size_t k = 0; k < fastest.count; ++k)
      if (numbers[i + k] - numbers[i] != numbers[k] - numbers[0]) return std::nullopt;
    blocks.push_back(numbers[i] - numbers[0]);
  }
  std::optional<std::vector<Run>> sums = as_sums(blocks);
  if (sums) sums->insert(sums->begin(), fastest);
  return sums;
}

int number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), "a number of ranges: " + std::string(text));
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

std::vector<int> numbers_of_range(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ':');
  const int start = number(words[0]), stop = words.size() > 1 ? number(words[1]) : start + 1;
  const int step = words.size() > 2 ? number(words[2]) : 1;
  check(step > 0, "ranges go up: " + std::string(text));
  std::vector<int> numbers;
  for (int n = start; n < stop; n += step) numbers.push_back(n);
  return numbers;
}

}  // namespace

std::string range_text(const std::vector<int>& numbers) {
  if (numbers.empty()) return "";
  if (const auto sums = as_sums(numbers)) {
    std::string text;
    for (auto run = sums->rbegin(); run != sums->rend(); ++run) {
      Run shown = *run;
      shown.start = run == sums->rbegin() ? numbers[0] : 0;
      text += (text.empty() ? "" : "+") + text_of(shown);
    }
    return text;
  }
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    Run run = run_from(numbers, first);
    if (run.count == 2) run.count = 1;  // what begins another run is not the end of this one
    text += (text.empty() ? "" : ",") + text_of(run);
    first += run.count;
  }
  return text;
}

std::vector<int> numbers_of(std::string_view ranges) {
  std::vector<int> all;
  if (ranges.empty()) return all;
  for (std::string_view part : split(ranges, ',')) {
    std::vector<int> sums = {0};
    for (std::string_view range : split(part, '+')) {
      std::vector<int> next;
      for (int sum : sums)
        for (int n : numbers_of_range(range)) next.push_back(sum + n);
      sums = std::move(next);
    }
    all.insert(all.end(), sums.begin(), sums.end());
  }
  return all;
}

}  // namespace trainctl
