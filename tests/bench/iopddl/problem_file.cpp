#include "tests/bench/iopddl/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/byte_reader.h"

namespace trainctl {
namespace {

/// An array of integers, and where in the file it begins.
struct Row {
  std::vector<int64_t> values;
  int line = 0, column = 0;
};
using Rows = std::vector<Row>;

constexpr int64_t kMostUsage = int64_t{1} << 45;  // sums of them stay in 64 bits
constexpr size_t kMostNodes = 1 << 17;
constexpr size_t kMostStrategies = 1 << 14;  // of a node
constexpr int64_t kMostTime = 1 << 26;

/// The JSON of one file, value after value.
class Scanner {
 public:
  Scanner(std::span<const uint8_t> bytes, const std::string& file) : reader_(bytes, file), pos_{file, 1, 1} {}

  [[noreturn]] void fail(const std::string& path, const std::string& message) const {
    throw SpecError(pos_, path, message);
  }

  [[noreturn]] void fail(const Row& row, const std::string& path, const std::string& message) const {
    throw SpecError(SourcePos{pos_.file, row.line, row.column}, path, message);
  }

  const SourcePos& position() const { return pos_; }

  void expect(char c, const std::string& path) {
    if (!take(c)) fail(path, fmt::format("expected '{}', found {}", c, found()));
  }

  bool take(char c) {
    skip_space();
    if (peek() != c) return false;
    step();
    return true;
  }

  std::string text(const std::string& path) {
    expect('"', path);
    std::string text;
    for (; peek() != '"'; step()) {
      if (peek() < ' ' || peek() == '\\' || text.size() > 200) fail(path, "expected a short string without escapes");
      text += static_cast<char>(peek());
    }
    step();
    return text;
  }

  int64_t integer(const std::string& path) {
    return integer([&] { return path; });
  }

  /// The path is asked for only where something is wrong.
  template <class Path>
  requires std::is_invocable_v<Path> int64_t integer(const Path& path) {
    skip_space();
    const bool negative = peek() == '-';
    if (negative) step();
    if (peek() < '0' || peek() > '9') fail(path(), "expected an integer, found " + found());
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; step()) {
      if (value > (std::numeric_limits<int64_t>::max() - 9) / 10) fail(path(), "expected an integer below 2^63");
      value = value * 10 + (peek() - '0');
    }
    if (peek() == '.' || peek() == 'e' || peek() == 'E') fail(path(), "expected an integer, found " + found());
    return negative ? -value : value;
  }

  /// Calls `element` with its place before each element of an array.
  template <class Element>
  void array(const std::string& path, const Element& element) {
    expect('[', path);
    if (take(']')) return;
    size_t place = 0;
    do element(place++);
    while (take(','));
    expect(']', path);
  }

  /// Calls `field` with each key of an object.
  template <class Field>
  void object(const std::string& path, const Field& field) {
    expect('{', path);
    if (take('}')) return;
    do {
      const std::string key = text(path);
      expect(':', path.empty() ? key : path + "." + key);
      field(key);
    } while (take(','));
    expect('}', path);
  }

  void expect_end() {
    skip_space();
    if (peek() != kEnd) fail("", "expected the end of the file, found " + found());
    if (!reader_.complete()) fail("", "the file ends too early");
  }

 private:
  static constexpr int kEnd = -1;

  int peek() {
    if (at_ == held_) {
      held_ = reader_.read(buffer_);
      at_ = 0;
      if (held_ == 0) return kEnd;
    }
    return buffer_[at_];
  }

  void step() {
    if (buffer_[at_++] == '\n') {
      ++pos_.line;
      pos_.column = 1;
    } else {
      ++pos_.column;
    }
  }

  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') step();
  }

  std::string found() {
    if (peek() == kEnd) return "the end of the file";
    return peek() > ' ' && peek() < 127 ? fmt::format("'{}'", static_cast<char>(peek()))
                                        : fmt::format("byte {}", peek());
  }

  ByteReader reader_;
  SourcePos pos_;
  std::array<uint8_t, 1 << 16> buffer_{};
  size_t at_ = 0, held_ = 0;
};

Rows rows(Scanner& json, const std::string& path) {
  Rows all;
  json.array(path, [&](size_t place) {
    const auto path_here = [&] { return fmt::format("{}[{}]", path, place); };
    all.push_back({{}, json.position().line, json.position().column});
    json.array(path, [&](size_t) { all.back().values.push_back(json.integer(path_here)); });
  });
  return all;
}

/// The parts of a file, before their sizes are compared.
struct Parts {
  std::string name;
  Rows intervals, costs, usages, edges, edge_costs;
  int64_t limit = -1;
};

int64_t limit(Scanner& json) {
  const int64_t value = json.integer("problem.usage_limit");
  if (value < 0) json.fail("problem.usage_limit", fmt::format("{} is negative", value));
  return value;
}

Parts parts_of(Scanner& json) {
  Parts parts;
  const auto unknown = [&](const std::string& path, const std::string& key) {
    json.fail(path, fmt::format("'{}' is no field of a contest's problem", key));
  };
  const auto nodes = [&](const std::string& key) {
    Rows& into = key == "intervals" ? parts.intervals : key == "costs" ? parts.costs : parts.usages;
    if (&into == &parts.usages && key != "usages") unknown("problem.nodes", key);
    into = rows(json, "problem.nodes." + key);
  };
  const auto edges = [&](const std::string& key) {
    if (key != "nodes" && key != "costs") unknown("problem.edges", key);
    (key == "nodes" ? parts.edges : parts.edge_costs) = rows(json, "problem.edges." + key);
  };
  const auto problem = [&](const std::string& key) {
    if (key == "name")
      parts.name = json.text("problem.name");
    else if (key == "nodes")
      json.object("problem.nodes", nodes);
    else if (key == "edges")
      json.object("problem.edges", edges);
    else if (key == "usage_limit")
      parts.limit = limit(json);
    else
      unknown("problem", key);
  };
  json.object("", [&](const std::string& key) {
    if (key != "problem") unknown("", key);
    json.object("problem", problem);
  });
  json.expect_end();
  return parts;
}

