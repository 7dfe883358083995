// Prints how good the answers of a network are, as tables.
#include "cli/render/quality_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "cli/text/table.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// Classes of a matrix that is shown whole.
constexpr size_t kMostMatrixColumns = 20;
/// Rows of the table of classes, and of the table of confusions.
constexpr size_t kMostClasses = 40, kMostConfusions = 10;

std::string share(double value) { return fmt::format("{:.4f}", value); }

std::vector<std::string> class_row(const ClassQuality& one) {
  return {printable(one.name), with_commas(one.samples), share(one.precision()), share(one.recall()), share(one.f1())};
}

/// All classes, or those with the lowest F1.
std::string class_table(const Quality& quality, size_t width) {
  std::vector<const ClassQuality*> shown;
  for (const ClassQuality& one : quality.classes) shown.push_back(&one);
  const bool is_cut = shown.size() > kMostClasses;
  if (is_cut) {
    std::stable_sort(shown.begin(), shown.end(), [](const auto* a, const auto* b) { return a->f1() < b->f1(); });
    shown.resize(kMostClasses);
  }
  Table table({"class", ">samples", ">precision", ">recall", ">f1"});
  for (const ClassQuality* one : shown) table.add(class_row(*one));
  const double count = static_cast<double>(quality.classes.size());
  std::array<double, 3> means{};
  int64_t samples = 0;
  for (const ClassQuality& one : quality.classes) {
    samples += one.samples;
    means[0] += one.precision() / count;
    means[1] += one.recall() / count;
    means[2] += one.f1() / count;
  }
  if (quality.classes.size() > 1)
    table.add({"mean", with_commas(samples), share(means[0]), share(means[1]), share(means[2])});
  const std::string title =
      is_cut ? fmt::format("classes with the lowest F1, {} of {}\n", shown.size(), quality.classes.size())
             : "classes\n";
  return title + table.str(2, width);
}

std::string matrix(const Quality& quality, size_t width) {
  const bool is_yes_no = quality.classes.size() == 1;  // of one output: no, then yes
  const auto name = [&](size_t c) {
    return is_yes_no ? std::string(c == 0 ? "no" : "yes") : printable(quality.classes[c].name);
  };
  std::vector<std::string> titles = {"label"};
  for (size_t c = 0; c < quality.confusion.size(); ++c) titles.push_back(">" + name(c));
  Table table(titles);
  for (size_t row = 0; row < quality.confusion.size(); ++row) {
    std::vector<std::string> cells = {name(row)};
    for (const int64_t count : quality.confusion[row]) cells.push_back(count == 0 ? "-" : with_commas(count));
    table.add(std::move(cells));
  }
  return "confusion matrix: a row per label, a column per answer\n" + table.str(2, width);
}

std::string largest_confusions(const Quality& quality, size_t width) {
  struct Confusion {
    int64_t count;
    size_t label, answer;
  };
  std::vector<Confusion> all;
  for (size_t label = 0; label < quality.confusion.size(); ++label)
    for (size_t answer = 0; answer < quality.confusion.size(); ++answer)
      if (label != answer && quality.confusion[label][answer] > 0)
        all.push_back({quality.confusion[label][answer], label, answer});
  if (all.empty()) return "";
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  if (all.size() > kMostConfusions) all.resize(kMostConfusions);
  Table table({"label", "answer", ">samples"});
  for (const Confusion& one : all)
    table.add({printable(quality.classes[one.label].name), printable(quality.classes[one.answer].name),
               with_commas(one.count)});
  return "most frequent confusions\n" + table.str(2, width);
}

/// The name of a measure as users write it: abbreviations are in capitals.
std::string shown_name(const std::string& name) {
  if (name == "f1") return "mean F1";
  if (name.size() > 4) return name;
  std::string capitals = name;
  for (char& c : capitals) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return capitals;
}

}  // namespace

std::string quality_text(const Quality& quality, size_t width) {
  if (quality.samples == 0) return "";
  std::string text;
  if (!quality.classes.empty()) text += "\n" + class_table(quality, width);
  if (!quality.confusion.empty())
    text += "\n" + (quality.confusion.size() <= kMostMatrixColumns ? matrix(quality, width)
                                                                   : largest_confusions(quality, width));
  std::vector<std::string> values;
  for (const auto& [name, value] : quality.values) values.push_back(fmt::format("{} {:.4f}", shown_name(name), value));
  return text + (text.empty() ? "" : "\n") + join(values) + "\n";
}

}  // namespace trainctl
