// The window of each table on a worker: the rows that a batch reads, stored in the arena. RowWindow assigns them
// positions:
//
//   window   pulled from server 0 | cached, of server 0 | pulled from server 1 | cached, of server 1 | …
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/input_layout.h"

namespace trainctl::servers {

class RowWindow {
 public:
  /// `program`: a worker's program. It and the job must outlive the window.
  RowWindow(const PlannedJob& job, const Program& program);

  bool empty() const { return fields_.empty(); }
  /// Returns true if the worker has cached the row (RowCache).
  using IsCached = std::function<bool(size_t field, int32_t id)>;
  /// Replaces the ids of a batch by row positions in the window. Throws EnvError for an id without a row.
  void take(std::byte* inputs, const IsCached& is_cached = {});
  /// Returns the ids of a later batch that are neither in this batch nor cached, per field, in server order. Ids
  /// without a row are left out: take() reports them with their own batch.
  std::vector<std::vector<int32_t>> only_in(const std::byte* later_inputs, const IsCached& is_cached);

  /// Fields of the samples that tables read; each has at least one table.
  size_t fields() const { return fields_.size(); }
  /// Number of floats of a row, over all tables of the field.
  int64_t floats(size_t field) const;
  /// Ids of the batch whose rows `server` owns, in the order of the window.
  std::span<const int32_t> ids(size_t field, int server) const;
  /// The first of them, which are not cached and must be pulled.
  std::span<const int32_t> asked(size_t field, int server) const;

  /// The first `count` rows of ids(field, server) in the arena, for each table of the field.
  struct Part {
    int64_t weights = 0, gradients = 0;  ///< bytes from the arena's start
    DType weight_type = DType::f32, gradient_type = DType::f32;
    int64_t floats = 0, row_floats = 0;  ///< numbers of all rows, and of one
  };
  std::vector<Part> parts(size_t field, int server, size_t count) const;

 private:
  struct Loaded {
    int64_t offset = 0, count = 0;  ///< in the block of inputs
  };
  struct OfTable {
    const ServedTable* table = nullptr;
    int64_t weights = 0, gradients = 0;
    DType weight_type = DType::f32, gradient_type = DType::f32;
  };
  struct Field {
    std::string name;
    int64_t rows = 0;
    std::vector<Loaded> loads;
    std::vector<OfTable> tables;
    std::vector<int32_t> ids;                          ///< in server order, each once
    std::vector<size_t> begins;                        ///< by server, and the end
    std::vector<size_t> asked_ends;                    ///< by server
    std::vector<std::vector<int32_t>> to_ask, cached;  ///< by server: the two parts of the batch's `ids`
  };

  void find_ids(size_t number, const std::byte* inputs, const IsCached& is_cached);

  int servers_;
  std::vector<Field> fields_;
  // A hash table with open addressing; entries of other batches have another stamp.
  struct Entry {
    uint32_t stamp = 0;
    int32_t id = 0, place = 0;
  };
  Entry& entry(int32_t id);
  std::vector<Entry> entries_;
  uint32_t stamp_ = 0;
};

/// The fields that tables read, in their order, with the tables of each: the order of messages.
std::vector<std::vector<const ServedTable*>> tables_by_field(const std::vector<ServedTable>& tables);

}  // namespace trainctl::servers
