// Chunked loss: in how many pieces of rows the head of a network, its last product and the loss, runs
// (compile/fuse/head_in_pieces.cpp).
#pragma once

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Sets Plan::head_pieces: as many as the job says or, if it says nothing, as few as parallel.max_memory allows; one if
/// no number of pieces is enough. Adds a note.
void choose_head_pieces(PlannedJob& job);

}  // namespace trainctl
