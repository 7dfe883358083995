// The protocol between a worker and a parameter server that runs an event loop: the messages of one batch.
//
//   worker                            server
//   request {train, batch}       ->   waits until the batch may start (Applied)
//   ids of each field            ->   Request::ids of them: table rows that this server owns
//   rows of each table           <-   of the first Request::asked of those ids; the others are cached
//   recv weights.*               <-   a copy of all its weights: the state between two updates
//   ids of the next batch        ->   Request::ahead of them by field, sent with the others; not in this batch
//   Ahead                        <-   whether that batch may start already
//   rows of each table           <-   if so, in one message; they travel while the program runs
//   send grad.*, clip_norm       ->   received completely before any of it is used; then one update
//   gradients of the rows        ->   of all Request::ids, summed by id
//   Report                       ->   of the batch
//
//   request {read, batch}        ->   as above, once all batches before that one are applied, and without a push
//   request {wait_for_updates, batch}
//                                ->   UpdatesApplied, at the same time as an answer to read: the state of a save that
//                                     is due has been copied
//   request {close}              ->   no more messages follow
//
// Workers that run in step (servers store only tables) have no weights to pull. Their part of a step is a batch
// to the servers: worker w of N has batch step * N + w.
//
// All messages are sent on the channel of the pair, in order. An incomplete push of a worker that died is dropped: no
// update contains half of one.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/planning/served_tables.h"

namespace trainctl::servers {

enum class Ask : int32_t { train, read, wait_for_updates, close };

struct Request {
  Ask ask = Ask::train;
  int32_t worker = 0;
  int64_t batch = 0;  ///< over the whole run
  int64_t next = -1;  ///< the batch of `ahead`; -1: none is known yet
  // By field of the samples that tables read.
  int32_t ids[kMostTableFields] = {}, asked[kMostTableFields] = {}, ahead[kMostTableFields] = {};
};
static_assert(sizeof(Request) == 360);

/// The answer to wait_for_updates.
struct UpdatesApplied {
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
