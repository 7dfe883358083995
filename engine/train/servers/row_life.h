// The lifetime of rows of a table: fields of its layer (engine/ops/embedding/table_layer.h).
#pragma once

#include <cstdint>

#include "engine/spec/job_spec.h"
#include "engine/train/servers/table_plan.h"

namespace trainctl::servers {

struct RowLife {
  int64_t cached_batches = 0;  ///< further batches in which a worker uses a row that it has pulled
  int64_t admit_after = 1;     ///< the update from which on a server keeps a row
  int64_t expire_after = 0;    ///< updates that leave a row alone, after which it is dropped; 0: never
};

RowLife row_life_of(const JobSpec& spec, const ServedTable& table);

}  // namespace trainctl::servers
