// Assigns the rows that a batch needs to positions in the windows of a worker's tables.
#include "engine/train/servers/row_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl::servers {

std::vector<std::vector<const ServedTable*>> tables_by_field(const std::vector<ServedTable>& tables) {
  std::vector<std::vector<const ServedTable*>> fields;
  for (const ServedTable& table : tables) {
    const auto found =
        std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f[0]->field == table.field; });
    if (found == fields.end())
      fields.push_back({&table});
    else
      found->push_back(&table);
  }
  return fields;
}

RowWindow::RowWindow(const PlannedJob& job, const Program& program) : servers_(job.plan.servers) {
  const InputLayout layout = input_layout(program);
  int64_t most = 0;
  for (const std::vector<const ServedTable*>& tables : tables_by_field(job.tables)) {
    Field field;
    field.name = tables[0]->field;
    field.rows = tables[0]->rows;
    most = std::max(most, tables[0]->window);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& load = program.instructions[i];
      if (load.opcode != Opcode::load || load.op != field.name) continue;
      const Loaded loaded{layout.offsets[i], num_elements(load.outputs[0].shape)};
      const bool known = std::any_of(field.loads.begin(), field.loads.end(),
                                     [&](const Loaded& l) { return l.offset == loaded.offset; });
      if (!known) field.loads.push_back(loaded);
    }
    for (const ServedTable* table : tables) {
      const auto v = std::find_if(program.variables.begin(), program.variables.end(),
                                  [&](const Variable& variable) { return variable.name == table->tensor; });
      check(v != program.variables.end(), "a worker has a window of each table");
      const Bucket& bucket = program.buckets[static_cast<size_t>(v->bucket)];
      // Kernels read bf16 rows in bf16 jobs, whose workers have no f32 weights of the table.
      const bool is_half = bucket.compute_offset >= 0;
      OfTable of{.table = table, .weight_type = is_half ? bucket.compute_type : DType::f32};
      of.weights =
          (is_half ? bucket.compute_offset : bucket.weights_offset) + v->bucket_element * byte_size(of.weight_type);
      if (bucket.gradients_offset >= 0) {
        of.gradient_type = bucket.kept_type;
        of.gradients = bucket.gradients_offset + v->bucket_element * byte_size(of.gradient_type);
      }
      field.tables.push_back(of);
    }
    field.begins.resize(static_cast<size_t>(servers_) + 1);
    field.asked_ends.resize(static_cast<size_t>(servers_));
    field.to_ask.resize(static_cast<size_t>(servers_));
    field.cached.resize(static_cast<size_t>(servers_));
    fields_.push_back(std::move(field));
  }
  size_t slots = 64;
  while (slots < static_cast<size_t>(most) * 4) slots *= 2;  // only_in has the ids of two batches
  entries_.resize(slots);
}

RowWindow::Entry& RowWindow::entry(int32_t id) {
  for (size_t at = static_cast<uint32_t>(id) * size_t{0x9E3779B1};; ++at) {
    Entry& entry = entries_[at & (entries_.size() - 1)];
    if (entry.stamp != stamp_ || entry.id == id) return entry;
  }
}

