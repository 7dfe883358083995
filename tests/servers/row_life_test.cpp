// Tests of the life of table rows: rows are prefetched, cached by workers, and admitted and dropped by servers.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "engine/base/error.h"
#include "engine/runtime/initial_weights.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/servers/row_cache.h"
#include "engine/train/servers/table_rows.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/servers/async_run.h"

using namespace trainctl;
using servers::RowCache;
using servers::TableRows;

namespace {

Overrides with_tables(int workers, int servers) {
  return {"launch.ranks=" + std::to_string(workers), "parallel.mode=parameter_server", "parallel.sync=false",
          "parallel.servers=" + std::to_string(servers), "parallel.tables=[table.*]"};
}

/// A field of both tables.
Overrides of_both(const std::string& field, int value) {
  return {"network[0]." + field + "=" + std::to_string(value), "network[2]." + field + "=" + std::to_string(value)};
}

ServedTable small_table() {
  ServedTable table;
  table.tensor = "t.weight";
  table.rows = 1'000'000;
  table.units = 4;
  table.init = {Init::Kind::normal, 1.0};
  return table;
}

OptimizerSpec adam() {
  OptimizerSpec spec;
  spec.type = "adam";
  spec.learning_rate.base = 0.1;
  return spec;
}

/// Updates these rows once, each with a gradient of its own.
void update(TableRows& rows, const std::vector<int32_t>& ids) {
  std::vector<float> gradients;
  for (const int32_t id : ids) gradients.insert(gradients.end(), 4, std::sin(static_cast<float>(id + 1)));
  StepScalars scalars;
  scalars.learning_rate = 0.1f;
  rows.update(ids, gradients.data(), nullptr, scalars);
}

std::vector<float> read(const TableRows& rows, int32_t id) {
  std::vector<float> values(4);
  rows.read(std::span(&id, 1), values.data());
  return values;
}

std::vector<float> initial(int32_t id) {
  std::vector<float> values(4);
  const ServedTable table = small_table();
  initial_values(table.tensor, table.init, 7, id * int64_t{4}, 4, values.data());
  return values;
}

}  // namespace

TEST_CASE("a row is kept from its n-th update on, and has its initial values before it") {
  TableRows rows(small_table(), adam(), 7, 1, {.admit_after = 3, .expire_after = 0});
  TableRows at_once(small_table(), adam(), 7, 1, {.admit_after = 1, .expire_after = 0});
  for (int i = 0; i < 2; ++i) {
    update(rows, {5, 9});
    CHECK(rows.rows() == 0);
    CHECK(read(rows, 5) == initial(5));
  }
  update(rows, {5, 11});
  update(at_once, {5});
  CHECK(rows.rows() == 1);
  CHECK(read(rows, 5) == read(at_once, 5));
  CHECK(read(rows, 9) == initial(9));
  update(rows, {9});
  CHECK(rows.rows() == 2);
}

TEST_CASE("a row without an update during n updates returns to its initial values and state, and its memory is freed") {
  TableRows rows(small_table(), adam(), 7, 1, {.admit_after = 1, .expire_after = 3}),
      fresh(small_table(), adam(), 7, 1, {.admit_after = 1, .expire_after = 0});
  update(rows, {1, 2});
  const std::vector<float> trained = read(rows, 1);
  CHECK(trained != initial(1));
  update(rows, {2});
  update(rows, {2});
  CHECK(read(rows, 1) == trained);  // not used twice
  update(rows, {2});
  CHECK(read(rows, 1) == initial(1));
  CHECK(rows.rows() == 1);
  update(rows, {1});  // from the start, with states of zeros
  update(fresh, {1});
  CHECK(read(rows, 1) == read(fresh, 1));
  for (int i = 0; i < 3; ++i) update(rows, {});
  rows.drop_expired();
  CHECK(rows.rows() == 0);
}

TEST_CASE("rows that come and go have the values of rows that a map keeps, in whatever order they are dropped") {
  constexpr int kExpire = 5;
  TableRows rows(small_table(), adam(), 7, 1, {.admit_after = 1, .expire_after = kExpire});
  std::mt19937 random(3);
  std::map<int32_t, int> touched;                       // the last update
  std::map<int32_t, std::unique_ptr<TableRows>> alone;  // each row in a table of its own
  for (int step = 1; step <= 400; ++step) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 20; ++i) {
      const auto id = static_cast<int32_t>(random() % 300 * 4099);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    update(rows, ids);
    for (const int32_t id : ids) {
      const auto known = touched.find(id);
      if (known == touched.end() || step - known->second > kExpire)
        alone[id] = std::make_unique<TableRows>(small_table(), adam(), 7, 1);
      update(*alone[id], {id});
      touched[id] = step;
    }
    for (const auto& [id, last] : touched)
      REQUIRE(read(rows, id) == (step - last >= kExpire ? initial(id) : read(*alone.at(id), id)));
  }
  CHECK(rows.rows() <= 20 * (kExpire + 5));  // a hand that goes around frees them
}

