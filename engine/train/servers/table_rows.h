// The rows of one table that one server holds. A row is made when it is first trained, with the values that the whole
// table would have there, and takes memory only from then on. With admit_after: n its first n - 1 updates are only
// counted. With expire_after: n a row that n consecutive updates have not changed is dropped.
//
//   row   weight[units] | state 0[units] | state 1[units] …      of OptimizerDef::states
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/ops/kernel.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/served_tables.h"

namespace trainctl::servers {

class TableRows {
 public:
  TableRows(const ServedTable& table, const OptimizerSpec& optimizer, uint64_t seed, int threads,
            const RowLife& life = {});
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;

  /// Reads the weights of these rows, [ids, units]. Rows that do not exist have their initial values, and are not made
  /// by reading.
  void read(std::span<const int32_t> ids, float* out) const;
  /// One step of the job's optimizer on only these rows; each id once. `gradients`: [ids, units]; `norm`: the squared
  /// norm of all gradients, if the job clips. Makes rows that do not exist and are admitted. Call it once for each
  /// update of the server, also without ids.
  void update(std::span<const int32_t> ids, const float* gradients, const float* norm, const StepScalars& scalars);

  const ServedTable& table() const { return table_; }
  const RowLife& life() const { return life_; }
  /// Names of the slots of a row, in its order: "weight", then the optimizer's states.
  const std::vector<std::string>& slots() const { return slots_of_row_; }
  /// The values of a row, [slots, units]; made if it does not exist. They stay where they are.
  float* make(int32_t id) { return row(find_or_make(id)); }

  /// Frees rows that have expired. Until then they take memory, and count in rows().
  void drop_expired();
  int64_t rows() const { return used_; }
  /// Rows that were read and updated so far: the load of this server.
  int64_t rows_read() const { return rows_read_; }
  int64_t rows_updated() const { return rows_updated_; }
  int64_t bytes() const;
  /// Rows that were updated since all_are_saved().
  int64_t changed_rows() const { return changed_rows_; }
  void all_are_saved();
  /// Calls f(id, row) for each row, or for each that has changed.
  template <class F>
  void for_each(bool changed_alone, const F& f) const {
    for (int64_t slot = 0; slot < used_; ++slot)
      if (!changed_alone || is_changed_[static_cast<size_t>(slot)]) f(ids_[static_cast<size_t>(slot)], row(slot));
  }

 private:
  static constexpr int64_t kRowsOfChunk = 4096;

  /// Most counts of rows that are not admitted yet: with more of them all are forgotten, so their memory is bounded.
  static constexpr size_t kMostSighted = size_t{1} << 22;

  int64_t find(int32_t id) const;
  bool is_expired(int64_t slot) const {
    return life_.expire_after > 0 && updates_ - touched_[static_cast<size_t>(slot)] >= life_.expire_after;
  }
  bool is_admitted(int32_t id);
  void change(int64_t slot);
  void drop(int64_t slot);
  void sweep(int64_t slots);
  int64_t find_or_make(int32_t id);
  void grow();
  float* row(int64_t slot) const {
    return chunks_[static_cast<size_t>(slot / kRowsOfChunk)].get() + slot % kRowsOfChunk * stride_;
  }

  const ServedTable table_;
  const RowLife life_;
  const uint64_t seed_;
  std::vector<std::string> slots_of_row_;
  int64_t stride_ = 0;
  std::vector<int32_t> slots_;                      ///< a hash table with open addressing: the row's place, or -1
  std::vector<int32_t> ids_;                        ///< by place
  std::vector<bool> is_changed_;                    ///< by place
  std::vector<int64_t> touched_;                    ///< by place, with expire_after: the last update
  std::unordered_map<int32_t, int32_t> sightings_;  ///< counts of rows that are not admitted yet
  std::vector<std::unique_ptr<float[]>> chunks_;
  int64_t used_ = 0, changed_rows_ = 0;
  int64_t updates_ = 0;  ///< updates of the server
  int64_t hand_ = 0;     ///< the place that is looked at next for having expired
  mutable int64_t rows_read_ = 0;
  int64_t rows_updated_ = 0;
  // The optimizer's kernel, on some rows at a time.
  int64_t at_a_time_ = 0;
  std::vector<float> gradients_;
  std::vector<std::vector<float>> values_;  ///< weights, then each state
  float norm_ = 0;
  StepScalars scalars_;
  CpuKernel update_;
};

}  // namespace trainctl::servers
