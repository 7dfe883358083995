// Asynchronous parameter servers: what a worker asks of each server before it runs its program.
//
//   worker                            server
//   request {train, batch}       ->   waits until the batch may start (Staleness), then copies all that it holds of the
//   weights ids of each field            ->   of rows of tables that this server has (Request::ids of them) rows of
//   each table           <-   their weights recv weights.*               <-   that copy: the state between two updates,
//   with the version it has send grad.*, clip_norm       ->   taken whole before any of it is used; then one update,
//   and version + 1 gradients of the rows        ->   summed by id Report                       ->   of the batch
//
//   request {read}               ->   as above, without a push
//   request {leave}              ->   nothing more follows
//
// All travel on the channel of the pair, in order. What a worker that dies has sent of a push is dropped: no update has
// half of it.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"

namespace trainctl::servers {

enum class Ask : int32_t {
  train,
  read,      ///< the weights, now
  read_end,  ///< the weights after the run's last update
  leave
};

inline constexpr int kMostFields = 28;

struct Request {
  Ask ask = Ask::train;
  int32_t worker = 0;
  int64_t batch = 0;              ///< its step over the whole run
  int32_t ids[kMostFields] = {};  ///< by field of the samples that tables read
};
static_assert(sizeof(Request) == 128);

/// The end of a push.
struct Report {
  float loss = 0;
  float metrics[kMostMetrics] = {};  ///< as in StepReport
};

}  // namespace trainctl::servers
