// Folds repeated rows of a report: h.0.fc, h.0.act, h.1.fc, h.1.act, … become one block of two rows and its count.
#include "cli/render/fold.h"

#include <algorithm>

#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Repeated blocks of more rows than this are not detected.
constexpr size_t kLongestPeriod = 512;
/// Least lines that a fold must save; smaller folds are harder to read than the rows.
constexpr size_t kFewestSavedLines = 2;

struct Parts {
  std::vector<std::string> texts;  ///< one more than numbers: before, between and after them
  std::vector<int64_t> numbers;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "h.3.fc" -> "h.", 3, ".fc". Digits with leading zeros ("07") are text.
Parts split(const std::string& text) {
  constexpr size_t kMostDigits = 15;
  Parts parts{{""}, {}};
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    const size_t digits = end - at;
    if (digits == 0) {
      parts.texts.back() += text[at++];
    } else if (digits > kMostDigits || (digits > 1 && text[at] == '0')) {
      parts.texts.back() += text.substr(at, digits);
      at = end;
    } else {
      parts.numbers.push_back(std::stoll(text.substr(at, digits)));
      parts.texts.emplace_back();
      at = end;
    }
  }
  return parts;
}

/// The distinct values, in order of appearance.
std::vector<int64_t> distinct(const std::vector<Parts>& names, size_t number) {
  std::vector<int64_t> values;
  for (const Parts& name : names)
    if (std::find(values.begin(), values.end(), name.numbers[number]) == values.end())
      values.push_back(name.numbers[number]);
  return values;
}

/// True if the names are all combinations of the values, the first number slowest.
bool are_all_combinations(const std::vector<Parts>& names, const std::vector<std::vector<int64_t>>& values) {
  size_t combinations = 1;
  for (const auto& of_number : values) {
    combinations *= of_number.size();
    if (combinations > names.size()) return false;
  }
  if (combinations != names.size()) return false;
  for (size_t n = 0; n < names.size(); ++n) {
    size_t rest = n;
    for (size_t i = values.size(); i-- > 0; rest /= values[i].size())
      if (names[n].numbers[i] != values[i][rest % values[i].size()]) return false;
  }
  return true;
}

/// The folds of rows [begin, end), as lines. Every line stands for the same rows of each block around it, which begin
/// at `offsets` from it.
class Folding {
 public:
  explicit Folding(const std::vector<FoldRow>& rows) : rows_(rows) {
    for (const FoldRow& row : rows) texts_.add(row.name, row.facts);
  }

  std::vector<FoldLine> all() {
    fold(0, rows_.size(), {0}, 0);
    return std::move(lines_);
  }

 private:
  void fold(size_t begin, size_t end, const std::vector<size_t>& offsets, int depth) {
    for (size_t at = begin; at < end;) {
      const Repeat repeat = texts_.best_repeat(at, end);
      if (worth(repeat) && fold_block(repeat, offsets, depth)) {
        at += repeat.period * repeat.times;
      } else {
        row(at++, offsets, depth);
      }
    }
  }

  static bool worth(const Repeat& repeat) {
    const size_t heads = repeat.period > 1 ? 1 : 0;
    return repeat.times > 1 && repeat.saved() >= kFewestSavedLines + heads;
  }

  /// False, and no lines, if some names of the block have no pattern.
  bool fold_block(const Repeat& repeat, const std::vector<size_t>& offsets, int depth) {
    std::vector<size_t> inner;
    for (size_t offset : offsets)
      for (size_t time = 0; time < repeat.times; ++time) inner.push_back(offset + time * repeat.period);
    for (size_t i = 0; i < repeat.period; ++i)
      if (!pattern(repeat.first + i, inner)) return false;
    if (repeat.period == 1) {
      row(repeat.first, inner, depth);
      return true;
    }
    FoldLine head{depth, static_cast<int64_t>(repeat.times), head_name(repeat, offsets), {}};
    const size_t before = lines_.size();
    lines_.push_back(std::move(head));
    fold(repeat.first, repeat.first + repeat.period, inner, depth + 1);
    const bool named = std::none_of(lines_.begin() + static_cast<std::ptrdiff_t>(before), lines_.end(),
                                    [](const FoldLine& line) { return line.name.empty(); });
    if (named) return true;
    lines_.resize(before + 1);  // a block in it has no patterns: its rows one by one
    for (size_t i = 0; i < repeat.period; ++i) row(repeat.first + i, inner, depth + 1);
    return true;
  }

  std::optional<std::string> pattern(size_t at, const std::vector<size_t>& offsets) const {
    std::vector<std::string> names;
    for (size_t offset : offsets) names.push_back(rows_[at + offset].name);
    return name_pattern(names);
  }

  void row(size_t at, const std::vector<size_t>& offsets, int depth) {
    FoldLine line{depth, 0, pattern(at, offsets).value_or(""), {}};
    for (size_t offset : offsets) line.rows.push_back(at + offset);
    lines_.push_back(std::move(line));
  }

