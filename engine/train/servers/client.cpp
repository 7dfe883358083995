// Sends a worker's requests to the parameter servers, and copies the rows of their answers into the arena.
#include "engine/train/servers/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/plan/served.h"
#include "engine/planning/served_tables.h"

namespace trainctl::servers {
namespace {

constexpr int64_t kFloat = byte_size(DType::f32);

/// Returns the offset of the norm of all gradients, which workers in step report; -1 if they report none.
int64_t find_norm(const PlannedJob& job, const Program& program) {
  if (!serves_tables_alone(job.plan) || job.spec.optimizer.clip_norm == 0) return -1;
  for (const Instruction& i : program.instructions)
    for (const Operand& out : i.outputs)
      if (out.tensor == "clip_norm") return out.offset;
  check(false, "a job that clips computes a norm");
  return -1;
}

/// Bytes from the first row of the part to row number `i`, in the weights.
int64_t offset_of_row(size_t i, const RowWindow::Part& part) {
  return static_cast<int64_t>(i) * part.row_floats * byte_size(part.weight_type);
}

void write_floats(std::byte* to, DType type, const float* from, int64_t count) {
  if (type == DType::f32)
    std::memcpy(to, from, static_cast<size_t>(count * kFloat));
  else
    floats_to_halves(type, from, count, reinterpret_cast<uint16_t*>(to));
}

void read_floats(const std::byte* from, DType type, int64_t count, float* to) {
  if (type == DType::f32)
    std::memcpy(to, from, static_cast<size_t>(count * kFloat));
  else
    halves_to_floats(type, reinterpret_cast<const uint16_t*>(from), count, to);
}

}  // namespace

Client::Client(const PlannedJob& job, const Program& program, const Program* validation, std::span<std::byte> arena,
               Communicator& comm)
    : worker_(program.rank),
      servers_(job.plan.servers),
      first_server_(num_workers(job.plan)),
      pushes_per_step_(pushes_per_step(job.plan)),
      arena_(arena),
      comm_(comm),
      norm_offset_(find_norm(job, program)),
      window_(job, program) {
  if (validation != nullptr) validation_window_.emplace(job, *validation);
  for (const std::vector<const ServedTable*>& tables : tables_by_field(job.tables)) {
    std::vector<int64_t>& units = units_.emplace_back();
    for (const ServedTable* table : tables) units.push_back(table->units);
    row_caches_.emplace_back(window_.floats(row_caches_.size()), row_life_of(job.spec, *tables[0]).cached_batches);
  }
}

void Client::send_request(Ask what, int64_t batch, const RowWindow* window, int64_t next) {
  Request request;
  request.ask = what;
  request.worker = worker_;
  request.batch = batch;
  request.next = next;
  const size_t fields = window == nullptr ? 0 : window->fields();
  const auto send_ids = [&](int server, std::span<const int32_t> ids) {
    if (!ids.empty()) comm_.send(rank_of(server), ids.data(), static_cast<int64_t>(ids.size_bytes()));
  };
  for (int server = 0; server < servers_; ++server) {
    for (size_t field = 0; field < fields; ++field) {
      request.ids[field] = static_cast<int32_t>(window->ids(field, server).size());
      request.asked[field] = static_cast<int32_t>(window->asked(field, server).size());
      if (next >= 0) request.ahead[field] = static_cast<int32_t>(ahead_ids(field, server).size());
    }
    comm_.send(rank_of(server), &request, sizeof(request));
    for (size_t field = 0; field < fields; ++field) send_ids(server, window->ids(field, server));
    for (size_t field = 0; next >= 0 && field < fields; ++field) send_ids(server, ahead_ids(field, server));
  }
}

std::span<const int32_t> Client::ahead_ids(size_t field, int server) const {
  const std::vector<int32_t>& ids = ahead_[field];
  const auto owner_is_below = [this](int32_t id, int owner) { return owner_of_row(id, servers_) < owner; };
  const auto begin = std::lower_bound(ids.begin(), ids.end(), server, owner_is_below),
             end = std::lower_bound(begin, ids.end(), server + 1, owner_is_below);
  return {begin, end};
}

void Client::pull_rows(const RowWindow& window) {
  for (int server = 0; server < servers_; ++server)
    for (size_t field = 0; field < window.fields(); ++field)
      for (const RowWindow::Part& part : window.parts(field, server, window.asked(field, server).size())) {
        if (part.floats == 0) continue;
        std::byte* const rows = arena_.data() + part.weights;
        if (part.weight_type == DType::f32) {
          comm_.recv(rank_of(server), rows, part.floats * kFloat);
          continue;
        }
        converted_.resize(static_cast<size_t>(part.floats));
        comm_.recv(rank_of(server), converted_.data(), part.floats * kFloat);
        write_floats(rows, part.weight_type, converted_.data(), part.floats);
      }
}

void Client::push_rows() {
  std::vector<std::pair<int, int64_t>> sent;
  int64_t floats = 0;
  for (size_t field = 0; field < window_.fields(); ++field)
    for (int server = 0; server < servers_; ++server)
      floats += static_cast<int64_t>(window_.ids(field, server).size()) * window_.floats(field);
  converted_.resize(static_cast<size_t>(floats));  // does not move while messages are on their way
  float* converted = converted_.data();
  for (int server = 0; server < servers_; ++server)
    for (size_t field = 0; field < window_.fields(); ++field)
      for (const RowWindow::Part& part : window_.parts(field, server, window_.ids(field, server).size())) {
        if (part.floats == 0) continue;
        const std::byte* rows = arena_.data() + part.gradients;
        if (part.gradient_type != DType::f32) {
          read_floats(rows, part.gradient_type, part.floats, converted);
          rows = reinterpret_cast<const std::byte*>(converted);
          converted += part.floats;
        }
        sent.emplace_back(rank_of(server), comm_.send(rank_of(server), rows, part.floats * kFloat));
      }
  for (const auto& [rank, number] : sent) comm_.wait_send(rank, number);
}

/// Fills in the rows of the window that were not requested.
void Client::fill_from_cache() {
  for (int server = 0; server < servers_; ++server)
    for (size_t field = 0; field < window_.fields(); ++field) {
      const std::span<const int32_t> ids = window_.ids(field, server);
      const size_t asked = window_.asked(field, server).size();
      const std::vector<RowWindow::Part> parts = window_.parts(field, server, ids.size());
      for (size_t i = asked; i < ids.size(); ++i) {
        const float* row = find_cached(field, ids[i], started_);
        for (const RowWindow::Part& part : parts) {
          write_floats(arena_.data() + part.weights + offset_of_row(i, part), part.weight_type, row, part.row_floats);
          row += part.row_floats;
        }
      }
      counts_.pulled += static_cast<int64_t>(asked);
      counts_.reused += static_cast<int64_t>(ids.size() - asked);
    }
}

/// Stores the pulled rows of layers with cached_batches.
void Client::cache_pulled() {
  for (size_t field = 0; field < window_.fields(); ++field) {
    if (row_caches_[field].cached_batches() == 0) continue;
    for (int server = 0; server < servers_; ++server) {
      const std::span<const int32_t> ids = window_.asked(field, server);
      const std::vector<RowWindow::Part> parts = window_.parts(field, server, ids.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        float* row = row_caches_[field].put(ids[i], started_);
        for (const RowWindow::Part& part : parts) {
          read_floats(arena_.data() + part.weights + offset_of_row(i, part), part.weight_type, part.row_floats, row);
          row += part.row_floats;
        }
      }
    }
  }
}

void Client::start(int64_t batch, std::byte* inputs, const std::optional<Loader::Ahead>& next) {
  ++started_;
  for (RowCache& cache : row_caches_) cache.drop_before(started_);
  window_.take(inputs, [this](size_t field, int32_t id) { return find_cached(field, id, started_) != nullptr; });
  is_prefetching_ = next.has_value() && !window_.empty();
  if (is_prefetching_)
    ahead_ = window_.only_in(
        next->inputs, [this](size_t field, int32_t id) { return find_cached(field, id, started_ + 1) != nullptr; });
  send_request(Ask::train, batch, &window_, is_prefetching_ ? next->step : -1);
  pull_rows(window_);
  fill_from_cache();
  cache_pulled();
}

/// Receives the prefetched rows. Rows that a server does not grant are requested again with the batch itself.
void Client::receive_ahead() {
  if (!std::exchange(is_prefetching_, false)) return;
  for (int server = 0; server < servers_; ++server) {
    Ahead ahead;
    comm_.recv(rank_of(server), &ahead, sizeof(ahead));
    if (ahead.is_granted == 0) continue;
    int64_t floats = 0;
    for (size_t field = 0; field < window_.fields(); ++field)
      floats += static_cast<int64_t>(ahead_ids(field, server).size()) * window_.floats(field);
    if (floats == 0) continue;
    prefetched_.resize(static_cast<size_t>(floats));
    comm_.recv(rank_of(server), prefetched_.data(), floats * kFloat);
    const float* from = prefetched_.data();
    for (size_t field = 0; field < window_.fields(); ++field) {
      const std::span<const int32_t> ids = ahead_ids(field, server);
      const auto count = static_cast<int64_t>(ids.size());
      for (int64_t i = 0; i < count; ++i) {
        float* row = row_caches_[field].put(ids[static_cast<size_t>(i)], started_ + 1);
        const float* of_table = from;
        for (const int64_t units : units_[field]) {
          row = std::copy_n(of_table + i * units, units, row);
          of_table += count * units;
        }
      }
      from += count * window_.floats(field);
      counts_.ahead += count;
    }
  }
}

void Client::finish(const StepReport& step) {
  receive_ahead();
  push_rows();
  Report report;
  report.loss = step.loss;
  if (norm_offset_ >= 0) report.norm = *reinterpret_cast<const float*>(arena_.data() + norm_offset_);
  for (size_t i = 0; i < step.metrics.of.size(); ++i) report.metrics[i] = static_cast<float>(step.metrics.values[i]);
  for (int server = 0; server < servers_; ++server) comm_.send(rank_of(server), &report, sizeof(report));
}

void Client::read(int64_t batch, std::byte* inputs) {
  validation_window_->take(inputs);
  send_request(Ask::read, batch, &*validation_window_);
  pull_rows(*validation_window_);
}

void Client::wait_for_updates(int64_t batch) {
  send_request(Ask::wait_for_updates, batch, nullptr);
  for (int server = 0; server < servers_; ++server) {
    UpdatesApplied applied;
    comm_.recv(rank_of(server), &applied, sizeof(applied));
  }
}

void Client::close() { send_request(Ask::close, 0, nullptr); }

void Client::before_batch(int64_t step, std::byte* inputs, const std::optional<Loader::Ahead>& next) {
  const auto batch_of = [this](int64_t of_step) { return of_step * pushes_per_step_ + worker_; };
  std::optional<Loader::Ahead> ahead = next;
  if (ahead) ahead->step = batch_of(ahead->step);
  start(batch_of(step), inputs, ahead);
}

}  // namespace trainctl::servers