double cost(int64_t value) {
  return value >= kNotAllowed ? std::numeric_limits<double>::infinity() : static_cast<double>(value);
}

std::vector<double> costs(const std::vector<int64_t>& from) {
  std::vector<double> all(from.size());
  std::transform(from.begin(), from.end(), all.begin(), cost);
  return all;
}

/// The first node's strategies slowest; of a table whose variables ascend.
std::vector<double> transposed(const std::vector<double>& from, size_t rows, size_t columns) {
  std::vector<double> to(from.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  return to;
}

void add_node(const Scanner& json, const Parts& parts, size_t i, LimitedTables& tables, int& times) {
  const auto fail = [&](const Row& row, const char* list, const std::string& message) {
    json.fail(row, fmt::format("problem.nodes.{}[{}]", list, i), message);
  };
  const Row &interval = parts.intervals[i], &costs_row = parts.costs[i], &usages = parts.usages[i];
  if (interval.values.size() != 2 || interval.values[0] < 0 || interval.values[1] > kMostTime)
    fail(interval, "intervals", fmt::format("expected [first, end] within 0 and {}", kMostTime));
  const int64_t first = interval.values[0], end = interval.values[1];
  const size_t size = costs_row.values.size();
  if (size == 0 || size > kMostStrategies)
    fail(costs_row, "costs", fmt::format("{} costs, expected 1 to {}", size, kMostStrategies));
  if (usages.values.size() != size)
    fail(usages, "usages", fmt::format("{} usages, but the node has {} costs", usages.values.size(), size));
  for (int64_t usage : usages.values)
    if (usage < 0 || usage > kMostUsage) fail(usages, "usages", fmt::format("{} is not within 0 and 2^45", usage));
  tables.sizes.push_back(static_cast<int>(size));
  tables.tables.push_back({{static_cast<int>(i)}, costs(costs_row.values)});
  if (first >= end) return;
  times = std::max(times, static_cast<int>(end));
  tables.holdings.push_back({static_cast<int>(i), static_cast<int>(first), static_cast<int>(end), usages.values});
}

void add_edge(const Scanner& json, const Parts& parts, size_t i, LimitedTables& tables) {
  const Row &nodes = parts.edges[i], &costs_row = parts.edge_costs[i];
  const auto fail = [&](const Row& row, const char* list, const std::string& message) {
    json.fail(row, fmt::format("problem.edges.{}[{}]", list, i), message);
  };
  if (nodes.values.size() != 2 || nodes.values[0] == nodes.values[1])
    fail(nodes, "nodes", "expected two different nodes");
  for (int64_t node : nodes.values)
    if (node < 0 || node >= static_cast<int64_t>(tables.sizes.size()))
      fail(nodes, "nodes", fmt::format("there is no node {}: the file has {}", node, tables.sizes.size()));
  const auto from = static_cast<int>(nodes.values[0]), to = static_cast<int>(nodes.values[1]);
  const auto rows = static_cast<size_t>(tables.sizes[static_cast<size_t>(from)]);
  const auto columns = static_cast<size_t>(tables.sizes[static_cast<size_t>(to)]);
  if (costs_row.values.size() != rows * columns)
    fail(costs_row, "costs",
         fmt::format("{} costs, but its nodes have {} x {} strategies", costs_row.values.size(), rows, columns));
  std::vector<double> values = costs(costs_row.values);
  if (from < to)
    tables.tables.push_back({{from, to}, std::move(values)});
  else
    tables.tables.push_back({{to, from}, transposed(values, rows, columns)});
}

}  // namespace

ContestProblem read_contest_problem(std::span<const uint8_t> bytes, const std::string& file) {
  Scanner json(bytes, file);
  const Parts parts = parts_of(json);
  const size_t nodes = parts.intervals.size(), edges = parts.edges.size();
  if (parts.costs.size() != nodes || parts.usages.size() != nodes)
    json.fail("problem.nodes", fmt::format("{} intervals, {} rows of costs, {} of usages: expected as many of each",
                                           nodes, parts.costs.size(), parts.usages.size()));
  if (nodes > kMostNodes) json.fail("problem.nodes", fmt::format("{} nodes, expected at most {}", nodes, kMostNodes));
  if (parts.edge_costs.size() != edges)
    json.fail("problem.edges", fmt::format("{} edges, but {} rows of costs", edges, parts.edge_costs.size()));
  ContestProblem problem{parts.name, nodes, edges, parts.limit, {}};
  int times = 0;
  for (size_t i = 0; i < nodes; ++i) add_node(json, parts, i, problem.tables, times);
  for (size_t i = 0; i < edges; ++i) add_edge(json, parts, i, problem.tables);
  const bool limited = parts.limit >= 0;
  problem.tables.limits.assign(static_cast<size_t>(times), limited ? parts.limit : std::numeric_limits<int64_t>::max());
  return problem;
}

}  // namespace trainctl
