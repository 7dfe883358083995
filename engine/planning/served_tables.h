// Tables: embeddings that are stored only on the servers, partitioned by rows. A worker has a window of each table: the
// rows of one batch, in place of the weight. Ids are replaced by positions in the window before the step, so its
// program is that of an embedding with as many rows as the window, and its gradient is summed by id.
//
//   owner of row r      server r mod servers
//   window              rows of server 0 | rows of server 1 | …      each id of the batch once
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct ServedTable {
  std::string layer;       ///< "emb.deep"
  std::string tensor;      ///< "emb.deep.weight"
  std::string field;       ///< field of the samples that has the ids
  std::string rows_field;  ///< field of the layer that has the number of rows, which the window replaces
  int64_t rows = 0, units = 0;
  int64_t window = 0;  ///< the most rows that a batch can have
  Init init;
  int group = -1;  ///< index in optimizer.groups
};

inline int owner_of_row(int64_t row, int servers) { return static_cast<int>(row % servers); }

/// The largest number of sample fields that tables may read.
inline constexpr int kMostTableFields = 28;

/// Tells how long rows of a table live: fields of its layer (engine/ops/embedding/table_layer.h).
struct RowLife {
  int64_t cached_batches = 0;  ///< later batches in which a worker uses a row that it has pulled
  int64_t admit_after = 1;     ///< the update from which on a server keeps a row
  int64_t expire_after = 0;    ///< consecutive updates that do not change a row, after which it is dropped; 0: never
};
RowLife row_life_of(const JobSpec& spec, const ServedTable& table);

/// Returns the tables of parallel.tables, in the order of the network. Throws SpecError if a pattern fits no layer, or
/// a layer cannot be one.
std::vector<ServedTable> plan_tables(const JobSpec& spec, const DataShapes& shapes);
/// Returns the job with the number of rows of each table replaced by the size of its window.
JobSpec with_windows(JobSpec spec, const std::vector<ServedTable>& tables);
/// Finds the weight of a table in the graph of the job with windows. Sets table.group.
TensorId find_table(const Graph& graph, ServedTable& table);

/// Describes the tables in the report of a plan.
nlohmann::ordered_json tables_json(const std::vector<ServedTable>& tables, const OptimizerSpec& optimizer);

}  // namespace trainctl
