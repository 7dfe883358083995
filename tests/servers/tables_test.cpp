// Tests of tables on servers: they give the numbers of a dense embedding, and need memory only for rows that were
// trained.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/initial_weights.h"
#include "engine/train/checkpoint/table_slot.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/files/safetensors.h"
#include "engine/train/servers/row_window.h"
#include "engine/train/servers/table_image.h"
#include "engine/train/servers/table_rows.h"
#include "tests/equivalence/harness.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"
#include "tests/servers/async_run.h"

using namespace trainctl;
using servers::TableRows;

namespace {

Overrides tables_with_tables(int workers, int servers) {
  return {"launch.ranks=" + std::to_string(workers), "parallel.mode=parameter_server", "parallel.sync=false",
          "parallel.servers=" + std::to_string(servers), "parallel.tables=[table.*]"};
}

ServedTable table_of(int64_t rows, int64_t units) {
  ServedTable table;
  table.tensor = "t.weight";
  table.rows = rows;
  table.units = units;
  table.init = {Init::Kind::normal, 1.0};
  return table;
}

OptimizerSpec optimizer_of(const std::string& type, double rate) {
  OptimizerSpec spec;
  spec.type = type;
  spec.learning_rate.base = rate;
  return spec;
}

}  // namespace

TEST_CASE("one worker with tables has the losses of a dense embedding under one rank") {
  struct Case {
    const char* optimizer;
    int64_t vocab;
  };
  // Plain SGD does not change rows without a gradient. Adam moves them by its momentum, so there every row is in every
  // batch.
  for (const Case& c :
       {Case{"{type: sgd, learning_rate: 0.1}", 500}, Case{"{type: sgd, learning_rate: 0.1, clip_norm: 0.2}", 500},
        Case{"{type: adam, learning_rate: 0.01}", 2}}) {
    CAPTURE(c.optimizer);
    const Overrides same = {std::string("optimizer=") + c.optimizer, "dataset.vocab=" + std::to_string(c.vocab),
                            "network[0].vocab=" + std::to_string(c.vocab),
                            "network[2].vocab=" + std::to_string(c.vocab)};
    const RunResult dense = run_job("wide_deep", same);
    for (int servers = 1; servers <= 3; ++servers) {
      for (const char* micro_batches : {"1", "2"}) {
        CAPTURE(servers);
        CAPTURE(micro_batches);
        const AsyncRun run = run_async(
            plan_job(job_spec("wide_deep", same + tables_with_tables(1, servers) +
                                               Overrides{std::string("parallel.micro_batches=") + micro_batches})));
        REQUIRE(run.losses.size() == dense.losses.size());
        for (const auto& [batch, loss] : run.losses)
          CHECK(loss == doctest::Approx(dense.losses[static_cast<size_t>(batch)]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("one worker with tables in bf16 has the losses of a dense embedding in bf16 under one rank") {
  for (const char* gradients : {"fp32", "bf16"})
    for (const char* micro_batches : {"1", "2"})
      for (const bool in_step : {true, false}) {
        CAPTURE(gradients);
        CAPTURE(micro_batches);
        CAPTURE(in_step);
        const Overrides same = {"precision=bf16", std::string("gradient_precision=") + gradients,
                                std::string("parallel.micro_batches=") + micro_batches,
                                "optimizer={type: sgd, learning_rate: 0.1}"};
        const RunResult dense = run_job("wide_deep", same);
        const Overrides steps = in_step ? Overrides{"parallel.sync=true", "parallel.staleness=0"} : Overrides{};
        const AsyncRun run = run_async(plan_job(job_spec("wide_deep", same + tables_with_tables(1, 2) + steps)));
        REQUIRE(run.losses.size() == dense.losses.size());
        for (const auto& [batch, loss] : run.losses)
          CHECK(loss == doctest::Approx(dense.losses[static_cast<size_t>(batch)]).epsilon(5e-3));
      }
}

TEST_CASE("workers with tables learn made-up clicks, and validate with the servers' rows") {
  const Overrides longer = {"dataset.samples=2048", "train={epochs: 12}", "validation={dataset: {samples: 512}}",
                            "optimizer={type: adam, learning_rate: 0.01}", "metrics=[accuracy]"};
  const AsyncRun run = run_async(plan_job(job_spec("wide_deep", longer + tables_with_tables(3, 2))));
  REQUIRE(!run.validations.empty());
  CHECK(run.validations.back().value("accuracy").value() > 0.7);  // always one class: about 0.5
}

TEST_CASE("a window has each id of the batch once, and each server's rows together") {
  const PlannedJob job = plan_job(job_spec("wide_deep", tables_with_tables(2, 3)));
  const Program program = compile(job, 0);
  servers::RowWindow window(job, program);
  const InputLayout layout = input_layout(program);
  std::vector<std::byte> inputs(static_cast<size_t>(layout.bytes));
  int32_t* ids = nullptr;
  int64_t count = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].opcode == Opcode::load && program.instructions[i].op == "ids") {
      ids = reinterpret_cast<int32_t*>(inputs.data() + layout.offsets[i]);
      count = num_elements(program.instructions[i].outputs[0].shape);
    }
  REQUIRE(ids != nullptr);
  std::vector<int32_t> before;
  for (int64_t i = 0; i < count; ++i) before.push_back(ids[i] = static_cast<int32_t>(i * 7919 % 61));
  window.take(inputs.data());
  REQUIRE(window.fields() == 1);
  std::vector<int32_t> rows;
  for (int server = 0; server < 3; ++server)
    for (const int32_t id : window.ids(0, server)) {
      CHECK(owner_of_row(id, 3) == server);
      rows.push_back(id);
    }
  CHECK(std::set<int32_t>(rows.begin(), rows.end()).size() == rows.size());
  for (int64_t i = 0; i < count; ++i) CHECK(rows[static_cast<size_t>(ids[i])] == before[static_cast<size_t>(i)]);
  int64_t next = window.parts(0, 0, 0)[0].weights;
  for (int server = 0; server < 3; ++server) {
    const auto part = window.parts(0, server, window.ids(0, server).size())[0];
    CHECK(part.weights == next);
    next += part.floats * byte_size(part.weight_type);
  }
  ids[0] = 1000;
  CHECK_THROWS_AS(window.take(inputs.data()), EnvError);
}

TEST_CASE("a row has its initial values before it is made, and they are those of the whole table") {
  const ServedTable table = table_of(int64_t{1} << 30, 24);
  TableRows rows(table, optimizer_of("sgd", 0.1), 7, 1);
  const std::vector<int32_t> ids = {0, 1'000'000'007, 5};
  std::vector<float> values(ids.size() * 24), expected(24);
  rows.read(ids, values.data());
  CHECK(rows.rows() == 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    initial_values("t.weight", table.init, 7, ids[i] * int64_t{24}, 24, expected.data());
    CHECK(std::equal(expected.begin(), expected.end(), values.begin() + static_cast<std::ptrdiff_t>(i * 24)));
  }
}

TEST_CASE("every optimizer updates rows as it would a dense tensor of those rows, and does not change other rows") {
  for (const OptimizerDef* def : all_optimizers()) {
    if (!fits_servers(*def)) continue;  // an error of check
    CAPTURE(def->name);
    constexpr int64_t kUnits = 8;
    const ServedTable table = table_of(100'000, kUnits);
    OptimizerSpec spec = optimizer_of(def->name, 0.1);
    TableRows rows(table, spec, 3, 1);
    const Optimizer optimizer(spec.type, spec.attrs);
    const std::vector<int32_t> ids = {17, 99'999, 4};
    std::vector<float> gradients(ids.size() * kUnits), after(gradients.size()), apart(gradients.size());
    // The same by the kernel itself.
    std::vector<std::vector<float>> values(1 + optimizer.states().size(), std::vector<float>(gradients.size()));
    rows.read(ids, values[0].data());
    KernelCall call;
    const auto flat = [](std::vector<float>& v) {
      TensorArg arg;
      arg.data = v.data();
      arg.shape = arg.global_shape = {static_cast<int64_t>(v.size())};
      arg.offset = {0};
      return arg;
    };
    call.in = {flat(gradients)};
    for (std::vector<float>& v : values) call.out.push_back(flat(v));
    call.attrs = optimizer.kernel_attrs();
    call.attrs.set("clip_norm", 0.0);
    StepScalars scalars;
    call.scalars = &scalars;
    const CpuKernel kernel = find_cpu_kernel(def->kernel->name)->prepare(call);
    for (int64_t step = 0; step < 5; ++step) {
      for (size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = std::sin(static_cast<float>(i + 3) * static_cast<float>(step + 1));
      scalars.learning_rate = 0.1f;
      scalars.step = static_cast<uint32_t>(step);
      optimizer.fill_scalars(step + 1, scalars);
      kernel();
      rows.update(ids, gradients.data(), nullptr, scalars);
      const std::vector<int32_t> other = {static_cast<int32_t>(50 + step)};
      rows.update(other, gradients.data(), nullptr, scalars);
    }
    rows.read(ids, after.data());
    CHECK(after == values[0]);
    CHECK(rows.rows() == 8);
  }
}

TEST_CASE("a table needs memory only for the rows that were trained, however many it has") {
  TableRows rows(table_of(100'000'000, 64), optimizer_of("sgd", 0.1), 1, 1);
  const StepScalars scalars;
  std::vector<float> gradients(1000 * 64);
  for (int64_t push = 0; push < 100; ++push) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 1000; ++i) ids.push_back(static_cast<int32_t>((push * 1000 + i) * 997));
    rows.update(ids, gradients.data(), nullptr, scalars);
  }
  CHECK(rows.rows() == 100'000);
  CHECK(rows.bytes() < 100'000 * (64 * 4 + 16) + (8 << 20));
}

namespace {

/// Trains rows on `servers` owners, saves them in the form of a checkpoint, and restores them on other numbers of
/// servers.
void check_saved_rows(const ServedTable& table, const std::vector<int32_t>& ids, int servers,
                      const std::string& folder) {
  Manifest manifest;
  for (int server = 0; server < servers; ++server) {
    std::vector<std::unique_ptr<TableRows>> tables;
    tables.push_back(std::make_unique<TableRows>(table, optimizer_of("adam", 0.1), 7, 1));
    std::vector<int32_t> own;
    for (const int32_t id : ids)
      if (owner_of_row(id, servers) == server) own.push_back(id);
    std::vector<float> gradients;
    for (const int32_t id : own)
      gradients.insert(gradients.end(), static_cast<size_t>(table.units), 0.01f * static_cast<float>(id + 1));
    tables[0]->update(own, gradients.data(), nullptr, {.learning_rate = 0.1f});
    const int memory = memfd_create("rows", 0);
    REQUIRE(memory >= 0);
    const int image = dup(memory);
    servers::TableImage(memory, server).write(tables);
    struct stat info {};
    REQUIRE(fstat(image, &info) == 0);
    std::string bytes(static_cast<size_t>(info.st_size), '\0');
    REQUIRE(pread(image, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    close(image);
    if (bytes.empty()) continue;
    const std::string file = "tables.000" + std::to_string(server) + ".safetensors";
    std::ofstream(folder + "/" + file) << bytes;
    const SafetensorsFile saved(folder + "/" + file);
    for (const SafetensorsEntry& entry : saved.header().entries) {
      const PieceName piece = parse_piece_key(entry.name);
      manifest.tensors.push_back({piece.name,
                                  piece.slot,
                                  piece.slot.starts_with(kIdsSlot) ? DType::i32 : DType::f32,
                                  entry.shape,
                                  {{file, whole_box(entry.shape)}}});
    }
  }
  PieceReader reader(manifest, folder);
  for (const int next : {1, 2, 3, 5}) {
    CAPTURE(next);
    int64_t found = 0;
    for (int server = 0; server < next; ++server) {
      TableRows whole(table, optimizer_of("adam", 0.1), 7, 1), rows(table, optimizer_of("adam", 0.1), 7, 1);
      std::vector<float> gradients(static_cast<size_t>(table.units));
      servers::restore_rows(reader, server, next, rows);
      found += rows.rows();
      rows.for_each(false, [&](int32_t id, const float* row) {
        CHECK(owner_of_row(id, next) == server);
        std::fill(gradients.begin(), gradients.end(), 0.01f * static_cast<float>(id + 1));
        whole.update(std::span(&id, 1), gradients.data(), nullptr, {.learning_rate = 0.1f});
        const float* expected = whole.make(id);
        CHECK(std::equal(row, row + table.units * 3, expected));  // the weight and Adam's two states
      });
    }
    CHECK(found == static_cast<int64_t>(ids.size()));
  }
}

}  // namespace

TEST_CASE("rows that servers saved are taken, with their optimizer states, by the owners of any number of servers") {
  const Scratch scratch;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 200; ++i) ids.push_back(i * 7919 % 100003);
  check_saved_rows(table_of(1'000'000, 5), ids, 1, scratch.path());
  check_saved_rows(table_of(1'000'000, 5), ids, 3, scratch.path());
  check_saved_rows(table_of(1'000'000, 5), {4, 8, 1000}, 4, scratch.path());  // three servers have none
}

TEST_CASE("rows that have changed since all were saved are few, and all are saved again once they are half") {
  const ServedTable table = table_of(1'000'000, 5);
  std::vector<std::unique_ptr<TableRows>> tables;
  tables.push_back(std::make_unique<TableRows>(table, optimizer_of("sgd", 0.1), 7, 1));
  const int memory = memfd_create("rows", 0);
  REQUIRE(memory >= 0);
  const int image = dup(memory);
  servers::TableImage rows(memory, 3);
  const auto saved_after = [&](int32_t first, int32_t count) {
    std::vector<int32_t> ids;
    for (int32_t id = first; id < first + count; ++id) ids.push_back(id);
    const std::vector<float> gradients(ids.size() * 5, 1.0f);
    tables[0]->update(ids, gradients.data(), nullptr, {.learning_rate = 0.1f});
    rows.write(tables, true);
    struct stat info {};
    REQUIRE(fstat(image, &info) == 0);
    std::vector<uint8_t> bytes(static_cast<size_t>(info.st_size));
    REQUIRE(pread(image, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    const SafetensorsHeader header = parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), "image");
    REQUIRE(!header.entries.empty());
    return header.entries.front().name + " " + to_string(header.entries.front().shape);
  };
  CHECK(saved_after(0, 100) == "t.weight:ids.3 [100]");
  CHECK(saved_after(90, 20) == "t.weight:ids.3.changed [20]");  // 10 are new
  CHECK(saved_after(100, 20) == "t.weight:ids.3.changed [30]");
  CHECK(saved_after(0, 60) == "t.weight:ids.3 [120]");  // 90 of 120
  CHECK(saved_after(5, 1) == "t.weight:ids.3.changed [1]");
  close(image);
}

TEST_CASE("the slot of a table's rows names the server that saved them") {
  CHECK(table_slot("m", 12) == "m.12");
  CHECK(parse_table_slot("m.12")->slot == "m");
  CHECK(parse_table_slot("m.12")->server == 12);
  CHECK_FALSE(parse_table_slot("m.12")->is_changed);
  CHECK(table_slot("m", 12, true) == "m.12.changed");
  CHECK(parse_table_slot("m.12.changed")->slot == "m");
  CHECK(parse_table_slot("m.12.changed")->is_changed);
  CHECK_FALSE(parse_table_slot("m.changed"));
  for (const char* none : {"weight", "m.", ".3", "m.x", "m.-1", "m.1x"}) CHECK_FALSE(parse_table_slot(none));
}
