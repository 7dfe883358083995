// The search's core (engine/search/limited_sum.h) on the problems of the ASPLOS 2025 / EuroSys 2025 contest on
// intra-operator parallelism, beside the best published costs:
//
//   bench_iopddl SECONDS FILE...     files of https://github.com/google/iopddl, benchmarks/*.json or *.json.gz
//
// SECONDS are CPU seconds a problem, reading included. Exits with 1 where a problem is not solved, a setting breaks its
// own promise, or a file cannot be read.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/bench/iopddl/problem_file.h"

using namespace trainctl;

namespace {

struct Published {
  const char* name;
  double contest;  // the least of the 20 teams and XLA in iopddl_final_results.csv, in 60 to 300 s
  double best;     // the least of these and of the winner's paper: 10 seeds, and settings found beside its lower bounds
  double bound;    // the paper's lower bound (primal_UB and dual_LB of lower_bounds/results.db)
};

/// https://github.com/ti2-group/iopddl_experiments, the supplement of "Soft Constraints, Strong Solutions" (the
/// contest's winner): iopddl_final_results.csv, convergence.json and lower_bounds/results.db.
constexpr Published kPublished[] = {
    {"A", 6548641531, 6548641531, 6513812172},
    {"B", 532843, 532843, 532843},
    {"C", 84102445260, 84102445244, 82509087987},
    {"D", 313613524736, 309396217000, 298253500099},
    {"E", 338965335230, 331239394812, 323089251082},
    {"F", 364364563561, 361354466823, 353665926894},
    {"G", 217039, 217039, 216931},
    {"H", 527715404257, 527715404257, 508115382755},
    {"I", 583706456444, 583706456444, 556699743834},
    {"J", 1360981630371, 1325097240000, 1114418889948},
    {"K", 2274276676, 2242635780, 2065623588},
    {"L", 1970993742, 1970993742, 1918617707},
    {"M", 49928460991, 49928157500, 49407421919},
    {"N", 202739586553, 199470115000, 172940125421},
    {"O", 222880199765, 219518764980, 191170000000},
    {"P", 651833115436, 651833115436, 616246285726},
    {"Q", 526776842042, 526776842042, 505549458726},
    {"R", 371899551572, 351826900528, 304520000000},
    {"S", 1534613444, 1521949310, 1511240135},
    {"T", 682895254913, 656798881333, 585686829498},
    {"U", 2569342178, 2443995950, 2018900000},
    {"V", 1632051, 1617084, 1617084},
    {"W", 11818845467155, 11614976869921, 10728053095208},
    {"X", 280461191177, 278109753000, 244891532778},
    {"Y", 621176568278, 595085773000, 495260745493},
};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<uint8_t> bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw EnvError(file + ": cannot be opened");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const Published* published(const std::string& name) {
  const auto at = std::find_if(std::begin(kPublished), std::end(kPublished),
                               [&](const Published& p) { return name == std::string("asplos-2025-iopddl-") + p.name; });
  return at == std::end(kPublished) ? nullptr : at;
}

bool solve(const std::string& file, double seconds, uint64_t seed) {
  const double start = cpu_seconds();
  const ContestProblem problem = read_contest_problem(bytes_of(file), file);
  LimitedSearch search;
  search.seed = seed;
  search.parts = INT64_MAX;
  search.go_on = [&] { return cpu_seconds() - start < seconds; };
  const LimitedSum sum = limited_sum(problem.tables, search);
  const double took = cpu_seconds() - start;
  const Published* known = published(problem.name);
  fmt::print("{:24} {:>6} {:>7} {:>13} {:>16.0f} {:>16.0f} {:>6.1f}", problem.name, problem.nodes, problem.edges,
             problem.limit, sum.found ? sum.value : -1, sum.bound, took);
  if (known && sum.found)
    fmt::print(" {:>16.0f} {:>+7.2f} % {:>16.0f} {:>+7.2f} %", known->contest, 100 * (sum.value / known->contest - 1),
               known->best, 100 * (sum.value / known->best - 1));
  fmt::print("\n");
  std::fflush(stdout);
  return sum.found && sum.value == sum_within_limits(problem.tables, sum.setting) && sum.value >= sum.bound;
}

}  // namespace

int main(int count, char** words) {
  const double seconds = count > 2 ? std::atof(words[1]) : 0;
  if (!(seconds > 0)) {
    fmt::print(stderr, "usage: bench_iopddl SECONDS FILE...\n");
    return 2;
  }
  fmt::print("{:24} {:>6} {:>7} {:>13} {:>16} {:>16} {:>6} {:>16} {:>9} {:>16} {:>9}\n", "problem", "nodes", "edges",
             "limit", "cost", "bound", "CPU s", "contest", "", "published", "");
  bool good = true;
  for (int i = 2; i < count; ++i) try {
      good = solve(words[i], seconds, 1) && good;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      good = false;
    }
  return good ? 0 : 1;
}
