// Divides rows that consist of documents among ranks that share them (parallel.context).
#pragma once

#include "engine/graph/graph.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// In a graph whose rows are stored in the order of ranks: if its ops know positions only within documents, sets their
/// attr kRowGroups (ops/row_order.h), such that even long documents are divided among the ranks.
void divide_documents(const ParallelSpec& parallel, Graph& graph);

}  // namespace trainctl