/// Lists each id of the batch once, in server order; per server the ids to pull, then the cached ones, each in the
/// order of the batch.
void RowWindow::find_ids(size_t number, const std::byte* inputs, const IsCached& is_cached) {
  Field& field = fields_[number];
  ++stamp_;
  for (size_t server = 0; server < field.to_ask.size(); ++server) {
    field.to_ask[server].clear();
    field.cached[server].clear();
  }
  for (const Loaded& load : field.loads) {
    const auto* ids = reinterpret_cast<const int32_t*>(inputs + load.offset);
    for (int64_t i = 0; i < load.count; ++i) {
      if (ids[i] < 0 || ids[i] >= field.rows)
        throw EnvError(fmt::format("the samples contain {} {}, which is not a row of the table {} with {} rows",
                                   field.name, ids[i], field.tables[0].table->layer, field.rows));
      Entry& found = entry(ids[i]);
      if (found.stamp == stamp_) continue;
      found = {stamp_, ids[i], 0};
      const auto server = static_cast<size_t>(owner_of_row(ids[i], servers_));
      (is_cached && is_cached(number, ids[i]) ? field.cached : field.to_ask)[server].push_back(ids[i]);
    }
  }
  field.ids.clear();
  for (size_t server = 0; server < field.to_ask.size(); ++server) {
    field.begins[server] = field.ids.size();
    field.ids.insert(field.ids.end(), field.to_ask[server].begin(), field.to_ask[server].end());
    field.asked_ends[server] = field.ids.size();
    field.ids.insert(field.ids.end(), field.cached[server].begin(), field.cached[server].end());
  }
  field.begins.back() = field.ids.size();
  for (size_t place = 0; place < field.ids.size(); ++place) entry(field.ids[place]).place = static_cast<int32_t>(place);
}

void RowWindow::take(std::byte* inputs, const IsCached& is_cached) {
  for (size_t number = 0; number < fields_.size(); ++number) {
    find_ids(number, inputs, is_cached);
    for (const Loaded& load : fields_[number].loads) {
      auto* ids = reinterpret_cast<int32_t*>(inputs + load.offset);
      for (int64_t i = 0; i < load.count; ++i) ids[i] = entry(ids[i]).place;
    }
  }
}

std::vector<std::vector<int32_t>> RowWindow::only_in(const std::byte* later_inputs, const IsCached& is_cached) {
  std::vector<std::vector<int32_t>> of_fields;
  for (size_t number = 0; number < fields_.size(); ++number) {
    const Field& field = fields_[number];
    std::vector<int32_t>& only = of_fields.emplace_back();
    ++stamp_;
    for (const int32_t id : field.ids) entry(id) = {stamp_, id, 0};
    for (const Loaded& load : field.loads) {
      const auto* ids = reinterpret_cast<const int32_t*>(later_inputs + load.offset);
      for (int64_t i = 0; i < load.count; ++i) {
        if (ids[i] < 0 || ids[i] >= field.rows) continue;
        Entry& found = entry(ids[i]);
        if (found.stamp == stamp_) continue;
        found = {stamp_, ids[i], 0};
        if (!is_cached(number, ids[i])) only.push_back(ids[i]);
      }
    }
    std::stable_sort(only.begin(), only.end(),
                     [&](int32_t a, int32_t b) { return owner_of_row(a, servers_) < owner_of_row(b, servers_); });
  }
  return of_fields;
}

int64_t RowWindow::floats(size_t field) const {
  int64_t floats = 0;
  for (const OfTable& of : fields_[field].tables) floats += of.table->units;
  return floats;
}

std::span<const int32_t> RowWindow::ids(size_t field, int server) const {
  const Field& f = fields_[field];
  const size_t begin = f.begins[static_cast<size_t>(server)], end = f.begins[static_cast<size_t>(server) + 1];
  return {f.ids.data() + begin, end - begin};
}

std::span<const int32_t> RowWindow::asked(size_t field, int server) const {
  const Field& f = fields_[field];
  const size_t begin = f.begins[static_cast<size_t>(server)], end = f.asked_ends[static_cast<size_t>(server)];
  return {f.ids.data() + begin, end - begin};
}

std::vector<RowWindow::Part> RowWindow::parts(size_t field, int server, size_t count) const {
  const Field& f = fields_[field];
  const auto begin = static_cast<int64_t>(f.begins[static_cast<size_t>(server)]);
  std::vector<Part> all;
  for (const OfTable& of : f.tables) {
    const int64_t row = of.table->units;
    all.push_back({.weights = of.weights + begin * row * byte_size(of.weight_type),
                   .gradients = of.gradients + begin * row * byte_size(of.gradient_type),
                   .weight_type = of.weight_type,
                   .gradient_type = of.gradient_type,
                   .floats = static_cast<int64_t>(count) * row,
                   .row_floats = row});
  }
  return all;
}

}  // namespace trainctl::servers