  /// The common prefixes of the names in the first and in the last occurrence of a block: "h.0 … h.11". If the names
  /// have no common prefix, the first and the last name.
  std::string head_name(const Repeat& repeat, const std::vector<size_t>& offsets) const {
    const size_t last = repeat.first + repeat.period * (repeat.times - 1);
    const std::string prefix = block_name(repeat.first, repeat.period, last);
    std::vector<std::string> names;
    for (const auto& [at, fallback] : {std::pair{repeat.first, repeat.first}, {last, last + repeat.period - 1}}) {
      std::vector<std::string> each;
      for (size_t offset : offsets)
        each.push_back(prefix.empty() ? rows_[fallback + offset].name
                                      : rows_[at + offset].name.substr(0, end_of_number(at + offset, prefix)));
      names.push_back(name_pattern(each).value_or(each.front()));
    }
    return names[0] + " … " + names[1];
  }

  /// The name of the block that begins at `first`, up to the number that counts it: "h.0"; "" if its rows have
  /// different ones.
  std::string block_name(size_t first, size_t period, size_t other) const {
    const std::vector<int64_t>&here = texts_.numbers(first), &there = texts_.numbers(other);
    size_t counted = 0;
    while (counted < here.size() && here[counted] == there[counted]) ++counted;
    const Parts parts = split(rows_[first].name);
    std::string name;
    for (size_t i = 0; i <= counted && i < parts.numbers.size(); ++i)
      name += parts.texts[i] + std::to_string(parts.numbers[i]);
    for (size_t i = 0; i < period; ++i) {
      const std::string& row = rows_[first + i].name;
      if (row != name && !row.starts_with(name + ".")) return "";
    }
    return name;
  }

  /// The end of the name of row `at` after as many numbers as `prefix` has.
  size_t end_of_number(size_t at, const std::string& prefix) const {
    const size_t count = split(prefix).numbers.size();
    const Parts parts = split(rows_[at].name);
    size_t end = 0;
    for (size_t i = 0; i < count; ++i) end += parts.texts[i].size() + std::to_string(parts.numbers[i]).size();
    return end;
  }

  const std::vector<FoldRow>& rows_;
  NumberedTexts texts_;
  std::vector<FoldLine> lines_;
};

}  // namespace

void NumberedTexts::add(const std::string& text, const std::string& facts) {
  Parts parts = split(text);
  std::string skeleton = facts;
  for (const std::string& piece : parts.texts) skeleton += '\0' + piece;  // never part of a name
  skeletons_.push_back(ids_.try_emplace(std::move(skeleton), static_cast<int>(ids_.size())).first->second);
  numbers_.push_back(std::move(parts.numbers));
}

bool NumberedTexts::in_step(size_t first, size_t period, size_t time) const {
  for (size_t i = first; i < first + period; ++i) {
    const size_t at = i + time * period;
    if (skeletons_[at] != skeletons_[i]) return false;
    for (size_t n = 0; time > 1 && n < numbers_[i].size(); ++n) {
      const int64_t step = numbers_[i + period][n] - numbers_[i][n];
      if (numbers_[at][n] != numbers_[i][n] + static_cast<int64_t>(time) * step) return false;
    }
  }
  return true;
}

size_t NumberedTexts::times(size_t first, size_t period, size_t end) const {
  size_t count = 1;
  while (first + (count + 1) * period <= end && in_step(first, period, count)) ++count;
  return count;
}

Repeat NumberedTexts::best_repeat(size_t first, size_t end) const {
  Repeat best{first, 1, 1};
  for (size_t period = 1; period <= kLongestPeriod && first + 2 * period <= end; ++period) {
    const Repeat repeat{first, period, times(first, period, end)};
    if (repeat.saved() > best.saved()) best = repeat;
  }
  return best;
}

std::vector<FoldLine> fold_rows(const std::vector<FoldRow>& rows) { return Folding(rows).all(); }

std::optional<std::string> name_pattern(const std::vector<std::string>& names) {
  std::vector<Parts> all;
  for (const std::string& name : names) all.push_back(split(name));
  for (const Parts& parts : all)
    if (parts.texts != all.front().texts) return std::nullopt;
  std::vector<std::vector<int64_t>> values;
  for (size_t n = 0; n < all.front().numbers.size(); ++n) values.push_back(distinct(all, n));
  if (!are_all_combinations(all, values)) return std::nullopt;
  std::string text = all.front().texts.front();
  for (size_t n = 0; n < values.size(); ++n) {
    const std::string ranges = number_ranges(values[n]);
    text += (values[n].size() == 1 ? ranges : "{" + ranges + "}") + all.front().texts[n + 1];
  }
  return text;
}

std::string number_ranges(const std::vector<int64_t>& numbers) {
  constexpr size_t kShortestRun = 3;
  std::vector<std::string> words;
  for (size_t first = 0; first < numbers.size();) {
    size_t end = first + 1;
    const int64_t step = end < numbers.size() ? numbers[end] - numbers[first] : 0;
    while (step > 0 && end < numbers.size() && numbers[end] - numbers[end - 1] == step) ++end;
    if (end - first < kShortestRun) {
      words.push_back(std::to_string(numbers[first++]));
      continue;
    }
    words.push_back(std::to_string(numbers[first]) + "-" + std::to_string(numbers[end - 1]) +
                    (step == 1 ? "" : ":" + std::to_string(step)));
    first = end;
  }
  return join(words, ",");
}

}  // namespace trainctl
