// The schedule of a step as a drawing: one row per stage, one column per unit of time (a backward takes two).
#include "cli/render/schedule_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/render/fold.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Activity per stage in one unit of time: a task, "--" while a backward continues, or "." for nothing.
struct Slot {
  std::vector<std::string> of_stages;
};

struct Drawn {
  size_t stages = 0;
  std::vector<Slot> slots;
  bool has_backward = false, splits_backward = false;
};

/// Places each task at its time.
Drawn slots_of(const Json& tasks) {
  Drawn drawn;
  drawn.stages = tasks.size();
  size_t length = 0;
  for (const Json& of_stage : tasks) length = std::max(length, of_stage["ends"].back().get<size_t>());
  drawn.slots.assign(length, Slot{std::vector<std::string>(drawn.stages, ".")});
  for (size_t s = 0; s < drawn.stages; ++s) {
    for (size_t t = 0; t < tasks[s]["tasks"].size(); ++t) {
      const std::string task = tasks[s]["tasks"][t].get<std::string>();
      drawn.has_backward |= task[0] == 'B';
      drawn.splits_backward |= task[0] == 'W';
      const size_t start = tasks[s]["starts"][t], end = tasks[s]["ends"][t];
      for (size_t at = start; at < end; ++at) drawn.slots[at].of_stages[s] = at == start ? task : "--";
    }
  }
  return drawn;
}

std::string idle_line(const Drawn& drawn) {
  if (drawn.stages <= 1 || drawn.slots.empty()) return "";
  size_t idle = 0;
  for (const Slot& slot : drawn.slots) idle += std::count(slot.of_stages.begin(), slot.of_stages.end(), ".");
  return fmt::format("  idle {:.0f}%{}\n",
                     100.0 * static_cast<double>(idle) / static_cast<double>(drawn.slots.size() * drawn.stages),
                     drawn.splits_backward ? ", where B and W each take as long as F"
                     : drawn.has_backward  ? ", where B takes as long as two F"
                                           : "");
}

/// A column of the drawing: the cells of all stages, as wide as `width`.
struct Column {
  std::vector<std::string> cells;
  size_t width = 0;
};

size_t widest(const std::vector<std::string>& cells) {
  size_t width = 0;
  for (const std::string& cell : cells) width = std::max(width, cell.size());
  return width;
}

Column column_of(const Slot& slot, size_t width) { return {slot.of_stages, width + 1}; }

Column mark(const std::string& text, size_t stages) {
  return {std::vector<std::string>(stages, text), text.size() + (text == "[" ? 0 : 1)};
}

/// Returns whether each repetition has the tasks of the next micro-batches.
bool goes_up_by_one(const NumberedTexts& texts, const Repeat& repeat) {
  for (size_t i = repeat.first; i < repeat.first + repeat.period; ++i)
    for (size_t n = 0; n < texts.numbers(i).size(); ++n)
      if (texts.numbers(i + repeat.period)[n] != texts.numbers(i)[n] + 1) return false;
  return true;
}

/// The columns, with repetitions folded.
std::vector<Column> folded(const Drawn& drawn, size_t width) {
  constexpr size_t kFewestTimes = 3, kFewestSaved = 6;
  NumberedTexts texts;
  for (const Slot& slot : drawn.slots) texts.add(join(slot.of_stages, "|"));
  std::vector<Column> columns;
  for (size_t at = 0; at < drawn.slots.size();) {
    const Repeat repeat = texts.best_repeat(at, drawn.slots.size());
    const bool folds = repeat.times >= kFewestTimes && repeat.saved() >= kFewestSaved && goes_up_by_one(texts, repeat);
    if (!folds) {
      columns.push_back(column_of(drawn.slots[at++], width));
      continue;
    }
    columns.push_back(mark("[", drawn.stages));
    for (size_t i = 0; i < repeat.period; ++i) columns.push_back(column_of(drawn.slots[at + i], width));
    columns.push_back(mark(fmt::format("]x{}", repeat.times), drawn.stages));
    at += repeat.period * repeat.times;
  }
  return columns;
}

/// Lines of at most `width` characters; 0: unlimited.
std::string draw(const std::vector<Column>& columns, size_t stages, size_t width) {
  std::vector<std::string> heads;
  for (size_t s = 0; s < stages; ++s)
    heads.push_back(fmt::format("  stage {:>{}} |", s, std::to_string(stages - 1).size()));
  std::string out;
  for (size_t first = 0; first < columns.size();) {
    size_t end = first, used = heads.empty() ? 0 : heads[0].size();
    while (end < columns.size() && (end == first || width == 0 || used + columns[end].width <= width + 1))
      used += columns[end++].width;
    if (first > 0) out += "\n";
    for (size_t s = 0; s < stages; ++s) {
      std::string line = heads[s];
      for (size_t c = first; c < end; ++c) line += fmt::format("{:<{}}", columns[c].cells[s], columns[c].width);
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    first = end;
  }
  return out;
}

}  // namespace

std::string draw_schedule(const Json& tasks, size_t width) {
  const Drawn drawn = slots_of(tasks);
  size_t cell = 2, length = 0;
  for (const Slot& slot : drawn.slots) cell = std::max(cell, widest(slot.of_stages));
  std::vector<Column> columns;
  for (const Slot& slot : drawn.slots) columns.push_back(column_of(slot, cell));
  for (const Column& column : columns) length += column.width;
  constexpr size_t kHead = 12;
  std::string note;
  if (width > 0 && length + kHead > width) {
    const size_t unfolded = columns.size();
    columns = folded(drawn, cell);
    if (columns.size() != unfolded) note = "  [ … ]xN: N times, each with the next micro-batches\n";
  }
  return draw(columns, drawn.stages, width) + note + idle_line(drawn);
}

}  // namespace trainctl