TEST_CASE("the memory of a table whose rows expire is that of the rows of late, however many ids there are") {
  TableRows rows(small_table(), adam(), 7, 1, {.admit_after = 1, .expire_after = 50});
  int64_t most = 0;
  for (int32_t step = 0; step < 2000; ++step) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 100; ++i) ids.push_back((step * 100 + i) % 1'000'000);
    update(rows, ids);
    most = std::max(most, rows.rows());
  }
  CHECK(most <= 2 * 100 * 50);
  CHECK(rows.bytes() < 2 << 20);  // of 200,000 rows that were made
}

TEST_CASE("a held row is used in as many further batches as cached_batches says, and then forgotten") {
  RowCache cache(2, 2);
  const auto put = [&](int32_t id, int64_t batch, float value) {
    float* row = cache.put(id, batch);
    row[0] = value;
    row[1] = -value;
  };
  put(7, 1, 1.5f);
  put(8, 1, 2.5f);
  put(7, 2, 3.5f);  // pulled again
  REQUIRE(cache.find(8, 3) != nullptr);
  CHECK(cache.find(8, 3)[0] == 2.5f);
  CHECK(cache.find(8, 4) == nullptr);
  cache.drop_before(4);
  CHECK(cache.rows() == 1);
  REQUIRE(cache.find(7, 4) != nullptr);
  CHECK(cache.find(7, 4)[1] == -3.5f);
  put(9, 4, 4.5f);  // in the place of row 8
  CHECK(cache.find(7, 4)[0] == 3.5f);
  CHECK(cache.find(9, 6)[0] == 4.5f);
  cache.drop_before(5);
  CHECK(cache.rows() == 1);
}

TEST_CASE("rows of the next batch are asked for ahead, but for those that the batch under way updates") {
  // A worker that sleeps finds the next batch read. One worker has the numbers of one rank: tables_test.cpp.
  AsyncOptions options;
  options.on_step = [](int, const StepReport&, Executor&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  };
  const Overrides job = {"dataset.vocab=5000", "network[0].vocab=5000", "network[2].vocab=5000", "train={epochs: 6}"};
  for (int workers : {1, 3}) {
    CAPTURE(workers);
    const AsyncRun run = run_async(plan_job(job_spec("wide_deep", job + with_tables(workers, 2))), options);
    for (const servers::Client::Counts& counts : run.counts) {
      CHECK(counts.ahead > 0);
      CHECK(counts.reused > 0);
      CHECK(counts.reused <= counts.ahead);  // no row is used twice without a pull
      CHECK(counts.pulled > 0);              // those that the batch before has updated
    }
  }
  const AsyncRun in_step =
      run_async(plan_job(job_spec("wide_deep", job + with_tables(2, 2) + Overrides{"parallel.sync=true"})), options);
  for (const servers::Client::Counts& counts : in_step.counts) CHECK(counts.ahead > 0);
}

TEST_CASE("with cached_batches fewer rows are pulled, more of them are used again, and the network still learns") {
  const Overrides longer = {"dataset.samples=2048", "train={epochs: 6}", "optimizer={type: adam, learning_rate: 0.01}"};
  std::vector<int64_t> pulled;
  for (int cached : {0, 3}) {
    CAPTURE(cached);
    const AsyncRun run =
        run_async(plan_job(job_spec("wide_deep", longer + with_tables(3, 2) + of_both("cached_batches", cached))));
    int64_t sum = 0;
    for (const servers::Client::Counts& counts : run.counts) sum += counts.pulled + counts.ahead;
    pulled.push_back(sum);
    double first = 0, last = 0;  // mean losses of the first and the last epoch, of 64 batches each
    for (const auto& [batch, loss] : run.losses) (batch < 64 ? first : last) += batch < 64 || batch >= 320 ? loss : 0;
    CHECK(last < 0.9 * first);
  }
  CHECK(pulled[1] < 3 * pulled[0] / 4);
}

TEST_CASE("tables that read one field must have the same cached_batches") {
  CHECK_THROWS_WITH_AS(
      plan_job(job_spec("wide_deep", with_tables(1, 1) + Overrides{"network[0].cached_batches=2"})),
      doctest::Contains("tables table.wide and table.deep both read ids, so their rows are exchanged together"),
      SpecError);
}

TEST_CASE("a slow server holds the workers back: no more pushes are under way than there are workers") {
  constexpr int kWorkers = 3;
  std::atomic<int64_t> pushed{0}, applied{0}, most{0};
  AsyncOptions options;
  options.on_step = [&](int, const StepReport&, Executor&) {
    const int64_t waiting = ++pushed - applied;
    for (int64_t seen = most; waiting > seen && !most.compare_exchange_weak(seen, waiting);) {
    }
  };
  options.on_update = [&](int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ++applied;
  };
  const Overrides job = {"parallel.staleness=63", "parallel.rebalance=true", "train={epochs: 20}"};
  const AsyncRun run = run_async(plan_job(job_spec("wide_deep", with_tables(kWorkers, 1) + job)), options);
  CHECK(run.losses.size() == 80);
  // A server takes a push into the worker's one place, applies it, and only then answers that worker again.
  CHECK(most <= kWorkers);
  CHECK(most > 0);
}
