// Tests of the ranges that the ranks of a plan write into a checkpoint.
#include "engine/runtime/stored_ranges.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/planning/compile_job.h"
#include "engine/runtime/parts.h"
#include "engine/runtime/state_copy.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

PlannedJob stored_ranges_planned(const PlanCase& plan) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  return plan_job(job_spec(plan.job, overrides));
}

/// Counts how often each element of each tensor is stored: by "name:slot".
std::map<std::string, std::vector<int>> times_stored(const std::vector<Program>& programs) {
  std::map<std::string, std::vector<int>> times;
  for (const Program& program : programs) {
    for (const StoredRange& range : stored_ranges(program)) {
      if (range.is_copy) continue;
      const Variable& v = *range.variable;
      std::vector<int>& of = times[v.name + ":" + std::string(range.slot)];
      of.resize(static_cast<size_t>(num_elements(v.global_shape)));
      for (const Box& box : boxes_of(v, range.own_first, range.own_count))
        for_each_run(v.global_shape, box.offset, box.shape, [&](int64_t, int64_t in_whole, int64_t length) {
          for (int64_t i = 0; i < length; ++i) ++of[static_cast<size_t>(in_whole + i)];
        });
    }
  }
  return times;
}

}  // namespace

TEST_CASE("under every plan the ranks together store each element of each tensor once") {
  for (const PlanCase& plan : plan_cases()) {
    CAPTURE(plan.name);
    const PlannedJob job = stored_ranges_planned(plan);
    const std::vector<Program> programs = compile_all(job);
    const auto times = times_stored(programs);
    REQUIRE(!times.empty());
    for (const auto& [name, of] : times) {
      CAPTURE(name);
      CHECK(std::all_of(of.begin(), of.end(), [](int n) { return n == 1; }));
    }
    std::set<std::string> names;
    for (const Program& program : programs)
      for (const Variable& v : program.variables) names.insert(v.name);
    for (const std::string& name : names) CHECK((times.contains(name + ":weight") || times.contains(name + ":state")));
  }
}

TEST_CASE("replicas share the storing of their tensors: none stores twice as much of large tensors as another") {
  const PlannedJob job = plan_job(job_spec(
      "wide", {"launch.ranks=4", "parallel.mode=data_parallel", "optimizer={type: adam, learning_rate: 0.001}"}));
  std::vector<int64_t> bytes;
  for (const Program& program : compile_all(job)) {
    bytes.push_back(0);
    for (const StoredRange& range : stored_ranges(program)) bytes.back() += range.own_bytes();
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  CHECK(*most < 2 * *least);
}

TEST_CASE("boxes of a range are its elements in order, and few") {
  for (const Shape& shape : {Shape{7}, Shape{3, 4}, Shape{2, 3, 5}, Shape{1, 4, 1, 3}, Shape{}}) {
    const int64_t all = num_elements(shape);
    for (int64_t first = 0; first < all; ++first) {
      for (int64_t count = 1; first + count <= all; ++count) {
        const std::vector<Box> boxes = boxes_of(shape, first, count);
        CHECK(boxes.size() <= std::max<size_t>(1, 2 * shape.size() - 1));
        int64_t next = first;
        for (const Box& box : boxes)
          for_each_run(shape, box.offset, box.shape, [&](int64_t, int64_t in_whole, int64_t length) {
            CHECK(in_whole == next);
            next += length;
          });
        CHECK(next == first + count);
      }
    }
  }
  CHECK(boxes_of({4, 4}, 4, 0).empty());
}
