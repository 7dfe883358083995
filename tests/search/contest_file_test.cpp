// The reader of the contest's problems: what it gives, and where it says that a file is wrong.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>

#include "engine/base/error.h"
#include "tests/bench/iopddl/problem_file.h"

using namespace trainctl;

namespace {

constexpr const char* kGood = R"({"problem": {"name": "two",
  "nodes": {"intervals": [[0, 2], [1, 3]],
            "costs": [[1, 2], [3, 1000000000000000000, 5]],
            "usages": [[4, 1], [2, 2, 1]]},
  "edges": {"nodes": [[1, 0]],
            "costs": [[1, 2, 3, 4, 5, 6]]},
  "usage_limit": 4}})";

ContestProblem read(const std::string& text) {
  return read_contest_problem({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "two.json");
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  return text.replace(text.find(from), from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("contest file: nodes are variables, edges tables of two, and 10^18 must not be") {
  const ContestProblem problem = read(kGood);
  CHECK(problem.name == "two");
  CHECK(problem.limit == 4);
  CHECK(problem.tables.sizes == std::vector<int>{2, 3});
  CHECK(problem.tables.limits == std::vector<int64_t>{4, 4, 4});
  REQUIRE(problem.tables.tables.size() == 3);
  CHECK(std::isinf(problem.tables.tables[1].values[1]));
  CHECK(problem.tables.tables[2].variables == std::vector<int>{0, 1});  // the edge is from node 1 to node 0
  CHECK(problem.tables.tables[2].values == std::vector<double>{1, 3, 5, 2, 4, 6});
  const LimitedSum sum = limited_sum(problem.tables, {});
  CHECK(sum.found);
  CHECK(sum.value == 7);  // 2 + 3 + 2: node 0 must hold 1, since 4 and 2 are more than 4
  CHECK(sum.setting == std::vector<int>{1, 0});
}

TEST_CASE("contest file: an error names its line, its column and the field") {
  CHECK(error_of(with("[1, 2]", "[1, x]")).find("two.json:3:27: problem.nodes.costs[0]: expected an integer") !=
        std::string::npos);
  CHECK(error_of(with("[4, 1]", "[4]")).find("two.json:4:24: problem.nodes.usages[0]: 1 usages, but the node has 2") !=
        std::string::npos);
  CHECK(error_of(with("[1, 0]", "[2, 0]")).find("two.json:5:23: problem.edges.nodes[0]: there is no node 2") !=
        std::string::npos);
  CHECK(error_of(with("5, 6", "5")).find("two.json:6:23: problem.edges.costs[0]: 5 costs, but") != std::string::npos);
  CHECK(error_of(with("[0, 2]", "[0]")).find("expected [first, end]") != std::string::npos);
  CHECK(error_of(with("\"costs\": [[1, 2]", "\"cost\": [[1, 2]")).find("'cost' is no field") != std::string::npos);
  CHECK(error_of(with("[4, 1]", "[4, -1]")).find("-1 is not within 0 and 2^45") != std::string::npos);
  CHECK(error_of(with("\"usage_limit\": 4", "\"usage_limit\": 4.5")).find("expected an integer") != std::string::npos);
  CHECK(error_of(with("4}}", "4}")).find("expected '}', found the end of the file") != std::string::npos);
  CHECK(error_of(kGood) == "none");
}

TEST_CASE("contest file: files with changed, missing and added bytes are read or refused") {
  std::mt19937 random(4);
  const std::string good = kGood;
  const std::string bytes = "0123456789-[]{},:\"xe. \n";
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0 && !text.empty(); --changes) {
      const size_t at = random() % text.size();
      const char c = bytes[random() % bytes.size()];
      switch (random() % 4) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.erase(at, 1 + random() % 9);
          break;
        case 2:
          text.insert(at, 1, c);
          break;
        default:
          text.resize(at + 1);
          break;
      }
    }
    try {
      read(text);
    } catch (const SpecError&) {
      ++refused;
    }
  }
  CHECK(refused > 2000);
  CHECK(refused < 3000);
}
