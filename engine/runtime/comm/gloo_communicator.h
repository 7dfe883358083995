// Communicator over Gloo's TCP transport: ranks of several hosts.
#pragma once

#include <memory>
#include <string>

#include "engine/runtime/comm/key_value_store.h"
#include "engine/runtime/comm/rank_board.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

struct GlooOptions {
  std::string hostname = "127.0.0.1";  ///< address of this rank for its peers
  double timeout_seconds = 30;         ///< limit of each call
  double connect_seconds = 0;          ///< for all ranks to connect; 0: timeout_seconds
  std::string prefix = "gloo";         ///< prefix of all keys in the store
  bool encrypts = false;               ///< TLS, with a secret that the ranks share by the store; else plain TCP
  RankStatus* status = nullptr;        ///< where the launcher of this host reads this rank's position
};

/// Connects to its peers on the first call that needs them, so that ranks may open groups in any order.
/// `store` must outlive it. Sums have the same bits as the shared-memory Communicator's.
std::unique_ptr<Communicator> make_gloo_communicator(KeyValueStore& store, int rank, int num_ranks,
                                                     const GlooOptions& options = {});

}  // namespace trainctl
