// Parameter servers that are event loops: what a worker asks of each server before it runs its program.
//
//   worker                            server
//   request {train, batch}       ->   waits until the batch may start (Applied)
//   ids of each field            ->   Request::ids of them: rows of tables that this server has
//   rows of each table           <-   of the first Request::asked of those ids; the others are at hand
//   recv weights.*               <-   a copy of all that it holds: the state between two updates
//   ids of the next batch        ->   Request::ahead of them by field, sent with the others; not in this batch
//   Ahead                        <-   whether that batch may start already
//   rows of each table           <-   if so, in one message; they travel while the program runs
//   send grad.*, clip_norm       ->   taken whole before any of it is used; then one update, and version + 1
//   gradients of the rows        ->   of all Request::ids, summed by id
//   Report                       ->   of the batch
//
//   request {read, batch}        ->   as above, once all batches before that one are applied, and without a push
//   request {settle, batch}      ->   Settled, at the same time as an answer to read: a save that is due has its copy
//   request {leave}              ->   nothing more follows
//
// Workers that run in step (servers store only tables) have no weights to pull. Their part of a step is a batch
// to the servers: worker w of N has batch step * N + w.
//
// All travel on the channel of the pair, in order. What a worker that dies has sent of a push is dropped: no update has
// half of it.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/planning/served_tables.h"

namespace trainctl::servers {

enum class Ask : int32_t { train, read, settle, leave };

struct Request {
  Ask ask = Ask::train;
  int32_t worker = 0;
  int64_t batch = 0;  ///< over the whole run
  int64_t next = -1;  ///< the batch of `ahead`; -1: none is known yet
  // By field of the samples that tables read.
  int32_t ids[kMostTableFields] = {}, asked[kMostTableFields] = {}, ahead[kMostTableFields] = {};
};
static_assert(sizeof(Request) == 360);

/// The answer to settle.
struct Settled {
  int32_t unused = 0;
};

/// Precedes the rows of the next batch.
struct Ahead {
  int32_t is_granted = 0;
};

/// The end of a push.
struct Report {
  float norm = 0;  ///< workers in step, where the job clips: the squared norm of all their gradients
  float loss = 0;
  float metrics[kMostMetrics] = {};  ///< same as in StepReport
};

}  // namespace trainctl::servers
